"""Plans of the causal convolution: one invocation per element; the gradient of the taps is summed in parts."""

from __future__ import annotations

from evermind_web.backend.kernels import Dispatch, Plan, Shapes, ceil_div, grid_of, in_parts, plans


@plans("conv_fwd")
def conv_fwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """x, n, w, pos -> a."""
    n, d = shapes[0]
    return Plan((Dispatch("conv_fwd", (0, 1, 2, 3, 4), grid_of(ceil_div(n * d, 256)), (n, d, shapes[2][1])),))


@plans("conv_bwd")
def conv_bwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """n, w, pos, da -> dn, dw."""
    n, d = shapes[0]
    k = shapes[1][1]
    inputs = Dispatch("conv_bwd", (1, 2, 3, 4), grid_of(ceil_div(n * d, 256)), (n, d, k))
    return in_parts(
        n, d * k, 5,
        lambda out, parts, size: Dispatch(
            "conv_bwd_taps", (0, 2, 3, out), (ceil_div(d, 16), parts, k), (n, d, k, parts, size)
        ),
        before=(inputs,),
    )  # fmt: skip


@plans("conv_step")
def conv_step(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """x, n, w -> a, state."""
    b, d = shapes[0]
    k, q = shapes[2][1], shapes[4][1]
    return Plan((Dispatch("conv_step", (0, 1, 2, 3, 4), grid_of(ceil_div(b * d, 64)), (b, d, k, q)),))
