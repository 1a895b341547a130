"""The list of cases covers every operation, and its operands are what the operations declare."""

from __future__ import annotations

import numpy as np
import pytest

from evermind_web import ops
from evermind_web.backend.base import Buf
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.errors import InvalidArgumentError
from tests.cases import OP_CASES, OpCase


def test_every_operation_has_a_case() -> None:
    assert {case.op for case in OP_CASES} == set(ops.OPS)


def test_names_are_unique() -> None:
    assert len({str(case) for case in OP_CASES}) == len(OP_CASES)


@pytest.mark.parametrize("case", OP_CASES, ids=str)
def test_operands_are_the_same_each_time(case: OpCase) -> None:
    first, second = case.operands(), case.operands()
    assert {n: a.tobytes() for n, a in first.items()} == {n: a.tobytes() for n, a in second.items()}
    assert [a.dtype for a in first.values()] == [
        np.int32 if arg.dtype == "int32" else np.float32 for arg in (*ops.OPS[case.op].ins, *ops.OPS[case.op].outs)
    ]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Buf(1, (4, 3)), r"x must have shape \(N, D\) with .*'D': 3"),
        (Buf(1, (4,)), r"emb must have shape \(V, D\), got \(4,\)"),
        (Buf(1, (4, 2), "int32"), "emb must be float32, got int32"),
    ],
)
def test_operands_that_do_not_fit_are_refused_by_name(wrong: Buf, message: str) -> None:
    backend = NumpyBackend()
    tokens, x = backend.alloc((3,), "int32"), backend.alloc((3, 2))
    with pytest.raises(InvalidArgumentError, match=f"embed_fwd: {message}"):
        ops.embed_fwd(backend, (tokens, wrong), (x,))


def test_wrong_numbers_of_operands_and_unknown_scalars_are_refused() -> None:
    backend = NumpyBackend()
    x = backend.alloc((3, 2))
    with pytest.raises(InvalidArgumentError, match="expected 2 inputs, got 1"):
        ops.head_logits(backend, (x,), (x,))
    with pytest.raises(InvalidArgumentError, match=r"expected scalars \(\), got \('k',\)"):
        ops.head_logits(backend, (x, x), (x,), k=1)
