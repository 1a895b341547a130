"""The tied head: logits, cross-entropy and its gradient; rows that do not count (TR2); large logits (GP9)."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from evermind_web.backend.base import Backend
from evermind_web.ops import IGNORE
from tests.cases import OpCase, op_cases
from tests.ops.checks import agree, call, check_gradients, doubles
from tests.parity import run_op


@pytest.mark.parametrize("case", op_cases("head_logits", "head_xent_fwd", "head_xent_bwd"), ids=str)
def test_kernel_agrees(cpu: Backend, gpu: Backend, case: OpCase) -> None:
    agree(cpu, gpu, case)


@pytest.mark.parametrize("case", [c for c in op_cases("head_xent_bwd") if not c.note], ids=str)
def test_gradient(case: OpCase) -> None:
    drawn = doubles(case)
    drawn["targets"][0] = 3  # one row that counts, whatever was drawn
    loss, dx, demb = call("head_xent_bwd", drawn)

    def value() -> tuple[float, bytes]:
        return float(call("head_xent_fwd", drawn)[0][0]), b""

    assert value()[0] == pytest.approx(float(loss[0]), rel=1e-12)
    check_gradients(value, drawn, [("x", dx), ("emb", demb)], case)


def by_note(note: str) -> OpCase:
    return next(case for case in op_cases("head_xent_bwd") if case.note == note)


def test_tr2_nothing_scored_changes_nothing(backend: Backend) -> None:
    case = by_note("nothing-scored")
    before, after = case.operands(), asyncio.run(run_op(backend, case))
    assert after["loss"].tolist() == before["loss"].tolist()
    assert after["demb"].tolist() == before["demb"].tolist()
    assert not after["dx"].any()


def test_rows_of_weight_0_and_ignored_rows_are_as_if_absent() -> None:
    drawn = doubles(op_cases("head_xent_bwd")[2])
    drawn["targets"][:] = np.arange(len(drawn["targets"]))
    drawn["weights"][1], drawn["targets"][2] = 0, IGNORE
    drawn["x"][1:3] = np.nan  # rows that fill up a batch may hold anything
    keep = [i for i in range(len(drawn["x"])) if i not in (1, 2)]
    fewer = drawn | {name: drawn[name][keep] for name in ("x", "targets", "weights")}
    loss, dx, demb = call("head_xent_bwd", drawn)
    for got, want in zip((loss, dx[keep], demb), call("head_xent_bwd", fewer), strict=True):
        assert got == pytest.approx(want, rel=1e-12)
    assert not dx[1:3].any()


def test_gp9_large_logits_stay_finite(backend: Backend) -> None:
    out = asyncio.run(run_op(backend, by_note("gp9-large-logits")))
    assert all(np.isfinite(array).all() for array in out.values())


def test_loss_of_equal_logits_is_the_log_of_their_number() -> None:
    drawn = {"x": np.full((1, 2), 1000.0), "emb": np.ones((2, 2)), "targets": np.array([1]), "weights": np.ones(1)}
    assert call("head_xent_fwd", drawn)[0][0] == pytest.approx(np.log(2))
