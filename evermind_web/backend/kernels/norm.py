"""Plans of rmsnorm: one workgroup per row forward; backward the rows and, apart from them, the gain."""

from __future__ import annotations

from evermind_web.backend.kernels import Dispatch, Plan, Shapes, ceil_div, grid_of, in_parts, plans


@plans("rmsnorm_fwd")
def rmsnorm_fwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """x, g -> y, rstd."""
    n, d = shapes[0]
    return Plan((Dispatch("rmsnorm_fwd", (0, 1, 2, 3), grid_of(n), (n, d)),))


@plans("rmsnorm_bwd")
def rmsnorm_bwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """x, g, rstd, dy -> dx, dg."""
    n, d = shapes[0]
    rows = Dispatch("rmsnorm_bwd", (0, 1, 2, 3, 4), grid_of(n), (n, d))
    return in_parts(
        n, d, 5,
        lambda out, parts, size: Dispatch(
            "rmsnorm_bwd_gain", (0, 2, 3, out), (ceil_div(d, 16), parts, 1), (n, d, parts, size)
        ),
        before=(rows,),
    )  # fmt: skip
