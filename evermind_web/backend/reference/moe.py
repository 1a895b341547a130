"""Shared-expert top-k mixture of experts over the rows of a batch, and its gradient (FORMAT 5)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evermind_web.backend.base import Array
from evermind_web.backend.reference import linalg
from evermind_web.backend.reference.linalg import bias_relu, matmul, relu_mask
from evermind_web.backend.reference.noise import add_router_noise
from evermind_web.layout import moe_layout


class Expert(NamedTuple):
    """Views of one expert's parameters (or gradients) inside its block."""

    w1: Array  # (H, D)
    b1: Array  # (H)
    w2: Array  # (D, H)
    b2: Array  # (D)


def split_block(block: Array, d_model: int, hidden: int, experts: int) -> tuple[Array, list[Expert]]:
    """Views on wr (E,D) and on the experts, the shared one first."""
    at = moe_layout(d_model, hidden, experts)
    parts = []
    for i in range(experts + 1):
        one = block[at.experts + i * at.stride :][: at.stride]
        parts.append(
            Expert(
                one[: hidden * d_model].reshape(hidden, d_model),
                one[at.b1 :][:hidden],
                one[at.w2 :][: hidden * d_model].reshape(d_model, hidden),
                one[at.b2 :][:d_model],
            )
        )
    return block[: experts * d_model].reshape(experts, d_model), parts


def router_logits(m: Array, wr: Array) -> Array:
    """(N,E). One expert at a time: equal router rows must give equal scores, which a BLAS product does not promise."""
    if linalg.kernels is not None and linalg.kernels.takes(m, wr.T):
        return matmul(m, wr.T)
    logits = np.empty((len(m), len(wr)), m.dtype)
    for e, row in enumerate(wr):
        np.sum(m * row, axis=1, out=logits[:, e])
    return logits


def choose_experts(logits: Array, top_k: int) -> Array:
    """(N,k) int32: the k largest, largest first, equal ones lowest index first."""
    return np.argsort(-logits, axis=1, kind="stable")[:, :top_k].astype(np.int32)


def softmax(logits: Array) -> Array:
    """Over the last axis, the maximum subtracted first."""
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    e /= e.sum(axis=-1, keepdims=True)
    return np.asarray(e)


def moe_fwd(
    a: Array,
    m: Array,
    W: Array,
    noise: Array,
    out: Array,
    experts: Array,
    gates: Array,
    probs: Array,
    order: Array,
    inverse: Array,
    starts: Array,
    hidden: Array,
    H: int,
    E: int,
    k: int,
) -> None:
    """See `ops.moe_fwd`."""
    N, D = m.shape
    wr, (shared, *routed) = split_block(W, D, H, E)
    logits = router_logits(m, wr)
    add_router_noise(noise, logits)
    experts[...] = choose_experts(logits, k)
    gates[...] = softmax(np.take_along_axis(logits, experts, axis=1))
    probs[...] = softmax(logits)
    gates[np.isnan(probs[:, 0])] = np.nan  # a NaN score is never the largest: the expert is passed over, not the fault
    order[...] = np.argsort(experts.ravel(), kind="stable")
    inverse[order] = np.arange(N * k, dtype=np.int32)
    starts[0] = 0
    starts[1:] = np.cumsum(np.bincount(experts.ravel(), minlength=E))

    _expert_hidden(m, shared, hidden[:N])
    out[...] = a + (matmul(hidden[:N], shared.w2.T) + shared.b2)
    for expert, first, last in zip(routed, starts[:-1], starts[1:], strict=True):
        slots = order[first:last]
        if not len(slots):
            continue
        rows, h = slots // k, hidden[N + first : N + last]
        _expert_hidden(m[rows], expert, h)
        out[rows] += gates.ravel()[slots, None] * (matmul(h, expert.w2.T) + expert.b2)


def _expert_hidden(x: Array, p: Expert, h: Array) -> None:
    """h = relu(w1 x + b1)."""
    matmul(x, p.w1.T, out=h)
    bias_relu(h, p.b1)


def _expert_bwd(x: Array, h: Array, dy: Array, dh: Array, p: Expert, g: Expert | None) -> Array:
    """Inverts `y = w2 relu(w1 x + b1) + b2`, dh = dy w2 given (and spent); adds to g, returns dx."""
    relu_mask(dh, h)  # relu let pass where h > 0
    if g is not None:
        g.b2[...] += dy.sum(axis=0)
        matmul(dy.T, h, g.w2, accumulate=True)
        g.b1[...] += dh.sum(axis=0)
        matmul(dh.T, x, g.w1, accumulate=True)
    return matmul(dh, p.w1)


def balance_bwd(m: Array, W: Array, experts: Array, probs: Array, balance: Array, dm: Array, dW: Array) -> None:
    """Gradient of the load-balance loss; see `ops.balance_bwd`. Inverts `logits = m wrᵀ` for the balance term alone."""
    E, D = probs.shape[1], m.shape[1]
    wr, gwr = (block[: E * D].reshape(E, D) for block in (W, dW))
    counts = np.bincount(experts[balance != 0].ravel(), minlength=E)
    shares = (counts / max(int(counts.sum()), 1)).astype(m.dtype)
    dlogits = balance[:, None] * probs * (shares - (probs @ shares)[:, None])
    matmul(dlogits, wr, dm, accumulate=True)
    matmul(dlogits.T, m, gwr, accumulate=True)


def moe_bwd(
    m: Array,
    W: Array,
    experts: Array,
    gates: Array,
    order: Array,
    inverse: Array,
    starts: Array,
    hidden: Array,
    dy: Array,
    dm: Array,
    dW: Array | None,
    H: int,
    E: int,
    k: int,
) -> None:
    """See `ops.moe_bwd`; dW None: the block is frozen.

    `inverse` serves kernels that gather; here rows are scattered by `order`.
    """
    N, D = m.shape
    wr, (shared, *routed) = split_block(W, D, H, E)
    gwr, (gshared, *grouted) = (None, [None] * (E + 1)) if dW is None else split_block(dW, D, H, E)
    dm[...] = _expert_bwd(m, hidden[:N], dy, matmul(dy, shared.w2), shared, gshared)
    dgate = np.zeros(N * k, m.dtype)
    for p, g, first, last in zip(routed, grouted, starts[:-1], starts[1:], strict=True):
        slots = order[first:last]
        if not len(slots):
            continue
        rows, h = slots // k, hidden[N + first : N + last]
        # out[rows] += gate * y, and y = w2 h + b2 is not kept; its product with dy is (dy w2) h + dy b2
        gate, dout = gates.ravel()[slots, None], dy[rows]
        dh = matmul(dout, p.w2)
        dgate[slots] = np.einsum("nh,nh->n", dh, h) + dout @ p.b2
        dm[rows] += _expert_bwd(m[rows], h, gate * dout, gate * dh, p, g)
    if k == 1:
        return  # a softmax over one logit is constant
    per_token = dgate.reshape(N, k)
    dlogits = np.zeros((N, E), m.dtype)
    chosen = gates * (per_token - np.sum(gates * per_token, axis=1, keepdims=True))
    np.put_along_axis(dlogits, experts, chosen, axis=1)
    if gwr is not None:
        matmul(dlogits.T, m, gwr, accumulate=True)
    matmul(dlogits, wr, dm, accumulate=True)
