"""Embedding lookup and its gradient."""

from __future__ import annotations

import numpy as np
import pytest

from evermind_web.backend.base import Backend
from tests.cases import OpCase, op_cases
from tests.ops.checks import agree, call, check_gradients, doubles


@pytest.mark.parametrize("case", op_cases("embed_fwd", "embed_bwd"), ids=str)
def test_kernel_agrees(cpu: Backend, gpu: Backend, case: OpCase) -> None:
    agree(cpu, gpu, case)


@pytest.mark.parametrize("case", op_cases("embed_bwd"), ids=str)
def test_gradient(case: OpCase) -> None:
    drawn = doubles(case)
    drawn["emb"] = np.random.default_rng(1).standard_normal(drawn["demb"].shape)
    (demb,) = call("embed_bwd", drawn, V=case.sizes["V"])

    def value() -> tuple[float, bytes]:
        (x,) = call("embed_fwd", drawn)
        return float(np.sum(x * drawn["dx"])), b""

    check_gradients(value, drawn, [("emb", demb)], case)


def test_rows_of_one_token_add_up() -> None:
    drawn = {"tokens": np.array([2, 0, 2, 2], np.int32), "dx": np.arange(8.0).reshape(4, 2)}
    (demb,) = call("embed_bwd", drawn, V=4)
    assert demb.tolist() == [[2, 3], [0, 0], [0 + 4 + 6, 1 + 5 + 7], [0, 0]]
