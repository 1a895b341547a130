"""What the files of this folder share: running one operation on float64 NumPy, and checking its gradient."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from evermind_web import ops
from evermind_web.backend.base import Array, Backend
from evermind_web.backend.reference import REFERENCE
from tests.cases import OpCase
from tests.finite_differences import gradient_errors
from tests.operands import Operands
from tests.parity import compare_ops

SAMPLES = 12  # coordinates of each operand


def agree(cpu: Backend, gpu: Backend, case: OpCase) -> None:
    """The kernel's outputs are NumPy's, within the operation's tolerance."""
    findings = asyncio.run(compare_ops(cpu, gpu, [case]))
    assert findings.compared == 2 * len(ops.OPS[case.op].outs) + (case.op == "sample")
    assert findings.problems == []


def doubles(case: OpCase) -> Operands:
    """The operands in float64, accumulating outputs at 0: what is added is then all there is."""
    drawn = {name: a.astype(np.float64) if a.dtype.kind == "f" else a for name, a in case.operands().items()}
    for arg in ops.OPS[case.op].outs:
        drawn[arg.name][...] = 0
    return drawn


def call(op: str, drawn: Operands, **sizes: int) -> list[Array]:
    """Run the reference on operands by name; returns its outputs, fresh. sizes: scalars, letters of outputs."""
    spec = ops.OPS[op]
    outs = []
    letters = dict(sizes)
    for arg in spec.ins:
        for dim, extent in zip(arg.dims, drawn[arg.name].shape, strict=True):
            letters.setdefault(dim, extent)
    for arg in spec.outs:
        shape = tuple(ops.extent_of(dim, letters) for dim in arg.dims)
        outs.append(np.zeros(shape, np.int32 if arg.dtype == "int32" else np.float64))
    REFERENCE[op](*(drawn[arg.name] for arg in spec.ins), *outs, *(sizes[name] for name in spec.scalars))
    return outs


def check_gradients(
    value: Callable[[], tuple[float, bytes]], drawn: Operands, pairs: Sequence[tuple[str, Array]], case: OpCase
) -> None:
    """Finite differences of `value` by each named operand against its gradient."""
    assert all(np.abs(gradient).max() > 0 for _, gradient in pairs)
    tensors = {name: (drawn[name], gradient) for name, gradient in pairs}
    assert gradient_errors(value, tensors, SAMPLES, np.random.default_rng(1)) == [], str(case)
