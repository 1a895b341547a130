"""Dropout whose draws depend on seed, step and place alone, so that a recompute draws the same (TR9)."""

from __future__ import annotations

import numpy as np
import pytest

from evermind_web.backend.base import Array, Backend
from evermind_web.backend.reference.noise import dropout
from tests.cases import OpCase, op_cases
from tests.operands import noise_words
from tests.ops.checks import agree


@pytest.mark.parametrize("case", op_cases("dropout"), ids=str)
def test_kernel_agrees(cpu: Backend, gpu: Backend, case: OpCase) -> None:
    agree(cpu, gpu, case)


def ones_after(**words: int) -> Array:
    """100x100 ones after dropout of 0.3."""
    x = np.ones((100, 100))
    dropout(noise_words(**{"seed": 1, "step": 1, "salt": 0, "threshold": int(0.3 * 2**32)} | words), x)
    return x


def test_tr9_the_same_place_draws_the_same_and_others_differ() -> None:
    first = ones_after()
    assert (ones_after() == first).all()
    for other in ({"seed": 2}, {"step": 2}, {"salt": 1}):
        assert 0.3 < (ones_after(**other) != first).mean() < 0.55


def test_share_and_scale() -> None:
    x = ones_after()
    assert (x == 0).mean() == pytest.approx(0.3, abs=0.02)
    assert x[x > 0] == pytest.approx(1 / 0.7)
    assert (ones_after(threshold=0) == 1).all()
