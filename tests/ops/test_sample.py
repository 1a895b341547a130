"""Choosing the next token: temperature from 0 up (SA1), logits that are not finite (SA2)."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from evermind_web.backend.base import Array, Backend
from evermind_web.backend.reference.sample import choose, penalized, stays
from evermind_web.ops import SAMPLING
from tests.cases import OpCase, op_cases
from tests.operands import Edit, Operands, put, sampling
from tests.ops.checks import agree
from tests.parity import run_op


@pytest.mark.parametrize("case", op_cases("sample"), ids=str)
def test_kernel_agrees(cpu: Backend, gpu: Backend, device: Backend, case: OpCase) -> None:
    agree(cpu, device, case)


MARGIN = 1e-4  # of the sum, between a draw and the border of a share: far more than float32 loses


def at_borders(**settings: float) -> Edit:
    """Draws just inside the shares of tokens from the first that stays to the last, at their starts and ends."""

    def edit(drawn: Operands) -> None:
        drawn["sampling"][...] = sampling(**{"temperature": 0.8, **settings})
        s = {name: float(drawn["sampling"][slot]) for name, slot in SAMPLING.items()}
        draws = drawn["draws"].view(np.uint32)
        for row, counts, out in zip(drawn["logits"], drawn["counts"].copy(), draws, strict=True):
            for step in range(len(out)):
                scores = penalized(row.astype(np.float64) + drawn["bias"], counts, s)
                share = np.exp((scores - scores.max()) / s["temperature"])
                share = np.where(stays(scores, share, s), share, 0)
                share /= share.sum()
                likely = np.flatnonzero(share > 3 * MARGIN)
                i = int(likely[step * (len(likely) - 1) // max(1, len(out) - 1)])
                out[step] = (share[:i].sum() + (share[i] - MARGIN if step % 2 else MARGIN)) * 2**32
                counts[i] += 1

    return edit


def ranks(drawn: Operands) -> None:
    """Logits in steps of 1/2, many of them equal, and zeros of both signs."""
    drawn["logits"][...] = np.round(2 * drawn["logits"]) / 2
    drawn["bias"][...] = -0.0


def shares(drawn: Operands) -> None:
    """Four tokens of shares 0.1, 0.4, 0.2 and 0.3."""
    drawn["logits"][...] = np.log([0.1, 0.4, 0.2, 0.3])


ALL = {"top_k": 40, "top_p": 0.9, "min_p": 0.01}
PENALTIES = {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.25}
BORDERS = [  # sizes around those of a workgroup and of a search's steps, what is special, and the settings
    *[((b, v), None, "all", ALL) for b, v in ((1, 1), (3, 2), (3, 255), (3, 256), (3, 257), (3, 5000), (1, 70_001))],
    *[((1, v), None, "no-cut-off", {}) for v in (1, 257, 5000)],
    *[((2, 5000), None, f"k{k}", {"top_k": k}) for k in (1, 2, 3, 5, 8, 13, 4999)],
    ((3, 257), None, "penalties", ALL | PENALTIES),
    ((2, 300), put("logits", 7.0), "equal", ALL),
    *[((2, 300), ranks, f"ties-k{k}", {"top_k": k}) for k in (1, 20, 150, 299)],
    *[((2, 300), ranks, f"ties-p{p}", {"top_p": p}) for p in (1e-6, 0.3, 0.999999)],
    *[
        ((1, 4), shares, f"{name}-{limit + off:g}", {"temperature": 1.0, name: limit + off})
        for name, limits in (("top_p", (0.4, 0.7, 0.9)), ("min_p", (0.25, 0.5, 0.75)))
        for limit in limits
        for off in (-1e-5, 1e-5)
    ],
]


def border_cases() -> list[OpCase]:
    """BORDERS, drawn sixteen times a row."""
    return [
        OpCase("sample", {"B": b, "V": v, "S": 16}, note, (*([special] if special else []), at_borders(**settings)))
        for (b, v), special, note, settings in BORDERS
    ]


@pytest.mark.parametrize("case", border_cases(), ids=str)
def test_draws_at_borders_agree(cpu: Backend, gpu: Backend, device: Backend, case: OpCase) -> None:
    agree(cpu, device, case)


def test_the_least_and_the_largest_draw_take_the_first_and_the_last_that_stay(
    cpu: Backend, gpu: Backend, device: Backend
) -> None:
    ends = put("draws", (0, -1))
    agree(cpu, device, OpCase("sample", {"B": 9, "V": 300, "S": 2}, "ends", (at_borders(top_k=20), ends)))


@pytest.mark.parametrize("case", [c for c in op_cases("sample") if c.note.startswith("sa1")], ids=str)
def test_sa1_equal_largest_logits(backend: Backend, case: OpCase) -> None:
    """Logits 0, 30, 30: temperature 0 takes the first of the largest, a tiny one draws between the two."""
    out = asyncio.run(run_op(backend, case))["out"][:, 0].tolist()
    assert out == ([[1, 1]] if case.note == "sa1-t0" else [[1, 2]])


@pytest.mark.parametrize("case", [c for c in op_cases("sample") if c.note.startswith("sa2")], ids=str)
def test_sa2_only_the_row_that_is_not_finite_is_refused(backend: Backend, case: OpCase) -> None:
    token = asyncio.run(run_op(backend, case))["token"].tolist()
    assert token[1] == -1
    assert min(token[0], token[2]) >= 0


def test_sa2_no_candidate_left(backend: Backend) -> None:
    (case,) = [c for c in op_cases("sample") if c.note == "all-forbidden"]
    assert asyncio.run(run_op(backend, case))["token"].tolist() == [-2, -2]


def test_a_bias_of_minus_infinity_forbids(backend: Backend) -> None:
    (case,) = [c for c in op_cases("sample") if c.note == "bias"]
    assert (asyncio.run(run_op(backend, case))["out"][:, 0] == 36).all()


def pick(logits: Array, share: float, **settings: float) -> int:
    """The choice for a draw of share · 2³² with no bias and nothing counted."""
    nothing = np.zeros(len(logits), np.float32)
    return choose(logits, sampling(temperature=1.0, **settings), int(share * 2**32), nothing, nothing.astype(np.int32))


def test_sa2_all_logits_minus_infinity() -> None:
    assert pick(np.full(3, -np.inf, np.float32), 0.5) == -1


def test_a_choice_is_the_first_that_the_draw_does_not_pass() -> None:
    logits = np.log(np.array([1.0, 2.0, 1.0], np.float32))
    for share, want in ((0.0, 0), (0.2, 0), (0.3, 1), (0.7, 1), (0.8, 2), (0.9999999, 2)):
        assert pick(logits, share) == want


def test_cut_offs_keep_the_likeliest() -> None:
    logits = np.log(np.array([1.0, 4.0, 2.0, 3.0], np.float32))  # shares 0.1, 0.4, 0.2, 0.3
    shares = np.linspace(0.001, 0.999, 200)
    for settings, kept in (
        ({}, {0, 1, 2, 3}),
        ({"top_k": 2}, {1, 3}),
        ({"top_p": 0.65}, {1, 3}),
        ({"top_p": 0.75}, {1, 2, 3}),
        ({"min_p": 0.6}, {1, 3}),
        ({"top_k": 1}, {1}),
    ):
        assert {pick(logits, float(share), **settings) for share in shares} == kept


def test_draws_are_read_as_unsigned() -> None:
    drawn = op_cases("sample")[1].operands()
    assert (drawn["draws"] < 0).any(), "no case has a draw above 2^31"
