"""Choosing the next token (FORMAT 9, and the usual cut-offs), in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evermind_web.backend.base import Array
from evermind_web.ops import SAMPLING

F64 = NDArray[np.float64]
NOT_FINITE, NO_CANDIDATE = -1, -2


def sample(
    logits: Array,
    sampling: Array,
    draws: Array,
    bias: Array,
    token: Array,
    cursor: Array,
    out: Array,
    counts: Array,
) -> None:
    """See `ops.sample`."""
    for b, row in enumerate(logits):
        at = int(cursor[b])
        choice = choose(row, sampling, int(draws[b, at]) & 0xFFFFFFFF, bias, counts[b])
        token[b] = out[b, 0, at] = choice
        if choice >= 0:
            out[b, 1, at] = np.float32(log_softmax(row)[choice]).view(np.int32)
            counts[b, choice] += 1
        cursor[b] = at + 1


def log_softmax(logits: Array) -> F64:
    """float64 (V)."""
    z = logits.astype(np.float64) - float(logits.max())
    return np.asarray(z - np.log(np.exp(z).sum()))


def choose(logits: Array, sampling: Array, draw: int, bias: Array, counts: Array) -> int:
    """One token id from logits (V). The sums of the draw run in index order, as the reference's do."""
    if not np.isfinite(logits).all() or not (bias < np.inf).all():
        return NOT_FINITE
    s = {name: float(sampling[slot]) for name, slot in SAMPLING.items()}
    scores = penalized(logits.astype(np.float64) + bias, counts, s)
    if scores.max() == -np.inf:
        return NO_CANDIDATE
    if s["temperature"] == 0:
        return int(np.argmax(scores))
    # so small a temperature would overflow the quotient; elsewhere the reference's order of operations is kept
    z = (scores - scores.max()) / s["temperature"] if s["temperature"] < 1e-30 else scores / s["temperature"]
    p = np.exp(z - z.max()).astype(np.float32).astype(np.float64)
    p = np.where(stays(scores, p, s), p, 0)
    target = draw / 2**32 * float(np.cumsum(p)[-1])
    left = np.subtract.accumulate(np.concatenate([[target], p]))[1:]
    reached = np.flatnonzero((left <= 0) & (p > 0))
    return int(reached[0]) if len(reached) else int(np.flatnonzero(p)[-1])


def penalized(scores: F64, counts: Array, s: dict[str, float]) -> F64:
    """scores (V) after the repetition, frequency and presence penalties."""
    seen = counts > 0
    if s["repetition_penalty"] != 1:
        punished = np.where(scores > 0, scores / s["repetition_penalty"], scores * s["repetition_penalty"])
        scores = np.where(seen, punished, scores)
    return np.asarray(scores - s["frequency_penalty"] * counts - s["presence_penalty"] * seen)


def stays(scores: F64, p: F64, s: dict[str, float]) -> NDArray[np.bool_]:
    """Which tokens may be drawn: top_k by score, of those top_p by probability, of those min_p of the likeliest."""
    stay = np.ones(len(p), np.bool_)
    k = int(s["top_k"])
    if 0 < k < len(scores):
        stay &= scores >= np.partition(scores, -k)[-k]
    if s["top_p"] < 1:
        ordered = np.sort(p[stay])[::-1]
        sums = np.cumsum(ordered)
        stay &= p >= ordered[np.searchsorted(sums, s["top_p"] * sums[-1])]
    if s["min_p"] > 0:
        stay &= p >= s["min_p"]
    return stay
