"""Plan of choosing the next tokens: one workgroup per sequence."""

from __future__ import annotations

from evermind_web.backend.kernels import Dispatch, Plan, Shapes, ceil_div, plans


@plans("sample")
def sample(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """logits, sampling, draws -> token, cursor, out."""
    b, v = shapes[0]
    steps = shapes[2][1]
    return Plan((Dispatch("sample", (0, 1, 2, 3, 4, 5), (b, 1, 1), (v, steps, ceil_div(v, 256))),))
