"""Choosing the next token (FORMAT 9), in float64."""

from __future__ import annotations

import numpy as np

from evermind_web.backend.base import Array
from evermind_web.ops import SAMPLING


def sample(logits: Array, sampling: Array, draws: Array, token: Array, cursor: Array, out: Array) -> None:
    """See `ops.sample`."""
    temperature = float(sampling[SAMPLING["temperature"]])
    for b, row in enumerate(logits):
        at = int(cursor[b])
        token[b] = out[b, at] = choose(row, temperature, int(draws[b, at]) & 0xFFFFFFFF)
        cursor[b] = at + 1


def choose(logits: Array, temperature: float, draw: int) -> int:
    """One token id from logits (V); -1 if a logit is not finite. The sums run in index order, as the reference's do."""
    if not np.isfinite(logits).all():
        return -1
    if temperature == 0:
        return int(np.argmax(logits))
    z = logits.astype(np.float64)
    z = (z - z.max()) / temperature if temperature < 1e-30 else z / temperature
    p = np.exp(z - z.max()).astype(np.float32).astype(np.float64)
    target = draw / 2**32 * float(np.cumsum(p)[-1])
    left = np.subtract.accumulate(np.concatenate([[target], p]))[1:]
    reached = np.flatnonzero(left <= 0)
    return int(reached[0]) if len(reached) else len(p) - 1
