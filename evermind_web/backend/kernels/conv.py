"""Plans of the causal convolution: one invocation per element, and beside them the sums of the taps' gradient."""

from __future__ import annotations

from evermind_web.backend.kernels import Dispatch, Plan, Shapes, ceil_div, grid_of, in_parts, plans
from evermind_web.backend.kernels.tiles import (
    COLUMN_ROWS,
    column_constants,
    row_constants,
    row_grid,
    row_lanes,
)


@plans("conv_fwd")
def conv_fwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """x, n, w, pos -> a."""
    n, d = shapes[0]
    return Plan((Dispatch("conv_fwd", (0, 1, 2, 3, 4), grid_of(ceil_div(n * d, 256)), (n, d, shapes[2][1])),))


@plans("conv_norm_fwd")
def conv_norm_fwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """x, n, w, pos, g -> a, m, rstd."""
    (n, d), k = shapes[0], shapes[2][1]
    lanes = row_lanes()
    return Plan((Dispatch("conv_norm_fwd", tuple(range(8)), row_grid(n, lanes), (n, d, k), row_constants(lanes)),))


@plans("conv_bwd")
def conv_bwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """n, w, pos, da -> dn, dw."""
    n, d = shapes[0]
    k = shapes[1][1]
    return in_parts(
        n, d * k, 5,
        lambda out, parts, size: backward((0, 1, 2, 3, 4, out), n, d, k, parts, size), part_rows=COLUMN_ROWS,
    )  # fmt: skip


def backward(operands: tuple[int, ...], n: int, d: int, k: int, parts: int, size: int) -> Dispatch:
    """dn, and the taps' gradient in so many parts of `size` rows; with 0 parts there is none, and neither n nor dw."""
    constants = column_constants()
    elements = ceil_div(n * d, constants["WG"])
    columns = ceil_div(d, constants["WG"] // constants["SHARES"])
    uniform = (n, d, k, elements, columns, parts, size)
    return Dispatch("conv_bwd", operands, grid_of(elements + columns * k * parts), uniform, constants)


@plans("conv_step")
def conv_step(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """x, n, w -> a, state."""
    b, d = shapes[0]
    k, q = shapes[2][1], shapes[4][1]
    return Plan((Dispatch("conv_step", (0, 1, 2, 3, 4), grid_of(ceil_div(b * d, 64)), (b, d, k, q)),))
