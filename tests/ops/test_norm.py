"""RMSNorm and its gradient."""

from __future__ import annotations

import numpy as np
import pytest

from evermind_web.backend.base import Backend
from tests.cases import OpCase, op_cases
from tests.ops.checks import agree, call, check_gradients, doubles


@pytest.mark.parametrize("case", op_cases("rmsnorm_fwd", "rmsnorm_bwd"), ids=str)
def test_kernel_agrees(cpu: Backend, gpu: Backend, device: Backend, case: OpCase) -> None:
    agree(cpu, device, case)


@pytest.mark.parametrize("case", op_cases("rmsnorm_bwd"), ids=str)
def test_gradient(case: OpCase) -> None:
    drawn = doubles(case)
    if case.note == "zero-row":
        drawn["x"][1] = 0.5  # at 0 the norm curves over a length of sqrt(1e-5): too sharply for the step
    _, drawn["rstd"] = call("rmsnorm_fwd", drawn)
    dx, dg = call("rmsnorm_bwd", drawn)

    def value() -> tuple[float, bytes]:
        y, _ = call("rmsnorm_fwd", drawn)
        return float(np.sum(y * drawn["dy"])), b""

    check_gradients(value, drawn, [("x", dx), ("g", dg)], case)


def test_a_row_of_zeros_stays_zero() -> None:
    drawn = {"x": np.zeros((2, 3)), "g": np.ones(3), "dy": np.ones((2, 3))}
    y, drawn["rstd"] = call("rmsnorm_fwd", drawn)
    assert not y.any()
    assert drawn["rstd"] == pytest.approx(1e5**0.5)
    dx, dg = call("rmsnorm_bwd", drawn)
    assert dx == pytest.approx(1e5**0.5)
    assert not dg.any()
