"""Gradient statistics and AdamW on flat padded vectors (FORMAT 8)."""

from __future__ import annotations

import numpy as np

from evermind_web.backend.base import Array
from evermind_web.backend.reference import linalg
from evermind_web.ops import HYPER


def _rounded(g: Array, half: int) -> Array:
    return g.astype(np.float16).astype(g.dtype) if half else g


def _scaled(g: Array, factor: float) -> Array:
    return g if factor == 1 else g * g.dtype.type(factor)


def grad_stats(g: Array, hyper: Array, stats: Array, half: int, add: int) -> None:
    """stats (2) = [Σ (g*inv_grad_scale)², 1 if any g is NaN or infinite else 0], or += where add is 1."""
    before, flag = (stats[0], stats[1]) if add else (0, 0)
    g, factor = _rounded(g, half), float(hyper[HYPER["inv_grad_scale"]])
    if linalg.kernels is not None and (square := linalg.kernels.sum_of_squares(g, factor)) is not None:
        stats[:2] = before + square, bool(flag or not np.isfinite(square))
        return
    unscaled = _scaled(g, factor)
    stats[0] = before + np.sum(np.square(unscaled), dtype=np.float64)
    stats[1] = bool(flag or not np.isfinite(unscaled).all())


def adamw(g: Array, group: Array, hyper: Array, stats: Array, p: Array, m: Array, v: Array, half: int) -> None:
    """One step on p (P), with moments m, v (P); group (P/64): 1 decayed, 0 not, -1 left alone."""
    if stats[1] != 0:
        return
    largest, norm = float(hyper[HYPER["max_grad_norm"]]), float(np.sqrt(np.float64(stats[0])))
    g, factor = _rounded(g, half), float(hyper[HYPER["inv_grad_scale"]])
    clip = largest / norm if 0 < largest < norm else 1.0
    if linalg.kernels is not None:
        named = {name: float(hyper[i]) for name, i in HYPER.items()}
        if linalg.kernels.adamw(p, g, m, v, group, (factor, clip), named):
            return
    g = _scaled(_scaled(g, factor), clip)
    if (group >= 0).all():
        adamw_update(p, g, m, v, hyper, np.repeat(group, len(p) // len(group)))
        return
    own = np.repeat(group, len(p) // len(group)) >= 0
    decayed = np.repeat(group, len(p) // len(group))[own]
    own_p, own_m, own_v = p[own], m[own], v[own]
    adamw_update(own_p, g[own], own_m, own_v, hyper, decayed)
    p[own], m[own], v[own] = own_p, own_m, own_v


def adamw_update(p: Array, g: Array, m: Array, v: Array, hyper: Array, decayed: Array | float) -> None:
    """p -= lr * (m̂ / (sqrt(v̂) + eps) + weight_decay * decayed * p), with m and v brought up to date; all in place."""
    h = {name: hyper[i] for name, i in HYPER.items()}
    m *= h["beta1"]
    m += h["one_minus_beta1"] * g
    v *= h["beta2"]
    v += h["one_minus_beta2"] * g * g
    step = m / h["bias_correction1"]
    step /= np.sqrt(v / h["bias_correction2"]) + h["eps"]
    if h["weight_decay"]:
        step += (h["weight_decay"] * decayed) * p
    p -= h["lr"] * step
