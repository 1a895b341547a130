"""QLoRA: the frozen embedding is packed in device memory, and used as its unpacked values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evermind_web.backend.base import Backend
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.backend.webgpu_backend import WebGPUBackend
from evermind_web.errors import InvalidArgumentError
from evermind_web.lora import EvermindLMLoRA, LoraConfig, LoraModel, quantize_base
from evermind_web.lora.base import pack_matrix, stored_bytes
from evermind_web.model import EvermindLM
from tests.lora.common import TEXTS, adapted, apart, base_model
from tests.parity import damage

EMB = LoraConfig(r=4, lora_alpha=8)
V, D = 4001, 64  # an odd number of rows
MODES = ["fp16", "int8", "int8-row"]


def large(backend: Backend) -> EvermindLM:
    return EvermindLM(V, D, 1, 3, 32, 2, 1, backend=backend)


@pytest.mark.parametrize("quant", MODES)
def test_a_packed_base_computes_with_its_unpacked_values(backend: Backend, quant: str) -> None:
    model = adapted(backend, EMB, quant)
    base = base_model(NumpyBackend())
    emb = base.parameters()[0].data
    view = quantize_base(emb, quant).view
    assert not np.array_equal(view, emb)
    base.set_parameter("token_embedding.weight", model.adapter("a").parts["token_embedding.weight"].apply_to(view))
    assert apart(model.forward(TEXTS[-1]), base.forward(TEXTS[-1])) < 1e-5
    assert model.evaluate(TEXTS) == pytest.approx(base.evaluate(TEXTS), rel=1e-5)
    assert model.generate(TEXTS[1], max_new_tokens=6) == base.generate(TEXTS[1], max_new_tokens=6)
    model.dispose()


@pytest.mark.parametrize("quant", MODES)
def test_without_an_adapter_too(backend: Backend, quant: str) -> None:
    model = LoraModel.from_checkpoint(base_model(backend).export_weights(), backend, quant)
    base = base_model(NumpyBackend())
    base.set_parameter("token_embedding.weight", quantize_base(base.parameters()[0].data, quant).view)
    assert apart(model.forward(TEXTS[-1]), base.forward(TEXTS[-1])) < 1e-5
    model.add_adapter("experts", LoraConfig(r=2, target_modules=["shared.w1", "shared.w2"]))
    history = model.fit(TEXTS, epochs=3)
    assert history[-1] < history[0]
    model.dispose()


@pytest.mark.parametrize("quant", MODES)
def test_training_over_a_packed_base_agrees_between_backends(cpu: Backend, gpu: Backend, quant: str) -> None:
    histories = []
    for backend in (cpu, gpu):
        model = adapted(backend, EMB, quant)
        histories.append(model.fit(TEXTS, epochs=3, lr=0.003))
        model.dispose()
    assert histories[1] == pytest.approx(histories[0], rel=1e-4)


def test_int8_by_row_is_closer_than_by_tensor() -> None:
    rng = np.random.default_rng(1)
    values = (rng.standard_normal((50, 16)) * np.logspace(-2, 0, 50)[:, None]).astype(np.float32)
    errors = {mode: np.abs(quantize_base(values, mode).view - values)[:10].max() for mode in MODES}
    assert errors["int8-row"] < errors["int8"] / 10
    assert quantize_base(values, "int8-row").bytes == 800 + 4 * 50
    steps = np.abs(values).max(axis=1, keepdims=True) / 127
    assert (np.abs(quantize_base(values, "int8-row").view - values) <= 0.5001 * steps).all()


@pytest.mark.parametrize("quant", MODES)
def test_words_hold_the_values(quant: str) -> None:
    values = (
        np.random.default_rng(2).standard_normal((5, 3)).astype(np.float32)
    )  # 15 values: the last word is part full
    packed = pack_matrix(values, quant)
    assert np.allclose(packed.values(), quantize_base(values, quant).view, rtol=1e-6, atol=0)
    assert packed.codes.nbytes == {"fp16": 32, "int8": 16, "int8-row": 16}[quant]


@pytest.mark.parametrize("quant", MODES)
def test_the_resident_base_really_is_packed(gpu: WebGPUBackend, quant: str) -> None:
    """By the device's own counter: a base from a checkpoint holds no float32 embedding, also while it is trained."""
    checkpoint = large(NumpyBackend()).export_weights()
    text = np.random.default_rng(3).integers(0, V, 40).tolist()
    gpu.flush()
    start = gpu.stats()["buffer_bytes"]
    model = LoraModel.from_checkpoint(checkpoint, gpu, quant)
    model.add_adapter("a", EMB)
    peak = 0

    def note(_: Any) -> None:
        nonlocal peak
        peak = max(peak, gpu.stats()["buffer_bytes"] - start)

    model.fit([text], epochs=9, on_step=note)
    model.generate(text, max_new_tokens=3)
    gpu.flush()
    held, stored = gpu.stats()["buffer_bytes"] - start, stored_bytes(V * D, quant, V)
    memory = model.memory_bytes()
    assert stored <= memory["embedding"] <= stored + 8
    tapes = 40 * 1024 * D // 4  # activations of 64 rows and little things
    trained = 4 * 4 * (V + D) * EMB.r  # adapter, gradient, two moments
    assert peak < stored + memory["layers"] + trained + tapes
    assert held >= memory["embedding"] + memory["layers"] + memory["adapters"]
    if quant != "fp16":
        assert peak < 4 * V * D
    model.dispose()
    gpu.flush()
    assert gpu.stats()["buffer_bytes"] == start


def test_no_adapted_embedding_and_no_gradient_of_it_is_ever_held(gpu: WebGPUBackend) -> None:
    """An adapter on a float32 base takes less than one more embedding, with its training state."""
    base = large(gpu)
    text = np.random.default_rng(3).integers(0, V, 40).tolist()
    base.evaluate([text])
    gpu.flush()
    start, peak = gpu.stats(), 0
    lora = EvermindLMLoRA(base, 4)

    def note(_: Any) -> None:
        nonlocal peak
        peak = max(peak, gpu.stats()["buffer_bytes"] - start["buffer_bytes"])

    lora.fit([text], epochs=9, on_step=note)
    lora.generate(text, max_new_tokens=3)
    assert 0 < peak < 4 * V * D
    lora.dispose()
    base.dispose()


def test_what_cannot_be_packed_is_refused_by_name(cpu: Backend) -> None:
    base = base_model(cpu)
    with pytest.raises(InvalidArgumentError, match="base_quant must be one of none, fp16, int8, int8-row, got 'int4'"):
        LoraModel(base, "int4")
    base.set_parameter("token_embedding.weight", np.full((37, 12), 65520.0))
    with pytest.raises(InvalidArgumentError, match=r"token_embedding.weight does not fit fp16"):
        LoraModel.from_checkpoint(base.export_weights(), cpu, "fp16")
    damage(base, 0, np.nan)
    with pytest.raises(InvalidArgumentError, match="int8 needs finite values"):
        LoraModel.from_checkpoint(base.export_weights(), cpu, "int8-row")
