"""Plan of choosing the next tokens: one workgroup per sequence."""

from __future__ import annotations

from evermind_web.backend.kernels import Dispatch, Plan, Shapes, plans, tiles


@plans("sample")
def sample(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """logits, sampling, draws, bias -> token, cursor, out, counts."""
    b, v = shapes[0]
    constants = tiles.row_constants(64 if tiles.software else 256)
    return Plan((Dispatch("sample", tuple(range(8)), (b, 1, 1), (v, shapes[2][1]), constants),))
