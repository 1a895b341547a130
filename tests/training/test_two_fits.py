"""One fit at a time writes to a model: another one says so, and the running one is not harmed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

import evermind_web as ew
from evermind_web import limbic
from evermind_web.errors import InvalidArgumentError

SEQUENCES = [[5, 6, 7, 8, 9], [9, 8, 7, 6], [1, 2, 3], [4, 3, 2, 1]]
IN_A_FIT = "is in a fit already: wait for its end, or stop it"


def small() -> ew.EvermindLM:
    return ew.EvermindLM(16, 8, 1, 2, 8, 2, 1, seed=1)


def trainer(model: ew.EvermindLM) -> ew.EvermindLMTrainer:
    return ew.EvermindLMTrainer(model, epochs=2)


async def together(*fits: Coroutine[Any, Any, Any]) -> list[Any]:
    return await asyncio.gather(*fits, return_exceptions=True)


def alone() -> tuple[list[float], bytes]:
    model = small()
    return trainer(model).fit(SEQUENCES), model.export_weights()


async def test_of_two_fits_side_by_side_the_second_is_refused_and_the_first_is_as_if_alone() -> None:
    model = small()
    first, second = trainer(model), trainer(model)
    losses, refused = await together(first.fit_async(SEQUENCES), second.fit_async(SEQUENCES))
    assert isinstance(refused, InvalidArgumentError)
    assert IN_A_FIT in str(refused)
    assert (losses, model.export_weights()) == alone()
    assert second.fit(SEQUENCES)  # it may, now that the first has ended


@pytest.mark.parametrize("again", ["the same trainer", "another trainer", "an adapter", "several adapters"])
def test_a_fit_within_a_callback_of_another_is_refused(again: str) -> None:
    model = small()
    running = trainer(model)
    adapted = ew.LoraModel(model)
    adapted.add_adapter("a", ew.LoraConfig(r=2))
    calls: dict[str, Callable[[], Any]] = {
        "the same trainer": lambda: running.fit(SEQUENCES),
        "another trainer": lambda: trainer(model).fit(SEQUENCES),
        "an adapter": lambda: ew.EvermindLMLoRA(model, 2).fit(SEQUENCES),
        "several adapters": lambda: adapted.fit(SEQUENCES),
    }
    refused = []

    def on_step(info: ew.StepInfo) -> None:
        with pytest.raises(InvalidArgumentError, match=IN_A_FIT):
            calls[again]()
        refused.append(info.step)

    losses = running.fit(SEQUENCES, on_step)
    assert refused == list(range(1, 9))
    assert (losses, model.export_weights()) == alone()


@pytest.mark.parametrize("writes", ["load_state", "load_weights", "load_packed", "load_delta", "set_parameter"])
def test_nothing_is_loaded_into_a_model_in_a_fit(writes: str) -> None:
    model = small()
    running, data = trainer(model), model.export_weights()
    state, delta, packed = running.save_state(), model.export_delta(data), np.zeros(model.num_parameters, np.float32)
    calls: dict[str, Callable[[], None]] = {
        "load_state": lambda: running.load_state(state),
        "load_weights": lambda: model.load_weights(data),
        "load_packed": lambda: model.load_packed(packed),
        "load_delta": lambda: model.load_delta(data, delta),
        "set_parameter": lambda: model.set_parameter("layers.0.norm_conv.weight", np.ones(8, np.float32)),
    }

    def on_step(_: ew.StepInfo) -> None:
        with pytest.raises(InvalidArgumentError, match=IN_A_FIT):
            calls[writes]()

    assert (running.fit(SEQUENCES, on_step), model.export_weights()) == alone()
    calls[writes]()  # it may, now that the fit has ended
    assert ew.EvermindLMLoRA(model, 2).fit(SEQUENCES, on_step=on_step)  # which reads what this would overwrite


async def test_the_base_of_a_running_adapter_is_not_trained_and_two_adapters_of_it_are() -> None:
    model = small()
    one, other = (ew.EvermindLMLoRA(model, 2, seed=seed) for seed in (1, 2))
    first, second, refused = await together(
        one.fit_async(SEQUENCES), other.fit_async(SEQUENCES), trainer(model).fit_async(SEQUENCES)
    )
    assert isinstance(refused, InvalidArgumentError)
    expected = [ew.EvermindLMLoRA(small(), 2, seed=seed).fit(SEQUENCES) for seed in (1, 2)]
    assert [first, second] == expected
    assert trainer(model).fit(SEQUENCES) == alone()[0]


async def test_a_fit_that_fails_leaves_the_model_free() -> None:
    model = small()
    with pytest.raises(InvalidArgumentError, match="at least 2 tokens"):
        await trainer(model).fit_async([[1]])
    with pytest.raises(ZeroDivisionError):
        await trainer(model).fit_async(SEQUENCES, lambda _: 1 // 0)  # type: ignore[arg-type,return-value]
    assert trainer(model).fit(SEQUENCES)


def test_a_mixture_and_a_mood_are_trained_by_one_at_a_time() -> None:
    mixture, mood = ew.SharedExpertMoE(4, 4, 2, 1), limbic.LimbicModel(4, 4)
    pairs = [([0.1] * 4, [0.2] * 4)]
    samples = [([0.1] * 4, [0.5] * 8, [0.1] * 8, 0.5)]
    with mixture.fitting(), pytest.raises(InvalidArgumentError, match=IN_A_FIT):
        ew.MoETrainer(mixture).fit(pairs)
    trainer = limbic.LimbicTrainer(mood)

    def on_epoch_end(*_: float) -> None:
        with pytest.raises(InvalidArgumentError, match=IN_A_FIT):
            trainer.train(samples)

    assert len(trainer.train(samples, epochs=2, on_epoch_end=on_epoch_end)) == 2
    assert ew.MoETrainer(mixture).fit(pairs)


@pytest.mark.parametrize("writes", ["merge", "merge_adapter", "unmerge_adapter"])
def test_nothing_is_merged_into_a_model_in_a_fit(writes: str) -> None:
    model = small()
    lora, adapted = ew.EvermindLMLoRA(model, 2), ew.LoraModel(model)
    adapted.add_adapter("a", ew.LoraConfig(r=2))
    if writes == "unmerge_adapter":
        adapted.merge_adapter()
    before = model.export_weights()

    def on_step(_: ew.StepInfo) -> None:
        with pytest.raises(InvalidArgumentError, match=IN_A_FIT):
            {"merge": lora.merge, "merge_adapter": adapted.merge_adapter, "unmerge_adapter": adapted.unmerge_adapter}[
                writes
            ]()

    ew.EvermindLMLoRA(model, 2, seed=3).fit(SEQUENCES, on_step=on_step)
    assert model.export_weights() == before
