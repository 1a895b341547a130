"""Threads on one model: an attack found that passes of two threads wrote into the same buffers, without an error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import evermind_web as ew

IDS = [[(7 * text + 3 * i) % 260 for i in range(10)] for text in range(6)]


def small() -> ew.EvermindLM:
    return ew.EvermindLM(260, 16, 2, 3, 16, 4, 2, seed=1)


@pytest.fixture(autouse=True)
def _eager() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_that_share_a_model_each_get_their_own_numbers() -> None:
    model = small()

    def numbers(text: int) -> tuple[bytes, float, list[int]]:
        logits, loss = model.forward(IDS[text]), model.evaluate([IDS[text]])
        return logits.tobytes(), loss, model.generate(IDS[text], max_new_tokens=3, temperature=0.8)

    wanted = [numbers(text) for text in range(len(IDS))]
    with ThreadPoolExecutor(len(IDS)) as threads:
        for found in [threads.submit(numbers, text) for text in range(len(IDS)) for _ in range(15)]:
            assert found.result() in wanted
        assert [*threads.map(numbers, range(len(IDS)))] == wanted


def test_a_fit_in_one_thread_is_not_disturbed_by_readers_in_others() -> None:
    alone, shared = small(), small()
    losses = ew.EvermindLMTrainer(alone, epochs=4).fit(IDS)
    before, after = small().forward(IDS[0]), alone.forward(IDS[0])
    with ThreadPoolExecutor(4) as threads:
        fit = threads.submit(ew.EvermindLMTrainer(shared, epochs=4).fit, IDS)
        seen = [threads.submit(shared.forward, IDS[0]) for _ in range(20)]
        assert fit.result() == losses
        for logits in seen:
            assert any(np.array_equal(logits.result(), whole) for whole in (before, after))  # never half-way through
    assert shared.export_weights() == alone.export_weights()
