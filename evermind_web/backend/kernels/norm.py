"""Plans of rmsnorm: one workgroup per row forward; backward first the rows, then the gain's columns."""

from __future__ import annotations

from evermind_web.backend.kernels import Dispatch, Plan, Shapes, grid_of, plans


@plans("rmsnorm_fwd")
def rmsnorm_fwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """x, g -> y, rstd."""
    n, d = shapes[0]
    return Plan((Dispatch("rmsnorm_fwd", (0, 1, 2, 3), grid_of(n), (n, d)),))
