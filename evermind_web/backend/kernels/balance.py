"""Plan of the load-balance gradient: the shares of the experts, then each row, then the router's weights."""

from __future__ import annotations

from evermind_web.backend.kernels import Dispatch, Plan, Shapes, ceil_div, grid_of, in_parts, plans, scratch


@plans("balance_bwd")
def balance_bwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """m, W, experts, probs, balance -> dm, dW."""
    n, d = shapes[0]
    k, e = shapes[2][1], shapes[3][1]
    shares, dlogits = scratch(0), scratch(1)
    before = (
        Dispatch("balance_shares", (2, 4, shares), (e, 1, 1), (n, k)),
        Dispatch("balance_rows", (1, 3, 4, shares, dlogits, 5), grid_of(n), (n, d, e)),
    )
    return in_parts(
        n, e * d, 6,
        lambda out, parts, size: Dispatch(
            "balance_router", (0, dlogits, out), (ceil_div(d, 16), parts, ceil_div(e, 16)), (n, d, e, parts, size)
        ),
        before,
        (4 * e, 4 * n * e),
    )  # fmt: skip
