"""One step of the limbic model: the gradient of its loss."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from evermind_web.backend.base import Backend
from evermind_web.backend.numpy_backend import NumpyBackend
from tests.cases import OpCase, op_cases
from tests.ops.checks import agree, call, check_gradients, doubles
from tests.parity import run_op


@pytest.mark.parametrize("case", op_cases("limbic_fwd", "limbic_bwd"), ids=str)
def test_kernel_agrees(cpu: Backend, gpu: Backend, case: OpCase) -> None:
    agree(cpu, gpu, case)


@pytest.mark.parametrize("case", op_cases("limbic_bwd"), ids=str)
def test_gradient(case: OpCase) -> None:
    drawn = doubles(case)
    loss, gradient = call("limbic_bwd", drawn)

    def value() -> tuple[float, bytes]:
        _, delta, reward = call("limbic_fwd", drawn)
        targets, weight = drawn["targets"], drawn["targets"][:, -1]
        squares = np.square(delta - targets[:, :-2]).sum(axis=1)
        return float(0.5 * weight @ (squares + drawn["reward_weight"][0] * np.square(reward - targets[:, -2]))), b""

    assert value()[0] == pytest.approx(float(loss[0]), rel=1e-12)
    check_gradients(value, drawn, [("W", gradient)], case)


def test_hidden_stays_between_old_state_and_1() -> None:
    case = op_cases("limbic_fwd")[1]
    out, drawn = asyncio.run(run_op(NumpyBackend(), case)), case.operands()
    low, high = np.minimum(drawn["h"], -1), np.maximum(drawn["h"], 1)
    assert ((low <= out["hidden"]) & (out["hidden"] <= high)).all()
    assert np.abs(out["delta"]).max() < 1
