"""A base that is trained, loaded or merged into while adapters lie on it: nothing is computed with what it was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from evermind_web import EvermindLM, EvermindLMLoRA, EvermindLMTrainer, LoraConfig, LoraModel
from evermind_web.backend.base import Backend
from evermind_web.errors import InvalidArgumentError

V, D = 30, 6
RNG = np.random.default_rng(0)
TEXTS = [RNG.integers(0, V, 9).tolist() for _ in range(6)]
OTHER = EvermindLM(V, d_model=D, hidden_dim=D, seed=9, backend="numpy").export_weights()
ALL = ("all-linear", "conv", "router")
CHANGES: dict[str, Callable[[EvermindLM], Any]] = {
    "trained": lambda model: EvermindLMTrainer(model, lr=0.05).fit(TEXTS),
    "loaded": lambda model: model.load_weights(OTHER),
    "set": lambda model: [model.set_parameter(p.name, p.data + 0.1) for p in model.parameters()],
    "merged into": lambda model: learned(model, "none", ALL, seed=8).merge_adapter(),
}


def fresh(backend: Backend | str) -> EvermindLM:
    return EvermindLM(V, d_model=D, hidden_dim=D, backend=backend)


def learned(model: EvermindLM, quant: str, targets: tuple[str, ...], seed: int = 7) -> LoraModel:
    adapted = LoraModel(model, quant)
    adapted.add_adapter("a", LoraConfig(r=2, target_modules=targets, seed=seed))
    adapted.fit(TEXTS, lr=0.05, epochs=2)
    return adapted


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("quant", "targets"), [("none", ALL), ("int8", ("token_embedding",))])
def test_adapters_lie_on_the_base_as_it_is_now(
    change: str, quant: str, targets: tuple[str, ...], backend: Backend
) -> None:
    model = fresh(backend)
    adapted, files = learned(model, quant, targets), {}
    files = adapted.save_adapter("a")
    before = adapted.forward(TEXTS[0])
    CHANGES[change](model)
    again = LoraModel(EvermindLM.from_checkpoint(model.export_weights(), backend), quant)
    again.load_adapter("a", files, force=True)
    assert not np.array_equal(adapted.forward(TEXTS[0]), before)
    assert np.array_equal(adapted.forward(TEXTS[0]), again.forward(TEXTS[0]))
    assert adapted.merge() == again.merge()


def test_a_single_adapter_packs_a_changed_base_again() -> None:
    model = fresh("numpy")
    lora = EvermindLMLoRA(model, rank=2, base_quant="int8")
    lora.forward(TEXTS[0])
    model.load_weights(OTHER)
    again = EvermindLMLoRA(model, rank=2, base_quant="int8")
    assert np.array_equal(lora.forward(TEXTS[0]), again.forward(TEXTS[0]))
    assert np.array_equal(lora.merged_emb(), again.merged_emb())
    lora.fit(TEXTS, lr=0.05)
    merged = lora.merge()
    assert lora.merge() == merged  # what it wrote itself is no new base


@pytest.mark.parametrize("change", CHANGES)
def test_a_merge_is_not_undone_into_another_base(change: str) -> None:
    model = fresh("numpy")
    base, adapted = model.export_weights(), learned(model, "none", ALL)
    adapted.merge_adapter()
    changed = (CHANGES[change](model), model.export_weights())[1]
    with pytest.raises(InvalidArgumentError, match="would mix two models"):
        adapted.unmerge_adapter()
    assert model.export_weights() == changed
    assert changed != base


async def test_one_fit_at_a_time() -> None:
    model = fresh("numpy")
    trainer, lora = EvermindLMTrainer(model, epochs=3), EvermindLMLoRA(model, rank=2)
    for job in (trainer, lora):
        first = asyncio.ensure_future(job.fit_async(TEXTS))  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        with pytest.raises(InvalidArgumentError, match="in a fit already"):
            await job.fit_async(TEXTS)  # type: ignore[attr-defined]
        assert len(await first) >= 1


@pytest.mark.parametrize("size", [-1, 1])
def test_packed_weights_of_another_length_are_refused(size: int) -> None:
    model = fresh("numpy")
    before = model.export_weights()
    for wrong in (np.zeros(model.num_parameters + size, np.float32), np.zeros((model.num_parameters, 1), np.float32)):
        with pytest.raises(InvalidArgumentError, match="packed weights: expected shape"):
            model.load_packed(wrong)
    assert model.export_weights() == before
