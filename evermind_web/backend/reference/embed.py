"""Embedding lookup and its gradient."""

from __future__ import annotations

import numpy as np

from evermind_web.backend.base import Array


def embed_fwd(tokens: Array, emb: Array, x: Array) -> None:
    """x (N,D) = emb (V,D)[tokens (N)]."""
    np.take(emb, tokens, axis=0, out=x, mode="clip")


def embed_bwd(tokens: Array, dx: Array, demb: Array) -> None:
    """demb (V,D) += dx (N,D) by token; inverts `x[n] = emb[tokens[n]]`."""
    if not len(tokens):
        return
    order = np.argsort(tokens, kind="stable")
    seen, starts = np.unique(tokens[order], return_index=True)
    demb[seen] += np.add.reduceat(dx[order], starts, axis=0)
