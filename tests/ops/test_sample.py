"""Choosing the next token: temperature from 0 up (SA1), logits that are not finite (SA2)."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from evermind_web.backend.base import Backend
from evermind_web.backend.reference.sample import choose
from tests.cases import OpCase, op_cases
from tests.ops.checks import agree
from tests.parity import run_op


@pytest.mark.parametrize("case", op_cases("sample"), ids=str)
def test_kernel_agrees(cpu: Backend, gpu: Backend, case: OpCase) -> None:
    agree(cpu, gpu, case)


@pytest.mark.parametrize("case", [c for c in op_cases("sample") if c.note.startswith("sa1")], ids=str)
def test_sa1_equal_largest_logits(backend: Backend, case: OpCase) -> None:
    """Logits 0, 30, 30: temperature 0 takes the first of the largest, a tiny one draws between the two."""
    out = asyncio.run(run_op(backend, case))["out"].tolist()
    assert out == ([[1, 1]] if case.note == "sa1-t0" else [[1, 2]])


@pytest.mark.parametrize("case", [c for c in op_cases("sample") if c.note.startswith("sa2")], ids=str)
def test_sa2_only_the_row_that_is_not_finite_is_refused(backend: Backend, case: OpCase) -> None:
    token = asyncio.run(run_op(backend, case))["token"].tolist()
    assert token[1] == -1
    assert min(token[0], token[2]) >= 0


def test_sa2_all_logits_minus_infinity() -> None:
    assert choose(np.full(3, -np.inf, np.float32), 0.0, 1) == -1
    assert choose(np.full(3, -np.inf, np.float32), 1.0, 1) == -1


def test_a_choice_is_the_first_that_the_draw_does_not_pass() -> None:
    logits = np.log(np.array([1.0, 2.0, 1.0], np.float32))
    for share, want in ((0.0, 0), (0.2, 0), (0.3, 1), (0.7, 1), (0.8, 2), (0.9999999, 2)):
        assert choose(logits, 1.0, int(share * 2**32)) == want


def test_draws_are_read_as_unsigned() -> None:
    drawn = op_cases("sample")[1].operands()
    assert (drawn["draws"] < 0).any(), "no case has a draw above 2^31"
