"""Plan of one decoding step of a layer: three dispatches, whatever the number of rows.

Rows are few, so products are spread over many workgroups by their outputs, and no row waits for another.
"""

from __future__ import annotations

from evermind_web.backend.kernels import Dispatch, Plan, Shapes, ceil_div, grid_of, plans, scratch, tiles
from evermind_web.backend.kernels.tiles import product_lanes
from evermind_web.layout import moe_layout

_WG = 64  # threads of a workgroup that multiplies
_FLOAT = 4  # bytes


@plans("layer_step")
def layer_step(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """x 0, norm_conv 1, conv 2, norm_moe 3, W 4 -> out 5, state 6."""
    x, norm_conv, conv, norm_moe, weights, out, state = range(7)
    (b, d), (_, taps), (_, q, _) = shapes[x], shapes[conv], shapes[state]
    h, e, k = scalars
    at = moe_layout(d, h, e)
    wide, deep = _fours(d), _fours(h)
    record = _fours(2 * wide + 2 * k + e)
    shape = (b, d, taps, q, h, e, k, at.experts, at.stride, at.b1, at.w2, at.b2, record, wide, deep)
    records, hidden = scratch(0), scratch(1)
    row = 1 if tiles.software else max(64, min(256, 1 << (d - 1).bit_length()))
    up, down = product_lanes(d), product_lanes(h)
    return Plan(
        (
            Dispatch(
                "layer_step_rows",
                (x, norm_conv, conv, norm_moe, weights, state, records),
                grid_of(b),
                shape,
                {"WG": row, "LANES": row},
            ),
            Dispatch(
                "layer_step_up",
                (records, weights, hidden),
                (ceil_div(h, _WG // up), k + 1, b),
                shape,
                {"WG": _WG, "LANES": up, "FOURS": int(d % 4 == 0)},
            ),
            Dispatch(
                "layer_step_down",
                (hidden, weights, records, out),
                (ceil_div(d, _WG // down), b, 1),
                shape,
                {"WG": _WG, "LANES": down, "FOURS": int(h % 4 == 0)},
            ),
        ),
        (b * record * _FLOAT, b * (k + 1) * deep * _FLOAT),
    )


def _fours(count: int) -> int:
    """`count` to the next multiple of 4."""
    return 4 * ceil_div(count, 4)
