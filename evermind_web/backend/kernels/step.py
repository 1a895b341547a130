"""Plan of one decoding step of a layer: two dispatches, or three for many rows or on a CPU.

Rows are few, so products are spread over many workgroups by their outputs, and no row waits for another.
"""

from __future__ import annotations

from evermind_web.backend.kernels import Dispatch, Plan, Shapes, ceil_div, grid_of, plans, scratch, tiles
from evermind_web.backend.kernels.tiles import product_lanes
from evermind_web.layout import moe_layout

_WG = 64  # threads of a workgroup that multiplies
_WIDE_WG = 256  # and of one that makes its row anew
_MOST = 1024  # D and E for which it can: MOST of layer_step_rows_up
_WORTH = 1024  # workgroups up to which making rows anew is less than another dispatch
_FLOAT = 4  # bytes


@plans("layer_step")
def layer_step(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """x 0, norm_conv 1, conv 2, norm_moe 3, W 4 -> out 5, state 6."""
    x, norm_conv, conv, norm_moe, weights, out, state = range(7)
    (b, d), (_, taps), (_, q, _) = shapes[x], shapes[conv], shapes[state]
    h, e, k = scalars
    at = moe_layout(d, h, e)
    wide, deep = _fours(d), _fours(h)
    record = _fours(3 * wide + 2 * k + e)
    shape = (b, d, taps, q, h, e, k, at.experts, at.stride, at.b1, at.w2, at.b2, record, wide, deep)
    records, hidden = scratch(0), scratch(1)
    up, down = product_lanes(d), product_lanes(h)
    given = (x, norm_conv, conv, norm_moe, weights, state, records)
    fours = {"FOURS": int(d % 4 == 0)}
    groups = ceil_div(h, _WIDE_WG // up), k + 1, b
    last = Dispatch(
        "layer_step_down",
        (hidden, weights, records, out, state),
        (ceil_div(d, _WG // down), b, 1),
        shape,
        {"WG": _WG, "LANES": down, "FOURS": int(h % 4 == 0)},
    )
    scratch_bytes = (b * record * _FLOAT, b * (k + 1) * deep * _FLOAT)
    if not tiles.software and max(d, e) <= _MOST and groups[0] * groups[1] * groups[2] <= _WORTH:
        both = Dispatch("layer_step_rows_up", (*given, hidden), groups, shape, {"WG": _WIDE_WG, "LANES": up} | fours)
        return Plan((both, last), scratch_bytes)
    row = 1 if tiles.software else max(64, min(256, 1 << (d - 1).bit_length()))
    return Plan(
        (
            Dispatch("layer_step_rows", given, grid_of(b), shape, {"WG": row, "LANES": row}),
            Dispatch(
                "layer_step_up",
                (records, weights, hidden),
                (ceil_div(h, _WG // up), k + 1, b),
                shape,
                {"WG": _WG, "LANES": up} | fours,
            ),
            last,
        ),
        scratch_bytes,
    )


def _fours(count: int) -> int:
    """`count` to the next multiple of 4."""
    return 4 * ceil_div(count, 4)
