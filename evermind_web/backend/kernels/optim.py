"""Plans of the optimizer: statistics in two stages, then one pass over the parameters."""

from __future__ import annotations

from evermind_web.backend.kernels import Dispatch, Plan, Shapes, ceil_div, grid_of, plans, scratch

MAX_PARTS = 1024


@plans("grad_stats")
def grad_stats(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """g, hyper -> stats; scalars half, add."""
    (p,) = shapes[0]
    parts = max(1, min(MAX_PARTS, ceil_div(p, 1024)))
    return Plan(
        (
            Dispatch("grad_stats", (0, 1, scratch(0)), (parts, 1, 1), (p, scalars[0])),
            Dispatch("grad_stats_total", (scratch(0), 2), (1, 1, 1), (parts, scalars[1])),
        ),
        scratch=(8 * parts,),
    )


@plans("adamw")
def adamw(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """g, group, hyper, stats -> p, m, v; scalar half."""
    (p,), (g,) = shapes[:2]
    uniform = (p, scalars[0], max(1, p // max(1, g)))
    return Plan((Dispatch("adamw", (0, 1, 2, 3, 4, 5, 6), grid_of(ceil_div(p, 256)), uniform),))
