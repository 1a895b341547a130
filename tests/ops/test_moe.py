"""Mixture of experts: routing with ties (TR11), the gradient, the layout of what is kept."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import numpy as np
import pytest

from evermind_web import ops
from evermind_web.backend.base import Backend
from evermind_web.backend.reference.moe import softmax
from tests.cases import OpCase, op_cases
from tests.finite_differences import frozen_routing
from tests.ops.checks import agree, call, check_gradients, doubles
from tests.parity import run_op


@pytest.mark.parametrize("case", op_cases("moe_fwd", "moe_bwd"), ids=str)
def test_kernel_agrees(cpu: Backend, gpu: Backend, case: OpCase) -> None:
    agree(cpu, gpu, case)


@pytest.mark.parametrize("case", op_cases("moe_bwd"), ids=str)
def test_gradient(case: OpCase) -> None:
    drawn = doubles(case)
    drawn |= {"a": np.zeros_like(drawn["m"]), "noise": np.zeros(ops.NOISE_SIZE, np.int32)}
    names = ("out", "experts", "gates", "probs", "order", "inverse", "starts", "hidden")
    with frozen_routing() as restart:
        kept = dict(zip(names, call("moe_fwd", drawn, **case.scalars), strict=True))
        dm, dW = call("moe_bwd", drawn | kept, **case.scalars)

        def value() -> tuple[float, bytes]:
            restart()
            out, *_, hidden = call("moe_fwd", drawn, **case.scalars)
            return float(np.sum(out * drawn["dy"])), np.packbits(hidden > 0).tobytes()

        check_gradients(value, drawn, [("m", dm), ("W", dW)], case)


@pytest.mark.parametrize("case", op_cases("moe_fwd"), ids=str)
def test_what_is_kept_is_consistent(case: OpCase, cpu: Backend) -> None:
    """The relations that backward kernels rely on; `gates` and `probs` are distributions."""
    kept = asyncio.run(run_op(cpu, case))
    n, k, experts = case.sizes["N"], case.sizes["k"], case.sizes["E"]
    chosen, order, starts = kept["experts"].ravel(), kept["order"], kept["starts"]
    assert sorted(order.tolist()) == list(range(n * k))
    assert kept["inverse"][order].tolist() == list(range(n * k))
    assert starts.tolist() == [int((chosen < e).sum()) for e in range(experts + 1)]
    assert (np.diff(chosen[order]) >= 0).all()
    assert all((np.diff(order[a:b]) > 0).all() for a, b in pairwise(starts))
    assert all(len(set(row)) == k for row in kept["experts"].tolist())
    assert kept["gates"].sum(axis=1) == pytest.approx(1, abs=1e-6)
    assert kept["probs"].sum(axis=1) == pytest.approx(1, abs=1e-6)
    assert (np.diff(kept["gates"], axis=1) <= 0).all()


@pytest.mark.parametrize("case", op_cases("balance_bwd"), ids=str)
def test_balance_kernel_agrees(cpu: Backend, gpu: Backend, case: OpCase) -> None:
    agree(cpu, gpu, case)


@pytest.mark.parametrize("case", [c for c in op_cases("balance_bwd") if c.sizes["E"] > 1], ids=str)
def test_balance_gradient(case: OpCase) -> None:
    """Of Σ_n balance[n] Σ_e f[e] probs[n,e], the shares f of the scored rows' choices held constant."""
    drawn, experts = doubles(case), case.sizes["E"]
    drawn["balance"][0] = 0.1  # one row that counts, whatever was drawn
    router = drawn["W"][: experts * case.sizes["D"]].reshape(experts, -1)
    drawn["probs"] = softmax(drawn["m"] @ router.T)
    chosen = drawn["experts"][drawn["balance"] != 0]
    share = np.bincount(chosen.ravel(), minlength=experts) / chosen.size

    def value() -> tuple[float, bytes]:
        return float(drawn["balance"] @ (softmax(drawn["m"] @ router.T) @ share)), b""

    dm, dW = call("balance_bwd", drawn, **case.scalars)
    if case.sizes["k"] == experts:  # equal shares: nothing to balance
        assert max(np.abs(dm).max(), np.abs(dW).max()) < 1e-12
    else:
        check_gradients(value, drawn, [("m", dm), ("W", dW)], case)


def test_tr11_equal_scores_take_the_lowest_index(backend: Backend) -> None:
    (case,) = [case for case in op_cases("moe_fwd") if case.note == "tr11-ties"]
    kept = asyncio.run(run_op(backend, case))
    assert kept["experts"].tolist() == [[0, 1]] * 65
    assert kept["gates"].tolist() == [[0.5, 0.5]] * 65
