"""Plans of rmsnorm: one workgroup per row forward; backward rows and the gain's columns side by side."""

from __future__ import annotations

from evermind_web.backend.kernels import Dispatch, Plan, Shapes, ceil_div, grid_of, in_parts, plans
from evermind_web.backend.kernels.tiles import COLUMN_ROWS, column_constants, row_lanes


@plans("rmsnorm_fwd")
def rmsnorm_fwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """x, g -> y, rstd."""
    n, d = shapes[0]
    return Plan((Dispatch("rmsnorm_fwd", (0, 1, 2, 3), grid_of(n), (n, d)),))


@plans("rmsnorm_bwd")
def rmsnorm_bwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """x, g, rstd, dy -> dx, dg."""
    n, d = shapes[0]
    return in_parts(n, d, 5, lambda out, parts, size: backward(out, n, d, parts, size), part_rows=COLUMN_ROWS)


def backward(out: int, n: int, d: int, parts: int, size: int) -> Dispatch:
    """dx, and the gain's gradient in so many parts of `size` rows; with 0 parts none, and `out` is not used."""
    constants = column_constants() | {"LANES": row_lanes()}
    rows = ceil_div(n, constants["WG"] // constants["LANES"])
    columns = ceil_div(d, constants["WG"] // constants["SHARES"])
    uniform = (n, d, rows, columns, parts, size)
    return Dispatch("rmsnorm_bwd", (0, 1, 2, 3, 4, out), grid_of(rows + columns * parts), uniform, constants)
