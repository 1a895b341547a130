"""Central finite differences in float64: what the hand-written backward passes are held to.

The stencil is the four-point one (error of fourth order), so that a step large enough for rounding not to matter is
small enough for curvature not to matter. Routing is frozen to the unperturbed choice, which is what the backward
pass differentiates. Where a pre-activation changes sign within the step the function has a kink: the coordinate is
drawn again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from evermind_web.backend.base import Array
from evermind_web.backend.reference import moe

STEP = 1e-4
RTOL = 1e-6  # of the tensor's largest gradient


@contextmanager
def frozen_routing() -> Iterator[Callable[[], None]]:
    """Inside, the n-th mixture after each `restart()` chooses the experts that the n-th one chose the first time."""
    choices: list[Array] = []
    at = [0]
    original = moe.choose_experts

    def choose(logits: Array, top_k: int) -> Array:
        if at[0] == len(choices):
            choices.append(original(logits, top_k))
        at[0] += 1
        return choices[at[0] - 1]

    def restart() -> None:
        at[0] = 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moe, "choose_experts", choose)
        yield restart


def derivative(function: Callable[[], tuple[float, bytes]], pattern: bytes, array: Array, index: int) -> float | None:
    """d function / d array.flat[index], the array changed in place; None where the pattern changes on the way.

    function: its value, and a pattern that names the smooth piece on which it was taken; pattern: the unperturbed one.
    """
    flat = array.reshape(-1)
    assert np.shares_memory(flat, array)
    before = flat[index]
    values = {}
    try:
        for shift in (-2, 2, -1, 1):
            flat[index] = before + shift * STEP
            values[shift], here = function()
            if here != pattern:
                return None
    finally:
        flat[index] = before
    return (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * STEP)


def gradient_errors(
    function: Callable[[], tuple[float, bytes]],
    tensors: dict[str, tuple[Array, Array]],
    samples: int,
    rng: np.random.Generator,
) -> list[str]:
    """Tensors, by name (values, gradient to check), whose gradient is off by more than RTOL of its largest value.

    `samples` coordinates of each tensor are checked, among them the one with the largest gradient.
    """
    problems = []
    _, pattern = function()
    for name, (array, gradient) in tensors.items():
        largest = float(np.abs(gradient).max())
        order = rng.permutation(array.size)
        order = np.concatenate([[int(np.abs(gradient).argmax())], order[order != np.abs(gradient).argmax()]])
        checked, worst = 0, 0.0
        for index in order:
            value = derivative(function, pattern, array, int(index))
            if value is None:
                continue
            worst = max(worst, abs(value - float(gradient.reshape(-1)[index])))
            checked += 1
            if checked == samples:
                break
        if checked < min(samples, array.size) // 2 or not checked:
            problems.append(f"{name}: only {checked} coordinates away from a kink")
        # an idle expert's gradient is exactly 0, and so is the difference
        if not worst <= RTOL * largest:
            problems.append(f"{name}: error {worst:.3g}, largest gradient {largest:.3g}")
    return problems
