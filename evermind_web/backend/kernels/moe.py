"""Plans of the mixture of experts: five dispatches forward, four or five backward.

Matrix products work on tiles of rows of one expert. The rows of routed experts are known on the device only, so a
grid covers the worst case (every expert ends inside a tile) and tiles without rows leave at once.
"""

from __future__ import annotations

from evermind_web.backend.kernels import Dispatch, Plan, Shapes, ceil_div, grid_of, plans, scratch, tiles
from evermind_web.backend.kernels.tiles import row_constants, row_grid, tile_constants, tile_width
from evermind_web.layout import MoeLayout, moe_layout

_LANES = 32  # threads that share a row in moe_fwd_route and moe_bwd_mix, on a GPU; the latter takes
_FEW_ROWS = 1024  # twice as many for at most so many rows, which leave most of a GPU idle
_LARGE = 1 << 16  # elements of an expert's matrix, from which on a dispatch more is worth a shorter sum
_PART_ROWS = 128  # shortest part of such a sum
_FLOAT = 4  # bytes


class _Sizes:
    """Shapes of one mixture of experts and what follows from them."""

    def __init__(self, n: int, d: int, h: int, e: int, k: int) -> None:
        self.n, self.d, self.h, self.e, self.k = n, d, h, e, k
        self.rows = n * (k + 1)  # of hidden

    def uniform(self, column_sums: int = 0, parts: int = 1) -> tuple[int, ...]:
        """The words of `struct Moe` in wgsl/common/moe_params.wgsl."""
        at = self.layout
        return (self.n, self.d, self.h, self.e, self.k, at.experts, at.stride, at.b1, at.w2, at.b2, column_sums, parts)

    @property
    def layout(self) -> MoeLayout:
        """Where things lie in W."""
        return moe_layout(self.d, self.h, self.e)

    def shared_parts(self) -> int:
        """In how many parts the shared expert's gradient is made: each about as long as a routed expert's."""
        if tiles.software or self.h * self.d < _LARGE:
            return 1
        parts = max(1, min(ceil_div(self.e, self.k), self.n // _PART_ROWS))
        return ceil_div(self.n, ceil_div(self.n, parts))  # none without rows

    def row_tiles(self, width: int) -> int:
        """Row tiles that are enough however the rows fall to the experts."""
        side = 4 * width
        routed = self.n * self.k
        return ceil_div(self.n, side) + min(routed, ceil_div(routed, side) + self.e)


def _lanes(few: bool = False) -> int:
    return 1 if tiles.software else 2 * _LANES if few else _LANES


@plans("moe_fwd")
def moe_fwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """a 0, m 1, W 2, noise 3 -> out 4, experts 5, gates 6, probs 7, order 8, inverse 9, starts 10, hidden 11."""
    a, m, weights, noise, out, experts, gates, probs, order, inverse, starts, hidden = range(12)
    at = _Sizes(*shapes[a], *scalars)
    y = scratch(0)
    uniform = at.uniform()
    lanes = _lanes()
    up = tile_width(at.rows, at.h)
    down = tile_width(at.rows, at.d)
    return Plan(
        (
            Dispatch(
                "moe_fwd_route",
                (m, weights, noise, experts, gates, probs),
                row_grid(at.n, lanes),
                uniform,
                {"LANES": lanes},
            ),
            Dispatch("moe_fwd_sort", (experts, order, inverse, starts), (at.e, 1, 1), uniform),
            Dispatch(
                "moe_fwd_up",
                (m, weights, order, starts, hidden),
                (ceil_div(at.h, 4 * up), at.row_tiles(up), 1),
                uniform,
                tile_constants(up) | {"TOP_K": at.k},
            ),
            Dispatch(
                "moe_fwd_down",
                (hidden, weights, order, starts, y),
                (ceil_div(at.d, 4 * down), at.row_tiles(down), 1),
                uniform,
                tile_constants(down),
            ),
            Dispatch("moe_fwd_mix", (a, gates, inverse, y, out), grid_of(ceil_div(at.n * at.d, 256)), uniform),
        ),
        (at.rows * at.d * _FLOAT,),
    )


@plans("moe_bwd")
def moe_bwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """m 0, W 1, experts 2, gates 3, order 4, inverse 5, starts 6, hidden 7, dy 8 -> dm 9, dW 10."""
    m, weights, experts, gates, order, inverse, starts, hidden, dy, dm, dweights = range(11)
    at = _Sizes(*shapes[m], *scalars)
    dpre, sums = scratch(0), scratch(1)  # dpre, dlogits; sums for dgate, dx
    back = tile_width(at.rows, at.h)
    rows = tile_width(at.rows, at.d)
    across = ceil_div(at.h, 4 * back)
    column_sums = across * (back if tiles.software else 1)
    parts = at.shared_parts()
    uniform = at.uniform(column_sums, parts)
    lanes = _lanes(at.n <= _FEW_ROWS)
    width = tile_width(at.h, at.d, 2 * (at.e + 1))
    tiles_h, tiles_d = ceil_div(at.h, 4 * width), ceil_div(at.d, 4 * width)
    blocks = 2 * tiles_h * tiles_d + tiles_h + tiles_d
    if at.k > 1:
        blocks += tiles_d  # the router's gradient; with one expert per token it is zero
    total = Dispatch("moe_bwd_shared", (dpre, dweights), grid_of(ceil_div(at.layout.stride, 256)), uniform)
    return Plan(
        (
            Dispatch(
                "moe_bwd_hidden",
                (dy, weights, gates, order, starts, hidden, dpre, sums),
                (across, at.row_tiles(back), 1),
                uniform,
                tile_constants(back) | {"TOP_K": at.k},
            ),
            Dispatch(
                "moe_bwd_rows",
                (dpre, weights, order, starts, sums),
                (ceil_div(at.d, 4 * rows), at.row_tiles(rows), 1),
                uniform,
                tile_constants(rows),
            ),
            Dispatch(
                "moe_bwd_mix",
                (dy, weights, experts, gates, inverse, sums, dm, dpre),
                row_grid(at.n, lanes),
                uniform,
                row_constants(lanes),
            ),
            Dispatch(
                "moe_bwd_weights",
                (m, gates, order, starts, hidden, dy, dpre, dweights),
                (blocks, at.e + parts, 1),
                uniform,
                tile_constants(width) | {"TOP_K": at.k},
            ),
            *([total] if parts > 1 else []),
        ),
        (
            (at.rows * at.h + at.n * at.k + (parts - 1) * at.layout.stride) * _FLOAT,
            (at.n * at.k * column_sums + at.rows * at.d) * _FLOAT,
        ),
    )
