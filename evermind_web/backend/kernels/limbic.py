"""Plans of the limbic model: one workgroup per sample, then one invocation per parameter."""

from __future__ import annotations

from evermind_web.backend.kernels import Dispatch, Plan, Shapes, ceil_div, grid_of, plans, scratch
from evermind_web.layout import limbic_layout


def _uniform(shapes: Shapes) -> tuple[int, ...]:
    (n, inputs), (_, hidden), (_, states) = shapes[:3]
    at = limbic_layout(inputs, hidden, states)
    offsets = (at.ws, at.a_logit, at.wout_state, at.bout_state, at.wout_reward, at.bout_reward)
    return (n, inputs, hidden, states, *offsets, at.size, 3 * hidden + 2 * (states + 1))


@plans("limbic_fwd")
def limbic_fwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """x, h, s, W -> hidden, delta, reward."""
    uniform = _uniform(shapes)
    return Plan((Dispatch("limbic_fwd", (0, 1, 2, 3, 4, 5, 6), grid_of(uniform[0]), uniform),))


@plans("limbic_bwd")
def limbic_bwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """x, h, s, W, targets, reward_weight -> loss, dW."""
    uniform = _uniform(shapes)
    n, params, record = uniform[0], uniform[-2], uniform[-1]
    return Plan(
        (
            Dispatch("limbic_bwd_rows", (0, 1, 2, 3, 4, 5, scratch(0)), grid_of(n), uniform),
            Dispatch("limbic_bwd", (0, 2, scratch(0), 6, 7), grid_of(ceil_div(params + 1, 64)), uniform),
        ),
        scratch=(max(4, 4 * n * record),),
    )
