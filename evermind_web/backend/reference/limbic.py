"""One step of the limbic model, over independent samples, and its gradient (FORMAT 13)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evermind_web.backend.base import Array
from evermind_web.layout import limbic_layout


class Tensors(NamedTuple):
    """Views of the parameters (or gradients)."""

    win: Array  # (H,I)
    ws: Array  # (H,A)
    a_logit: Array  # (H)
    wout_state: Array  # (A,H)
    bout_state: Array  # (A)
    wout_reward: Array  # (H)
    bout_reward: Array  # (1)


def split(W: Array, inputs: int, hidden: int, states: int) -> Tensors:
    """Views into the padded vector W (M)."""
    at = limbic_layout(inputs, hidden, states)

    def view(offset: int, *shape: int) -> Array:
        return W[offset : offset + int(np.prod(shape))].reshape(shape)

    return Tensors(
        view(0, hidden, inputs),
        view(at.ws, hidden, states),
        view(at.a_logit, hidden),
        view(at.wout_state, states, hidden),
        view(at.bout_state, states),
        view(at.wout_reward, hidden),
        view(at.bout_reward, 1),
    )


class _Step(NamedTuple):
    a: Array  # (H) how much of the old state stays
    t: Array  # (N,H)
    hidden: Array  # (N,H)
    delta: Array  # (N,A)
    reward: Array  # (N)


def _step(x: Array, h: Array, s: Array, p: Tensors) -> _Step:
    a = 1 / (1 + np.exp(-p.a_logit))
    t = np.tanh(x @ p.win.T + s @ p.ws.T)
    hidden = a * h + (1 - a) * t
    delta = np.tanh(hidden @ p.wout_state.T + p.bout_state)
    return _Step(a, t, hidden, delta, hidden @ p.wout_reward + p.bout_reward)


def limbic_fwd(x: Array, h: Array, s: Array, W: Array, hidden: Array, delta: Array, reward: Array) -> None:
    """See `ops.limbic_fwd`."""
    step = _step(x, h, s, split(W, x.shape[1], h.shape[1], s.shape[1]))
    hidden[...], delta[...], reward[...] = step.hidden, step.delta, step.reward


def limbic_bwd(
    x: Array, h: Array, s: Array, W: Array, targets: Array, reward_weight: Array, loss: Array, dW: Array
) -> None:
    """Inverts the forward for loss += Σ weight·(½Σ(delta − target)² + ½·reward_weight·(reward − target)²); dW +=."""
    sizes = x.shape[1], h.shape[1], s.shape[1]
    p, g = split(W, *sizes), split(dW, *sizes)
    step = _step(x, h, s, p)
    difference, miss, weight = step.delta - targets[:, :-2], step.reward - targets[:, -2], targets[:, -1]
    per_sample = np.sum(np.square(difference), axis=1, dtype=np.float64) + reward_weight[0] * np.square(miss)
    loss[0] += 0.5 * np.sum(weight * per_sample)

    # delta = tanh(wout_state h' + bout_state); reward = wout_reward h' + bout_reward
    dpre = (weight[:, None] * difference) * (1 - np.square(step.delta))
    dreward = weight * reward_weight[0] * miss
    g.wout_state[...] += dpre.T @ step.hidden
    g.bout_state[...] += dpre.sum(axis=0)
    g.wout_reward[...] += dreward @ step.hidden
    g.bout_reward[...] += dreward.sum()
    dh = dpre @ p.wout_state + dreward[:, None] * p.wout_reward
    # h' = a h + (1 - a) t; t = tanh(win x + ws s); the old h is a constant
    g.a_logit[...] += np.sum(dh * (h - step.t), axis=0) * step.a * (1 - step.a)
    dt = dh * (1 - step.a) * (1 - np.square(step.t))
    g.win[...] += dt.T @ x
    g.ws[...] += dt.T @ s
