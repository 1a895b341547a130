"""Plan of choosing the next tokens: one workgroup per sequence."""

from __future__ import annotations

from evermind_web.backend.kernels import Dispatch, Plan, Shapes, ceil_div, plans


@plans("sample")
def sample(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """logits, sampling, draws, bias -> token, cursor, out, counts."""
    b, v = shapes[0]
    steps = shapes[2][1]
    return Plan((Dispatch("sample", tuple(range(8)), (b, 1, 1), (v, steps, ceil_div(v, 256))),))
