"""Depthwise causal convolution over ragged batches, its gradient, and its step by step form (TR3)."""

from __future__ import annotations

import numpy as np
import pytest

from evermind_web.backend.base import Backend
from evermind_web.backend.reference.conv import conv_step
from tests.cases import OpCase, op_cases
from tests.ops.checks import agree, call, check_gradients, doubles


@pytest.mark.parametrize("case", op_cases("conv_fwd", "conv_norm_fwd", "conv_bwd", "conv_step"), ids=str)
def test_kernel_agrees(cpu: Backend, gpu: Backend, device: Backend, case: OpCase) -> None:
    agree(cpu, device, case)


@pytest.mark.parametrize("case", op_cases("conv_bwd"), ids=str)
def test_gradient(case: OpCase) -> None:
    drawn = doubles(case)
    drawn["x"] = np.zeros_like(drawn["n"])
    dn, dw = call("conv_bwd", drawn)

    def value() -> tuple[float, bytes]:
        (a,) = call("conv_fwd", drawn)
        return float(np.sum(a * drawn["da"])), b""

    if not dw.any(axis=0).all():  # fewer rows than taps: those taps reach nothing, and their gradient is 0
        assert len(drawn["n"]) < case.sizes["K"]
    check_gradients(value, drawn, [("n", dn), ("w", dw)], case)


def test_no_look_ahead_and_no_look_into_another_sequence() -> None:
    rng = np.random.default_rng(1)
    drawn = {
        "x": np.zeros((6, 2)),
        "n": rng.random((6, 2)),
        "w": rng.random((2, 3)),
        "pos": np.array([0, 1, 2, 0, 1, 2]),
    }
    (before,) = call("conv_fwd", drawn)
    drawn["n"][2] += 1  # the last row of the first sequence
    (after,) = call("conv_fwd", drawn)
    assert np.flatnonzero((before != after).any(axis=1)).tolist() == [2]


@pytest.mark.parametrize("taps", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_tr3_steps_equal_the_whole_sequence(taps: int, length: int) -> None:
    rng = np.random.default_rng(taps * 10 + length)
    whole = {
        "x": rng.standard_normal((length, 5)),
        "n": rng.standard_normal((length, 5)),
        "w": rng.standard_normal((5, taps)),
        "pos": np.arange(length),
    }
    (want,) = call("conv_fwd", whole)
    state = np.zeros((1, max(taps - 1, 1), 5))
    for t in range(length):
        a = np.empty((1, 5))
        conv_step(whole["x"][t : t + 1], whole["n"][t : t + 1], whole["w"], a, state)
        assert a[0] == pytest.approx(want[t], rel=1e-12)
