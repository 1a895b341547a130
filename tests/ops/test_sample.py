"""Choosing the next token: temperature from 0 up (SA1), logits that are not finite (SA2)."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from evermind_web.backend.base import Array, Backend
from evermind_web.backend.reference.sample import choose
from tests.cases import OpCase, op_cases
from tests.operands import sampling
from tests.ops.checks import agree
from tests.parity import run_op


@pytest.mark.parametrize("case", op_cases("sample"), ids=str)
def test_kernel_agrees(cpu: Backend, gpu: Backend, case: OpCase) -> None:
    agree(cpu, gpu, case)


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
