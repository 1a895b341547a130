"""ONNX and GGUF files read, and the graph run, by the programs they are for."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import onnx
import onnxruntime
import pytest

from evermind_web import EvermindLM, export_gguf, export_onnx, named_tensors

SHAPES: dict[str, dict[str, Any]] = {
    "usual": {"vocab_size": 37, "d_model": 12, "num_layers": 2, "hidden_dim": 20, "num_experts": 4, "top_k": 2},
    "one expert, one tap": {
        "vocab_size": 9,
        "d_model": 5,
        "num_layers": 1,
        "conv_kernel": 1,
        "num_experts": 1,
        "top_k": 1,
    },
    "all experts": {"vocab_size": 11, "d_model": 4, "num_layers": 3, "conv_kernel": 5, "num_experts": 3, "top_k": 3},
    "no layers": {"vocab_size": 11, "d_model": 4, "num_layers": 0},
}


def perturbed(shape: str) -> EvermindLM:
    """A model in which no bias is 0, no gain 1 and no tap alone."""
    lm = EvermindLM(**SHAPES[shape])
    rng = np.random.default_rng(5)
    for tensor in named_tensors(lm):
        lm.set_parameter(tensor.name, tensor.data + rng.normal(0, 0.3, tensor.shape).astype(np.float32))
    return lm


@pytest.mark.parametrize("shape", SHAPES)
def test_onnxruntime_gives_our_logits(shape: str) -> None:
    lm = perturbed(shape)
    data = export_onnx(lm)
    onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    for batch, length in ((1, 1), (2, 2), (1, 3), (3, 17)):
        ids = rng.integers(0, lm.config.vocab_size, (batch, length))
        (got,) = session.run(None, {"input_ids": ids})
        want = np.stack([lm.forward(row.tolist()) for row in ids])
        assert got.shape == want.shape
        assert np.abs(got - want).max() <= 1e-4 * max(1.0, np.abs(want).max())
        assert np.abs(want).max() > 0.1


def test_onnx_equal_router_scores_take_the_lowest_expert() -> None:
    lm = perturbed("usual")
    for layer in range(2):
        lm.set_parameter(f"layers.{layer}.moe.router.weight", np.ones((4, 12), np.float32))
    session = onnxruntime.InferenceSession(export_onnx(lm), providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {"input_ids": np.array([[3, 1, 4, 1, 5]])})
    assert np.abs(got[0] - lm.forward([3, 1, 4, 1, 5])).max() <= 1e-4


@pytest.mark.parametrize("fp16", [False, True])
def test_gguf_library_reads_every_tensor(tmp_path: Any, fp16: bool) -> None:
    lm = perturbed("usual")
    path = tmp_path / "model.gguf"
    path.write_bytes(export_gguf(lm, name="Näme", fp16=fp16))
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert fields["general.name"] == "Näme"
    assert fields["general.architecture"] == "evermind"
    numbers = [fields[f"evermind.{k}"] for k in ("vocab_size", "embedding_length", "block_count", "conv_kernel")]
    assert numbers == list(lm.config[:4])
    stored = {tensor.name: tensor for tensor in reader.tensors}
    for tensor in named_tensors(lm):
        want = tensor.data.astype(np.float16) if fp16 else tensor.data
        assert stored[tensor.name].data.dtype == want.dtype
        assert np.array_equal(stored[tensor.name].data, want)  # shape included
