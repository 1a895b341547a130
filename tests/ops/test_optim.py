"""Gradient statistics and AdamW on flat vectors: skipping (GP8), eps (TR6), decay by kind of tensor (TR7)."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from evermind_web.backend.base import Backend
from evermind_web.backend.reference.optim import adamw
from tests.cases import OpCase, op_cases
from tests.operands import hyper
from tests.ops.checks import agree, call
from tests.parity import run_op


@pytest.mark.parametrize("case", op_cases("grad_stats", "adamw"), ids=str)
def test_kernel_agrees(cpu: Backend, gpu: Backend, case: OpCase) -> None:
    agree(cpu, gpu, case)


NOTED = {f"{case.op} {case.note}": case for case in op_cases("grad_stats", "adamw") if case.note}


@pytest.mark.parametrize(
    ("case", "flag"),
    [("gp8-nan", 1), ("gp8-inf", 1), ("gp8-minus-inf", 1), ("overflows-half", 1), ("largest-half", 0), ("scaled", 0)],
)
def test_gp8_not_finite_is_flagged(backend: Backend, case: str, flag: int) -> None:
    assert asyncio.run(run_op(backend, NOTED[f"grad_stats {case}"]))["stats"][1] == flag


def test_gp8_a_flagged_step_changes_no_bit(backend: Backend) -> None:
    case = NOTED["adamw gp8-skipped"]
    after, before = asyncio.run(run_op(backend, case)), case.operands()
    assert {name: array.tobytes() for name, array in after.items()} == {n: before[n].tobytes() for n in after}


def step(g: list[float], p: list[float], group: float, **scalars: float) -> np.ndarray:
    """One step from zero moments, in float32; padded to a block."""
    drawn = {"g": np.zeros(64, np.float32), "p": np.zeros(64, np.float32)}
    drawn["g"][: len(g)], drawn["p"][: len(p)] = g, p
    m, v = np.zeros(64, np.float32), np.zeros(64, np.float32)
    first = {"bias_correction1": 1 - 0.9, "bias_correction2": 1 - 0.999}
    adamw(
        drawn["g"],
        np.array([group], np.float32),
        hyper(**first | scalars),
        np.zeros(2, np.float32),
        drawn["p"],
        m,
        v,
        0,
    )
    return drawn["p"][: len(p)]


def test_first_step_moves_by_lr_against_the_sign() -> None:
    moved = step([3.0, -0.002], [1.0, 1.0], 0, lr=0.01)
    assert moved == pytest.approx([0.99, 1.01], abs=1e-6)


def test_tr6_zero_gradient_is_only_decay() -> None:
    assert step([0.0], [2.0], 1, lr=0.01, weight_decay=0.5) == pytest.approx([2 - 0.01 * 0.5 * 2], rel=1e-7)


def test_tr7_gains_are_not_decayed() -> None:
    assert step([0.0], [1.0], 0, lr=1e-3, weight_decay=0.1)[0] == 1.0
    assert step([0.0], [1.0], 1, lr=1e-3, weight_decay=0.1) == pytest.approx([0.9999], rel=1e-7)


def test_tensors_left_alone_do_not_move() -> None:
    assert step([5.0], [1.0], -1, lr=0.1, weight_decay=0.1)[0] == 1.0


def test_clipping_scales_the_whole_gradient(backend: Backend) -> None:
    case = NOTED["adamw clipped"]
    drawn = case.operands()
    m = asyncio.run(run_op(backend, case))["m"]
    alone = np.repeat(drawn["group"], 64) == -1
    want = 0.9 * drawn["m"] + 0.1 * drawn["g"] * (0.5 / 2.0)
    assert m[~alone] == pytest.approx(want[~alone], abs=1e-6)
    assert m[alone].tolist() == drawn["m"][alone].tolist()


def test_statistics_of_known_values() -> None:
    drawn = {"g": np.array([3.0, 4.0] + [0.0] * 62), "hyper": hyper(inv_grad_scale=0.5).astype(np.float64)}
    assert call("grad_stats", drawn, half=0, add=0)[0].tolist() == [6.25, 0.0]
