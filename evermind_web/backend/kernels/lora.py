"""Plans of the low-rank adapter on a matrix."""

from __future__ import annotations

from evermind_web.backend.kernels import Dispatch, Plan, Shapes, ceil_div, grid_of, in_parts, plans


@plans("lora_fwd")
def lora_fwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """base, b, a, alpha -> merged."""
    v, d = shapes[0]
    r = shapes[1][1]
    return Plan((Dispatch("lora_fwd", (0, 1, 2, 3, 4), grid_of(ceil_div(v * d, 256)), (v, d, r)),))


@plans("lora_bwd")
def lora_bwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """dw, b, a, alpha -> db, da."""
    v, d = shapes[0]
    r = shapes[1][1]
    rows = Dispatch("lora_bwd_b", (0, 2, 3, 4), (ceil_div(v, 16), ceil_div(r, 16), 1), (v, d, r))
    return in_parts(
        v, r * d, 5,
        lambda out, parts, size: Dispatch(
            "lora_bwd_a", (0, 1, 3, out), (ceil_div(d, 16), parts, ceil_div(r, 16)), (v, d, r, parts, size)
        ),
        before=(rows,),
    )  # fmt: skip
