"""The tied output head: logits, and next-token cross-entropy with its gradient, in chunks of rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from evermind_web.backend.base import Array
from evermind_web.backend.reference.linalg import matmul, softmax_rows
from evermind_web.ops import HYPER, IGNORE

CHUNK = 1 << 22  # logits held at once, in elements: bounds memory for large N*V


def head_logits(x: Array, emb: Array, logits: Array) -> None:
    """logits (N,V) = x (N,D) emb (V,D)ᵀ."""
    matmul(x, emb.T, out=logits)


def scored_rows(targets: Array, weights: Array, vocab: int) -> Iterator[Array]:
    """Indices of the rows that count, in chunks. A row of weight 0 is left out: its logits may be anything."""
    rows = np.flatnonzero((targets != IGNORE) & (weights != 0))
    step = max(1, CHUNK // vocab)
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def row_losses(logits: Array, targets: Array, weights: Array) -> tuple[Array, float]:
    """exp(logits - max) / sum, in place of the logits, and the weighted sum of -log p[target] in float64."""
    picked = logits[np.arange(len(logits)), targets]
    lse = softmax_rows(logits)
    return logits, float(np.sum((lse - picked) * weights.astype(np.float64)))


def head_xent_fwd(x: Array, emb: Array, targets: Array, weights: Array, loss: Array) -> None:
    """loss (1) += Σ_n weights[n] * cross-entropy of row n."""
    for rows in scored_rows(targets, weights, len(emb)):
        loss[0] += row_losses(matmul(x[rows], emb.T), targets[rows], weights[rows])[1]


def head_xent_bwd(
    x: Array, emb: Array, targets: Array, weights: Array, hyper: Array, loss: Array, dx: Array, demb: Array
) -> None:
    """Inverts `logits = x embᵀ; loss = Σ w * (lse - logits[target])`: loss +=, dx (N,D) =, demb (V,D) +=."""
    dx[...] = 0
    for rows in scored_rows(targets, weights, len(emb)):
        d, value = row_losses(matmul(x[rows], emb.T), targets[rows], weights[rows])
        loss[0] += value
        d[np.arange(len(rows)), targets[rows]] -= 1
        d *= (weights[rows] * hyper[HYPER["grad_scale"]])[:, None]
        dx[rows] = matmul(d, emb)
        matmul(d.T, x[rows], demb, accumulate=True)
