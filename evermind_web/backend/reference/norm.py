"""RMSNorm and its gradient (FORMAT 6 and 7)."""

from __future__ import annotations

import numpy as np

from evermind_web.backend.base import Array

EPS = 1e-5


def rmsnorm_fwd(x: Array, g: Array, y: Array, rstd: Array) -> None:
    """rstd (N) = 1/sqrt(mean(x²) + eps); y (N,D) = g (D) * x (N,D) * rstd."""
    np.divide(1, np.sqrt(np.einsum("nd,nd->n", x, x) / x.dtype.type(x.shape[1]) + x.dtype.type(EPS)), out=rstd)
    np.multiply(x, rstd[:, None], out=y)
    y *= g


def rmsnorm_bwd(x: Array, g: Array, rstd: Array, dy: Array, dx: Array, dg: Array) -> None:
    """Inverts `y = g * x * rstd`: dx (N,D) += rstd*(g*dy) - x*rstd³*mean(g*dy*x); dg (D) += Σ_n dy*x*rstd."""
    scaled = dy * g
    mean = np.einsum("nd,nd->n", scaled, x) / x.dtype.type(x.shape[1])
    dg += np.einsum("nd,nd,n->d", dy, x, rstd)
    scaled *= rstd[:, None]
    scaled -= x * (mean * rstd**3)[:, None]
    dx += scaled
