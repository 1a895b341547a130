"""Low-rank adapters: merged matrix and gradient."""

from __future__ import annotations

import numpy as np
import pytest

from evermind_web import ops
from evermind_web.backend.base import Backend
from evermind_web.backend.reference import REFERENCE
from evermind_web.backend.reference.lora import dequant, unpacked
from tests.cases import OpCase, op_cases
from tests.ops.checks import agree, call, check_gradients, doubles

FROZEN = ("rmsnorm_bwd_inputs", "conv_bwd_inputs", "moe_bwd_inputs")
LOW_RANK = ("lora_down", "lora_up", "lora_outer", "lora_dropout")
HEADS = ("lora_head_logits", "lora_head_xent_fwd", "lora_head_xent_bwd")
PACKED = ("packed_embed_fwd", "packed_head_logits", "packed_head_xent_fwd", "packed_head_xent_bwd")


@pytest.mark.parametrize(
    "case", op_cases("lora_fwd", "lora_bwd", "dequant", *FROZEN, *LOW_RANK, *HEADS, *PACKED), ids=str
)
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


@pytest.mark.parametrize("case", op_cases("lora_outer"), ids=str)
def test_gradient_of_the_low_rank_product(case: OpCase) -> None:
    """lora_up and lora_outer are the gradients of lora_down, dropout included."""
    drawn = doubles(case) | {"a": np.random.default_rng(2).standard_normal((case.sizes["R"], case.sizes["D"]))}
    (da,) = call("lora_outer", drawn)
    (dx,) = call("lora_up", drawn, N=case.sizes["N"])

    def value() -> tuple[float, bytes]:
        (u,) = call("lora_down", drawn)
        return float(np.sum(u * drawn["u"])), b""

    check_gradients(value, drawn, [("a", da), ("x", dx)], case)


@pytest.mark.parametrize("case", [c for c in op_cases("lora_head_xent_bwd") if not c.note], ids=str)
def test_gradient_of_the_head(case: OpCase) -> None:
    drawn = doubles(case)
    _, dx, du, db = call("lora_head_xent_bwd", drawn)

    def value() -> tuple[float, bytes]:
        (loss,) = call("lora_head_xent_fwd", drawn)
        return float(loss[0]), b""

    check_gradients(value, drawn, [("x", dx), ("u", du), ("b", db)], case)


@pytest.mark.parametrize("op", FROZEN)
def test_gradient_with_frozen_parameters_is_that_of_the_whole(op: str) -> None:
    for case in op_cases(op):
        drawn = case.operands()
        full = ops.OPS[op.removesuffix("_inputs")]
        for arg in (*full.ins, *full.outs):
            if arg.name not in drawn:
                drawn[arg.name] = np.zeros_like(
                    drawn["da" if arg.name == "n" else {"dw": "w", "dg": "g"}.get(arg.name, "W")]
                )
        results = []
        for name in (op, full.name):
            copy = {key: array.copy() for key, array in drawn.items()}
            spec = ops.OPS[name]
            scalars = [case.scalars[s] for s in spec.scalars]
            REFERENCE[name](*(copy[arg.name] for arg in (*spec.ins, *spec.outs)), *scalars)
            results.append(copy[spec.outs[0].name])
        assert np.array_equal(*results)
        assert results[0].any()


def test_packed_operations_are_the_plain_ones_on_the_unpacked_matrix() -> None:
    for case in op_cases("packed_head_xent_bwd", "packed_embed_fwd"):
        drawn, sizes = doubles(case), case.sizes
        drawn["emb"] = unpacked(drawn["codes"], drawn["scales"], sizes["V"], sizes["D"], sizes["bits"])
        plain = {"packed_embed_fwd": "embed_fwd"}.get(case.op, "lora_head_xent_bwd")
        for got, want in zip(call(case.op, drawn, **sizes), call(plain, drawn, **sizes), strict=True):
            assert np.array_equal(got, want)
            assert got.any()


def test_dequant_of_known_codes() -> None:
    halves = np.array([1.0, -2.0, 65504.0, 2**-24], "<f2").view("<i4")
    drawn = {"codes": halves, "scales": np.ones(1)}
    values = np.zeros(4)
    dequant(drawn["codes"], drawn["scales"], values, 16)
    assert values.tolist() == [1.0, -2.0, 65504.0, 2**-24]
    bytes_ = np.array([1, -1, 127, -128], np.int8).view("<i4")
    dequant(bytes_, np.array([2.0, 0.5]), values, 8)
    assert values.tolist() == [2.0, -2.0, 63.5, -64.0]
