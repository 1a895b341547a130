"""Adapters on a model: the base stays, shapes and bases are checked, merging is exact (TR13, TR14, TR15, TR17)."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from evermind_web.backend.base import Backend
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.errors import ConfigMismatchError, FormatError, InvalidArgumentError
from evermind_web.lora import EvermindLMLoRA, LoRAAdapter, quantize_base
from evermind_web.model import EvermindLM
from evermind_web.training import StepInfo
from tests.cases import ModelCase, model_case
from tests.counting import CountingBackend
from tests.parity import make_model

CASE = model_case("ragged")
OTHER = ModelCase("other", CASE.arch, CASE.lengths, seed=99)


def trained(model: EvermindLM, **setup: object) -> EvermindLMLoRA:
    """An adapter that has learned something."""
    lora = EvermindLMLoRA(model, **({"rank": 4} | setup))  # type: ignore[arg-type]
    lora.fit(CASE.sequences(), epochs=3, lr=0.05)
    return lora


def test_training_lowers_the_loss_and_leaves_every_base_weight(backend: Backend) -> None:
    model = make_model(backend, CASE)
    before, text = model.export_weights(), model.generate([1, 2])
    lora = EvermindLMLoRA(model, rank=4)
    assert lora.evaluate(CASE.sequences()) == pytest.approx(model.evaluate(CASE.sequences()), rel=1e-6)
    losses = lora.fit(CASE.sequences(), epochs=4, lr=0.05)
    assert losses[-1] < losses[0]
    assert lora.evaluate(CASE.sequences()) < model.evaluate(CASE.sequences())
    assert model.export_weights() == before
    assert model.generate([1, 2]) == text
    lora.dispose()
    model.dispose()


def test_switching_it_on_is_running_with_the_merged_embedding(backend: Backend) -> None:
    model = make_model(backend, CASE)
    lora = trained(model)
    tokens = CASE.sequences()[0]
    with_adapter = lora.forward(tokens)
    assert np.abs(with_adapter - model.forward(tokens)).max() > 0.01
    merged = EvermindLM.from_checkpoint(lora.merge(), backend=backend)
    assert merged.forward(tokens) == pytest.approx(with_adapter, rel=0, abs=1e-5 * float(np.abs(with_adapter).max()))
    assert lora.generate([1], max_new_tokens=8) == merged.generate([1], max_new_tokens=8)
    assert list(lora.stream([1], max_new_tokens=8)) == merged.generate([1], max_new_tokens=8)
    for part in (lora, model, merged):
        part.dispose()


def test_gradient_of_the_adapter_is_that_of_the_embedding_through_it(cpu: Backend) -> None:
    """One step from zero moments moves every value by lr against the sign of its gradient, taken by hand."""
    model, sequence = make_model(cpu, CASE), CASE.sequences()[2]
    lora = trained(model)
    by_hand = LoRAAdapter.deserialize(lora.serialize_adapter())
    merged = make_model(NumpyBackend(), CASE)
    merged.set_parameter("token_embedding.weight", lora.merged_emb())
    merged.zero_grad()
    merged.loss_and_backward(sequence)
    by_hand.accumulate_gradient(merged.gradients()[0].data)
    before = by_hand.B.copy(), by_hand.A.copy()
    lora.fit([sequence], lr=1e-3)
    for name, was, now, gradient in zip(
        "BA", before, (lora.adapter.B, lora.adapter.A), by_hand.gradients(), strict=True
    ):
        clear = np.abs(gradient.data) > 1e-3 * np.abs(gradient.data).max()
        assert clear.sum() > 10, name
        assert (now - was)[clear] == pytest.approx(-1e-3 * np.sign(gradient.data[clear]), abs=2e-5)


def test_stop_keeps_what_was_learned(backend: Backend) -> None:
    model = make_model(backend, CASE)
    lora, seen = EvermindLMLoRA(model, rank=4), list[StepInfo]()

    def on_step(info: StepInfo) -> None:
        seen.append(info)
        lora.stop()

    lora.fit(CASE.sequences(), epochs=500, on_step=on_step)
    assert len(seen) <= backend.steps_per_read
    assert lora.adapter.B.any()
    lora.dispose()
    model.dispose()


def test_all_memory_comes_back() -> None:
    counting = CountingBackend(NumpyBackend())
    model = make_model(counting, CASE)
    lora = trained(model, base_quant="int8")
    lora.generate([1], max_new_tokens=2)
    lora.dispose()
    lora.dispose()
    model.dispose()
    assert counting.live == set()


def test_tr13_an_adapter_of_another_width_is_refused(cpu: Backend) -> None:
    narrow = make_model(cpu, model_case("all-experts"))
    data = EvermindLMLoRA(narrow, rank=2).serialize_adapter()
    with pytest.raises(ConfigMismatchError, match=r"token_embedding.weight: adapter \(37, 5\), base \(37, 12\)"):
        EvermindLMLoRA.load_adapter(make_model(cpu, CASE), data)


def test_tr13_an_adapter_of_another_base_is_refused_unless_forced(backend: Backend) -> None:
    model, other = make_model(backend, CASE), make_model(backend, OTHER)
    lora = trained(model)
    data, base = lora.serialize_adapter(), model.fingerprint()
    assert EvermindLMLoRA.load_adapter(model, data, base_fingerprint=base).adapter.rank == 4
    with pytest.raises(ConfigMismatchError, match="the adapter was trained on base"):
        EvermindLMLoRA.load_adapter(other, data, base_fingerprint=base)
    EvermindLMLoRA.load_adapter(other, data, base_fingerprint=base, force=True)
    with pytest.warns(UserWarning, match="only its shape was checked"):
        EvermindLMLoRA.load_adapter(other, data)
    model.dispose()
    other.dispose()


@pytest.mark.parametrize("rank", [33, 64, 0, -1, 1.5])
def test_tr14_ranks_that_do_not_fit_are_refused_in_create_and_load(rank: float) -> None:
    assert LoRAAdapter(32, 32, rank=32).rank == 32
    message = r"rank 33 exceeds min\(in 32, out 32\)" if rank == 33 else "rank"
    with pytest.raises(InvalidArgumentError, match=message):
        LoRAAdapter(32, 32, rank=rank)  # type: ignore[arg-type]
    if rank in (33, 0):
        data = bytearray(LoRAAdapter(32, 32, rank=1).serialize())
        data[12] = int(rank)
        data = data[:20] + bytes(4 * int(rank) * 64)
        with pytest.raises((InvalidArgumentError, FormatError), match="rank"):
            LoRAAdapter.deserialize(bytes(data))


def test_tr15_scale_and_outputs_survive_the_file(cpu: Backend) -> None:
    model = make_model(cpu, CASE)
    lora = trained(model, rank=8, alpha=16)
    again = EvermindLMLoRA.load_adapter(model, lora.serialize_adapter(), base_fingerprint=model.fingerprint())
    assert again.adapter.scale == 2.0
    assert again.forward([1, 2, 3]).tobytes() == lora.forward([1, 2, 3]).tobytes()


def test_tr17_merging_into_a_quantised_base_stays_float(cpu: Backend) -> None:
    """A delta of 0.004 on an int8 row of scale 0.01 would vanish if the sum were rounded to int8 again."""
    model = make_model(cpu, CASE)
    emb = np.zeros((37, 12), np.float32)
    emb[0, 0] = 1.27
    model.set_parameter("token_embedding.weight", emb)
    lora = EvermindLMLoRA(model, rank=1, base_quant="int8")
    lora.adapter.B[...], lora.adapter.A[...] = 1.0, 0.004
    lora.merge()
    merged = model.parameters()[0].data
    assert merged[5] == pytest.approx(np.full(12, 0.004), abs=1e-6)
    assert merged[0, 0] == pytest.approx(1.274, abs=1e-6)
    assert not quantize_base(np.full((2, 2), 0.004, np.float32) * [[1, 1], [1, 317.5]], "int8").view[0, 0]


@pytest.mark.parametrize("mode", ["none", "fp16", "int8"])
def test_bases_of_each_storage_train(mode: str, backend: Backend) -> None:
    model = make_model(backend, CASE)
    lora = EvermindLMLoRA(model, rank=4, base_quant=mode)
    losses = lora.fit(CASE.sequences(), epochs=4, lr=0.05)
    assert losses[-1] < losses[0]
    base = quantize_base(model.parameters()[0].data, mode).view
    delta = asyncio.run(lora.merged_emb_async()) - lora.adapter.delta()
    assert delta == pytest.approx(base, rel=0, abs=1e-5)
    lora.dispose()
    model.dispose()


def test_an_unknown_storage_is_refused(cpu: Backend) -> None:
    with pytest.raises(InvalidArgumentError, match="base_quant must be one of none, fp16, int8"):
        EvermindLMLoRA(make_model(cpu, CASE), base_quant="int4")
