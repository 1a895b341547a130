"""Saving where training stands, and going on from there."""

from __future__ import annotations

import json
import struct
from functools import partial
from typing import Any

import numpy as np
import pytest

from evermind_web import EvermindLM, EvermindLMTrainer
from evermind_web.backend.base import Backend
from evermind_web.errors import ConfigMismatchError, FormatError
from evermind_web.training import StepInfo
from tests.training.test_options import V, small, texts, weights

OPTIONS: dict[str, Any] = {"lr": 0.02, "epochs": 2, "accum_steps": 2, "lr_scheduler_type": "cosine", "dropout": 0.1}


def interrupted(stop_after: int, **options: Any) -> tuple[bytes, EvermindLMTrainer]:
    """The state after `stop_after` steps of the run that OPTIONS describe."""
    trainer = EvermindLMTrainer(small(), **OPTIONS, **options)
    trainer.fit(texts(), lambda s: trainer.stop() if s.step == stop_after else None)
    return trainer.save_state(), trainer


@pytest.mark.parametrize("stop_after", [1, 3, 4, 7])
@pytest.mark.parametrize("mixed", [False, {"init_scale": 8.0, "growth_interval": 3}])
def test_tr8_resumed_training_is_bit_equal(stop_after: int, mixed: bool | dict[str, float]) -> None:
    whole = EvermindLMTrainer(small(), **OPTIONS, mixed_precision=mixed)
    history = whole.fit(texts())
    data, _ = interrupted(stop_after, mixed_precision=mixed)
    second = EvermindLMTrainer(EvermindLM(V, 12, 2, 3, 16, 4, 2, seed=77), **OPTIONS, mixed_precision=mixed)
    second.load_state(data)
    assert second.fit(texts(), resume=True) == history
    assert np.array_equal(weights(second.model), weights(whole.model))
    assert second.loss_scaler.state() == whole.loss_scaler.state()


def test_stop_and_resume_in_the_same_trainer() -> None:
    whole = EvermindLMTrainer(small(), **OPTIONS)
    history = whole.fit(texts())
    _, trainer = interrupted(3)
    assert trainer.fit(texts(), resume=True) == history
    assert np.array_equal(weights(trainer.model), weights(whole.model))


def stop_at(trainer: EvermindLMTrainer, step: int, info: StepInfo) -> None:
    if info.step == step:
        trainer.stop()


# The second evaluation of six is the best one.
EVALUATED: dict[str, Any] = {"lr": 0.1, "epochs": 3, "accum_steps": 2, "eval_every": 2}


@pytest.mark.parametrize("patience", [0, 2])
@pytest.mark.parametrize("through_a_file", [False, True])
def test_a_stop_after_a_worse_evaluation_forgets_neither_the_place_nor_the_best(
    patience: int, through_a_file: bool
) -> None:
    held_out, losses = texts(3, seed=9), list[float]()
    whole = EvermindLMTrainer(small(), **EVALUATED, patience=patience)
    history = whole.fit(texts(), validation=held_out, on_eval=lambda e: losses.append(e.loss))
    assert losses.index(min(losses)) < len(losses) - 1, "the run must end with weights that are not the last ones"
    checked = 0
    for stop_after in range(2, 2 * len(losses)):
        part = EvermindLMTrainer(small(), **EVALUATED, patience=patience)
        part.fit(texts(), partial(stop_at, part, stop_after), validation=held_out)
        best = min(losses[: stop_after // 2])
        if best < losses[stop_after // 2 - 1]:  # the model has the best weights, and its place is another one
            assert part.model.evaluate(held_out) == pytest.approx(best)
            checked += 1
        if through_a_file:
            data, part = part.save_state(), EvermindLMTrainer(small(), **EVALUATED, patience=patience)
            part.load_state(data)
        assert part.fit(texts(), validation=held_out, resume=True) == history
        assert np.array_equal(weights(part.model), weights(whole.model))
    assert checked >= 1


def test_what_is_kept_of_a_stopped_fit_is_given_back() -> None:
    trainer, held_out = EvermindLMTrainer(small(), **EVALUATED), texts(3, seed=9)
    live, counts = trainer.backend._arrays, list[int]()  # type: ignore[attr-defined]
    trainer.fit(texts(), validation=held_out)
    for _ in range(2):
        counts.append(len(live))
        trainer.fit(texts(), lambda s: trainer.stop() if s.step == 6 else None, validation=held_out)
        assert len(live) > counts[0]
        trainer.fit(texts(), validation=held_out)
    trainer.fit(texts(), lambda s: trainer.stop() if s.step == 6 else None, validation=held_out)
    trainer.dispose()
    assert counts[0] == counts[1] > len(live)


def test_tr8_a_weights_only_file_says_that_it_starts_fresh() -> None:
    source = small()
    trainer = EvermindLMTrainer(EvermindLM(V, 12, 2, 3, 16, 4, 2, seed=77), **OPTIONS)
    trainer.fit(texts(2))
    with pytest.warns(UserWarning, match="no optimizer state; starting fresh at step 0"):
        trainer.load_state(source.export_weights())
    fresh = EvermindLMTrainer(small(), **OPTIONS)
    assert trainer.fit(texts()) == fresh.fit(texts())


def test_a_state_of_another_model_is_refused_and_nothing_changes() -> None:
    data, _ = interrupted(2)
    other = EvermindLM(V + 1, 12, 2, 3, 16, 4, 2)
    before = weights(other).copy()
    with pytest.raises(ConfigMismatchError, match="training state is of a model"):
        EvermindLMTrainer(other).load_state(data)
    assert np.array_equal(weights(other), before)


def damaged(kind: str, data: bytes) -> bytes:
    size = struct.unpack("<Q", data[:8])[0]
    if kind == "flipped bit":
        return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]
    if kind == "cut":
        return data[:-8]
    header = json.loads(data[8 : 8 + size])
    manifest = json.loads(header["__metadata__"]["manifest"])
    if kind == "version":
        manifest["version"] = 2
    if kind == "position":
        manifest["position"] = {"somewhere": 3}
    header["__metadata__"] = {} if kind == "no manifest" else {"manifest": json.dumps(manifest)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data[8 + size :]


@pytest.mark.parametrize("kind", ["flipped bit", "cut", "version", "position", "no manifest"])
def test_damaged_states_are_refused_and_nothing_changes(kind: str) -> None:
    data, _ = interrupted(2)
    trainer = EvermindLMTrainer(EvermindLM(V, 12, 2, 3, 16, 4, 2, seed=77), **OPTIONS)
    before = weights(trainer.model).copy()
    with pytest.raises(FormatError):
        trainer.load_state(damaged(kind, data))
    assert np.array_equal(weights(trainer.model), before)
    trainer.load_state(data)


def test_tr8_resumed_training_on_each_backend(backend: Backend) -> None:
    """Bit-equal on NumPy; on a GPU within 1e-5 of the largest weight, though its steps repeat to the bit as well."""

    def trainer(seed: int) -> EvermindLMTrainer:
        return EvermindLMTrainer(EvermindLM(V, 12, 2, 3, 16, 4, 2, seed=seed, backend=backend), **OPTIONS)

    whole = trainer(5)
    history = whole.fit(texts())
    first = trainer(5)
    first.fit(texts(), lambda s: first.stop() if s.step == 3 else None)
    second = trainer(77)
    second.load_state(first.save_state())
    assert second.fit(texts(), resume=True) == pytest.approx(history, rel=1e-5)
    found, expected = weights(second.model), weights(whole.model)
    if backend.name == "numpy":
        assert np.array_equal(found, expected)
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
