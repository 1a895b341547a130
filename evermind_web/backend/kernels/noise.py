"""Plan of dropout: one invocation per element."""

from __future__ import annotations

from evermind_web.backend.kernels import Dispatch, Plan, Shapes, ceil_div, grid_of, plans


@plans("dropout")
def dropout(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """noise -> x."""
    n, d = shapes[1]
    return Plan((Dispatch("dropout", (0, 1), grid_of(ceil_div(n * d, 256)), (n * d,)),))
