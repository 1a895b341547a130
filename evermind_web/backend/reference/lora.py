"""Low-rank adapters on a matrix, and packed storage of frozen ones."""

from __future__ import annotations

import numpy as np

from evermind_web.backend.base import Array


def lora_fwd(base: Array, b: Array, a: Array, alpha: Array, merged: Array) -> None:
    """merged (V,D) = base (V,D) + alpha (1) * b (V,R) a (R,D); alpha[0] is alpha/rank."""
    np.matmul(b * alpha[0], a, out=merged)
    merged += base


def lora_bwd(dw: Array, b: Array, a: Array, alpha: Array, db: Array, da: Array) -> None:
    """Inverts `merged = base + alpha * b a`: db (V,R) += alpha * dw aᵀ; da (R,D) += alpha * bᵀ dw."""
    db += alpha[0] * (dw @ a.T)
    da += (b * alpha[0]).T @ dw


def dequant(codes: Array, scales: Array, values: Array, bits: int) -> None:
    """values (P) = packed little-endian fp16 (bits 16) or int8 times the scale of its block of P/Q values (bits 8)."""
    raw = np.ascontiguousarray(codes, "<i4")
    if bits == 16:
        values[...] = raw.view("<f2")[: len(values)]
    else:
        values[...] = raw.view(np.int8)[: len(values)]
        values.reshape(len(scales), -1)[...] *= scales[:, None]
