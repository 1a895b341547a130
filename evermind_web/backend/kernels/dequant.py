"""Plan of unpacking stored weights."""

from __future__ import annotations

from evermind_web.backend.kernels import Dispatch, Plan, Shapes, ceil_div, grid_of, plans


@plans("dequant")
def dequant(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """codes, scales -> values; scalar bits."""
    (q,), (p,) = shapes[1:]
    block = max(1, p // max(1, q))
    return Plan((Dispatch("dequant", (0, 1, 2), grid_of(ceil_div(p, 256)), (p, scalars[0], block)),))
