"""A model whose vectors are larger than a buffer of the device: cut into parts, it is the same model."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from evermind_web import EvermindLM, EvermindLMTrainer, LoraConfig, LoraModel
from evermind_web.backend.base import Backend
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.errors import BackendError
from evermind_web.flat_vector import FlatVector, part_sizes
from evermind_web.paging import PagedEvermindLM
from evermind_web.training import Snapshot
from tests.counting import CountingBackend
from tests.splits import OPTIONS, SPLITS, Narrow, compare_splits

SHAPE = (37, 12, 2, 3, 20, 4, 2)
MIXTURE = 13_056  # bytes of the largest tensor, or mixture, of this shape
TEXTS = [[1, 2, 3, 4, 5, 6], [6, 5, 4, 3], [12, 11, 10], [36, 8, 9]]
LIMITS = (10**9, 16_384, MIXTURE)  # 1, 2, 4 parts


def small(backend: Backend, nbytes: int, seed: int = 5) -> EvermindLM:
    return EvermindLM(*SHAPE, seed=seed, backend=Narrow(backend, nbytes))


def test_three_steps_are_the_same(backend: Backend) -> None:
    findings = asyncio.run(compare_splits(backend))
    assert findings.problems == []
    assert findings.compared == 3 * len(SPLITS) * len(OPTIONS)


@pytest.mark.parametrize("part", range(4))
def test_gp8_an_overflow_in_one_part_skips_them_all(backend: Backend, part: int) -> None:
    model = small(backend, MIXTURE)
    trainer = EvermindLMTrainer(model)
    before, adam = model.export_weights(), trainer._optimizer()
    gradient = np.ones(model.flat.size, np.float32)
    model.set_hyper(trainer.adamw.hyper(1))
    for bad in (np.inf, np.nan, 1.0):
        gradient[sum(p.size for p in model.flat.parts[: part + 1]) - 1] = bad
        model.flat_grads.write(gradient)
        adam.queue(model.flat_grads, model.hyper)
        stats = asyncio.run(backend.read(adam.stats))[0]
        assert stats[1] == (bad != 1)
        assert (model.export_weights() == before) == (bad != 1)
    assert stats[0] == model.flat.size  # of all parts, and nothing is left of the step before
    trainer.dispose()
    model.dispose()


@pytest.mark.parametrize("there", LIMITS)
@pytest.mark.parametrize("here", LIMITS)
def test_tr8_training_goes_on_under_another_cut(here: int, there: int) -> None:
    options: dict[str, Any] = {"lr": 0.02, "epochs": 3, "accum_steps": 2, "dropout": 0.1}
    whole = EvermindLMTrainer(small(NumpyBackend(), 10**9), **options)
    history = whole.fit(TEXTS)
    first, kept = EvermindLMTrainer(small(NumpyBackend(), here), **options), list[Snapshot]()
    first.fit(TEXTS, lambda s: first.stop() if s.step == 3 else None, on_snapshot=kept.append, snapshot_seconds=0.0)
    assert kept[-1].step == 3
    for way in ("state", "snapshot"):
        second = EvermindLMTrainer(small(NumpyBackend(), there, seed=77), **options)
        if way == "state":
            second.load_state(first.save_state())
        assert second.fit(TEXTS, resume=True if way == "state" else kept[-1]) == history
        assert second.model.export_weights() == whole.model.export_weights()


def test_files_names_and_gradients_are_the_same(backend: Backend) -> None:
    whole, cut = small(backend, 10**9), small(backend, MIXTURE)
    assert [len(model.flat.parts) for model in (whole, cut)] == [1, 4]
    other = small(backend, 16_384, seed=6)
    assert other.fingerprint() != whole.fingerprint() == cut.fingerprint()
    other.load_weights(cut.export_weights())
    other.set_parameter("layers.1.moe.experts.3.b2", np.arange(12))
    whole.set_parameter("layers.1.moe.experts.3.b2", np.arange(12))
    assert other.export_weights(fp16=True) == whole.export_weights(fp16=True)
    base = cut.export_weights()
    cut.load_delta(base, whole.export_delta(base))
    assert cut.fingerprint() == whole.fingerprint()
    for model in (whole, cut):
        model.zero_grad()
        model.loss_and_backward(TEXTS[0])
    for mine, theirs in ((cut.parameters(), whole.parameters()), (cut.gradients(), whole.gradients())):
        assert [p.name for p in mine] == [p.name for p in theirs]
        assert all(np.array_equal(p.data, q.data) for p, q in zip(mine, theirs, strict=True))
    for model in (whole, cut, other):
        model.dispose()


def test_parameters_on_numpy_are_the_memory_itself() -> None:
    backend = NumpyBackend()
    backend.max_buffer_bytes = MIXTURE
    model = EvermindLM(*SHAPE, backend=backend)
    assert len(model.flat.parts) == 4
    for p in model.parameters():
        p.data[...] = 1
    assert sum(p.data.sum() for p in model.parameters()) == model.num_parameters
    assert EvermindLM.from_checkpoint(model.export_weights()).fingerprint() == model.fingerprint()


def test_adapters_and_paging_over_parts(backend: Backend) -> None:
    whole = EvermindLM(*SHAPE, seed=5)
    data, limited = whole.export_weights(), Narrow(backend, MIXTURE)
    lora = LoraModel.from_checkpoint(data, limited)
    assert lora.forward([1, 2, 3]) == pytest.approx(whole.forward([1, 2, 3]), abs=1e-5)
    lora.dispose()
    paged = PagedEvermindLM.open(data, 50_000, Narrow(backend, 2_048))
    assert len(paged._flat.parts) > 1
    assert paged.forward([1, 2, 3]) == pytest.approx(whole.forward([1, 2, 3]), abs=1e-5)
    paged.dispose()
    model = EvermindLM.from_checkpoint(data, limited)
    over = LoraModel(model)
    over.add_adapter("a", LoraConfig(2, target_modules="all-linear"))
    over.fit(TEXTS)
    merged = EvermindLM.from_checkpoint(over.merge())
    assert merged.forward([1, 2, 3]) == pytest.approx(over.forward([1, 2, 3]), abs=1e-4)
    over.dispose()
    model.dispose()


def test_all_memory_is_given_back() -> None:
    backend = CountingBackend(NumpyBackend())
    backend.max_buffer_bytes = MIXTURE
    model = EvermindLM(*SHAPE, backend=backend)
    trainer = EvermindLMTrainer(model, epochs=2)
    trainer.fit(TEXTS, validation=TEXTS[:1])
    trainer.dispose()
    model.dispose()
    assert backend.live == set()


@pytest.mark.parametrize(
    ("nbytes", "what"),
    [
        (MIXTURE - 1, r"layers\.0\.moe needs 13056 bytes in one buffer, limit 13055"),
        (1791, r"token_embedding\.weight needs 1792"),
    ],
)
def test_what_is_too_large_for_a_buffer_is_named_and_nothing_is_made(nbytes: int, what: str) -> None:
    data = EvermindLM(*SHAPE).export_weights()
    backend = CountingBackend(NumpyBackend())
    backend.max_buffer_bytes = nbytes
    with pytest.raises(BackendError, match=what):
        EvermindLM(*SHAPE, backend=backend)
    with pytest.raises(BackendError, match="needs 13056 bytes in one buffer"):
        LoraModel.from_checkpoint(data, backend)
    backend.max_buffer_bytes = 1791
    with pytest.raises(BackendError, match=r"token_embedding\.weight needs 1792 bytes"):
        PagedEvermindLM.open(data, 50_000, backend)
    assert backend.live == set()


def test_parts_are_as_few_as_the_limit_allows() -> None:
    backend = CountingBackend(NumpyBackend())
    units = [("a", 3), ("b", 4), ("c", 1), ("d", 5)]
    found = {}
    for elements in (5, 7, 8, 12, 13):
        backend.max_buffer_bytes = 4 * elements
        found[elements] = part_sizes(units, backend)
    assert found == {5: [3, 5, 5], 7: [7, 6], 8: [8, 5], 12: [8, 5], 13: [13]}
    assert part_sizes([], backend) == []


def test_a_vector_in_parts() -> None:
    vector = FlatVector.alloc(NumpyBackend(), [128, 64, 192])
    vector.write(np.arange(384))
    assert [vector.place(at) for at in (127, 128, 192, 383)] == [
        (vector.parts[0], 127), (vector.parts[1], 0), (vector.parts[2], 0), (vector.parts[2], 191),
    ]  # fmt: skip
    other = vector.like()
    other.copy_from(vector)
    vector.zero()
    assert asyncio.run(other.read()).tolist() == list(range(384))
    assert not asyncio.run(vector.read()).any()
