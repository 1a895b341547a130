"""Low-rank adapters: merged matrix and gradient."""

from __future__ import annotations

import numpy as np
import pytest

from evermind_web.backend.base import Backend
from evermind_web.backend.reference.lora import dequant
from tests.cases import OpCase, op_cases
from tests.ops.checks import agree, call, check_gradients, doubles


@pytest.mark.parametrize("case", op_cases("lora_fwd", "lora_bwd", "dequant"), ids=str)
def test_kernel_agrees(cpu: Backend, gpu: Backend, case: OpCase) -> None:
    agree(cpu, gpu, case)


@pytest.mark.parametrize("case", op_cases("lora_bwd"), ids=str)
def test_gradient(case: OpCase) -> None:
    drawn = doubles(case)
    drawn["base"] = np.zeros_like(drawn["dw"])
    db, da = call("lora_bwd", drawn)

    def value() -> tuple[float, bytes]:
        (merged,) = call("lora_fwd", drawn)
        return float(np.sum(merged * drawn["dw"])), b""

    check_gradients(value, drawn, [("b", db), ("a", da)], case)


def test_dequant_of_known_codes() -> None:
    halves = np.array([1.0, -2.0, 65504.0, 2**-24], "<f2").view("<i4")
    drawn = {"codes": halves, "scales": np.ones(1)}
    values = np.zeros(4)
    dequant(drawn["codes"], drawn["scales"], values, 16)
    assert values.tolist() == [1.0, -2.0, 65504.0, 2**-24]
    bytes_ = np.array([1, -1, 127, -128], np.int8).view("<i4")
    dequant(bytes_, np.array([2.0, 0.5]), values, 8)
    assert values.tolist() == [2.0, -2.0, 63.5, -64.0]
