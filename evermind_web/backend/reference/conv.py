"""Depthwise causal convolution over ragged batches, its gradient, and one decoding step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from evermind_web.backend.base import Array
from evermind_web.backend.reference.norm import rmsnorm_fwd


def _taps(pos: Array, taps: int) -> Iterator[tuple[int, Array]]:
    """For each tap j the rows whose sequence reaches j steps back."""
    for j in range(taps):
        rows = np.flatnonzero(pos >= j)
        if not len(rows):
            return
        yield j, rows


def conv_fwd(x: Array, n: Array, w: Array, pos: Array, a: Array) -> None:
    """a (N,D) = x (N,D) + Σ_j w (D,K)[:,j] * n (N,D)[t-j], inside each sequence."""
    a[...] = x
    for j, rows in _taps(pos, w.shape[1]):
        a[rows] += w[:, j] * n[rows - j]


def conv_norm_fwd(x: Array, n: Array, w: Array, pos: Array, g: Array, a: Array, m: Array, rstd: Array) -> None:
    """`conv_fwd` to a (N,D), and its rmsnorm by g (D): m (N,D), rstd (N)."""
    conv_fwd(x, n, w, pos, a)
    rmsnorm_fwd(a, g, m, rstd)


def conv_bwd(n: Array, w: Array, pos: Array, da: Array, dn: Array, dw: Array | None) -> None:
    """Inverts `a[t] += w[:,j] * n[t-j]`: dn (N,D) = Σ_j da[t+j]*w[:,j]; dw (D,K)[:,j] += Σ_t da[t]*n[t-j]."""
    dn[...] = 0
    for j, rows in _taps(pos, w.shape[1]):
        dn[rows - j] += da[rows] * w[:, j]
        if dw is not None:
            dw[:, j] += np.einsum("nd,nd->d", da[rows], n[rows - j])


def conv_step(x: Array, n: Array, w: Array, a: Array, state: Array) -> None:
    """a (B,D) = x + w[:,0]*n + Σ_j w[:,j]*state[:,K-1-j]; then n becomes the newest row of state (B,K-1,D)."""
    taps = w.shape[1]
    a[...] = x + w[:, 0] * n
    for j in range(1, taps):
        a += w[:, j] * state[:, taps - 1 - j]
    if taps > 1:
        state[:, :-1] = state[:, 1:].copy()
        state[:, -1] = n
