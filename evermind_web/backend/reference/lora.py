"""Low-rank adapters: on any matrix by merging, on the tied embedding by a low-rank path; and packed storage."""

from __future__ import annotations

import numpy as np

from evermind_web.backend.base import Array
from evermind_web.backend.reference.conv import conv_bwd
from evermind_web.backend.reference.head import row_losses, scored_rows
from evermind_web.backend.reference.linalg import matmul
from evermind_web.backend.reference.moe import moe_bwd
from evermind_web.backend.reference.noise import drop_factors
from evermind_web.backend.reference.norm import rmsnorm_bwd
from evermind_web.ops import HYPER


def lora_fwd(base: Array, b: Array, a: Array, alpha: Array, merged: Array) -> None:
    """merged (V,D) = base (V,D) + alpha (1) * b (V,R) a (R,D); alpha[0] is alpha/rank."""
    matmul(b * alpha[0], a, out=merged)
    merged += base


def lora_bwd(dw: Array, b: Array, a: Array, alpha: Array, db: Array, da: Array) -> None:
    """Inverts `merged = base + alpha * b a`: db (V,R) += alpha * dw aᵀ; da (R,D) += alpha * bᵀ dw."""
    db += alpha[0] * matmul(dw, a.T)
    matmul((b * alpha[0]).T, dw, da, accumulate=True)


def dequant(codes: Array, scales: Array, values: Array, bits: int) -> None:
    """values (P) = packed little-endian fp16 (bits 16) or int8 times the scale of its block of P/Q values (bits 8)."""
    raw = np.ascontiguousarray(codes, "<i4")
    if bits == 16:
        values[...] = raw.view("<f2")[: len(values)]
    else:
        values[...] = raw.view(np.int8)[: len(values)]
        values.reshape(len(scales), -1)[...] *= scales[:, None]


# ---- backward passes for frozen parameters: the full ones, without what they are not asked for ----


def rmsnorm_bwd_inputs(x: Array, g: Array, rstd: Array, dy: Array, dx: Array) -> None:
    """See `ops.rmsnorm_bwd_inputs`."""
    rmsnorm_bwd(x, g, rstd, dy, dx, np.zeros_like(g))


def conv_bwd_inputs(w: Array, pos: Array, da: Array, dn: Array) -> None:
    """See `ops.conv_bwd_inputs`."""
    conv_bwd(da, w, pos, da, dn, None)


def moe_bwd_inputs(
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
    H: int,
    E: int,
    k: int,
) -> None:
    """See `ops.moe_bwd_inputs`."""
    moe_bwd(m, W, experts, gates, order, inverse, starts, hidden, dy, dm, None, H, E, k)


# ---- the low-rank path of the tied embedding: x (N,D), u (N,R), a (R,D), b (V,R) ----


def lora_down(noise: Array, x: Array, a: Array, alpha: Array, u: Array) -> None:
    """u = alpha[0] * drop(x) aᵀ."""
    matmul(x * drop_factors(noise, x.shape, x.dtype), a.T * alpha[0], out=u)


def lora_up(noise: Array, u: Array, a: Array, alpha: Array, x: Array) -> None:
    """x += drop(alpha[0] * u a); inverts lora_down for its x."""
    x += matmul(u * alpha[0], a) * drop_factors(noise, x.shape, x.dtype)


def lora_outer(noise: Array, u: Array, x: Array, alpha: Array, da: Array) -> None:
    """da += alpha[0] * uᵀ drop(x); inverts lora_down for its a."""
    matmul((u * alpha[0]).T, x * drop_factors(noise, x.shape, x.dtype), da, accumulate=True)


def lora_dropout(noise: Array, a: Array) -> None:
    """Columns of a (R,D) dropped in place."""
    a *= drop_factors(noise, (1, a.shape[1]), a.dtype)


def lora_head_logits(x: Array, u: Array, emb: Array, b: Array, logits: Array) -> None:
    """logits (N,V) = x embᵀ + u bᵀ."""
    matmul(x, emb.T, out=logits)
    matmul(u, b.T, logits, accumulate=True)


def lora_head_xent_fwd(x: Array, u: Array, emb: Array, b: Array, targets: Array, weights: Array, loss: Array) -> None:
    """loss (1) += Σ_n weights[n] * cross-entropy of row n."""
    for rows in scored_rows(targets, weights, len(emb)):
        loss[0] += row_losses(matmul(x[rows], emb.T) + matmul(u[rows], b.T), targets[rows], weights[rows])[1]


def lora_head_xent_bwd(
    x: Array,
    u: Array,
    emb: Array,
    b: Array,
    targets: Array,
    weights: Array,
    hyper: Array,
    loss: Array,
    dx: Array,
    du: Array,
    db: Array,
) -> None:
    """Inverts `logits = x embᵀ + u bᵀ`, emb frozen: loss +=, dx (N,D) =, du (N,R) =, db (V,R) +=."""
    dx[...] = 0
    du[...] = 0
    for rows in scored_rows(targets, weights, len(emb)):
        d, value = row_losses(matmul(x[rows], emb.T) + matmul(u[rows], b.T), targets[rows], weights[rows])
        loss[0] += value
        d[np.arange(len(rows)), targets[rows]] -= 1
        d *= (weights[rows] * hyper[HYPER["grad_scale"]])[:, None]
        dx[rows] = matmul(d, emb)
        du[rows] = matmul(d, b)
        matmul(d.T, u[rows], db, accumulate=True)


# ---- the same with a packed embedding ----


def unpacked(codes: Array, scales: Array, rows: int, cols: int, bits: int) -> Array:
    """The matrix (rows,cols), in the dtype of scales, that packed words stand for."""
    values = np.empty(rows * cols, scales.dtype)
    dequant(codes, scales, values, bits)
    return values.reshape(rows, cols)


def packed_embed_fwd(tokens: Array, codes: Array, scales: Array, x: Array, V: int, bits: int) -> None:
    """x (N,D) = the rows of the tokens; only those are unpacked."""
    D = x.shape[1]
    raw = np.ascontiguousarray(codes, "<i4").view("<f2" if bits == 16 else np.int8)[: V * D].reshape(V, D)
    rows = np.clip(tokens, 0, V - 1)
    x[...] = raw[rows]
    if bits == 8:
        x *= np.repeat(scales, V // len(scales))[rows][:, None] if len(scales) > 1 else scales[0]


def packed_head_logits(x: Array, u: Array, codes: Array, scales: Array, b: Array, logits: Array, bits: int) -> None:
    """See `lora_head_logits`."""
    lora_head_logits(x, u, unpacked(codes, scales, len(b), x.shape[1], bits), b, logits)


def packed_head_xent_fwd(
    x: Array, u: Array, codes: Array, scales: Array, b: Array, targets: Array, weights: Array, loss: Array, bits: int
) -> None:
    """See `lora_head_xent_fwd`."""
    lora_head_xent_fwd(x, u, unpacked(codes, scales, len(b), x.shape[1], bits), b, targets, weights, loss)


def packed_head_xent_bwd(
    x: Array,
    u: Array,
    codes: Array,
    scales: Array,
    b: Array,
    targets: Array,
    weights: Array,
    hyper: Array,
    loss: Array,
    dx: Array,
    du: Array,
    db: Array,
    bits: int,
) -> None:
    """See `lora_head_xent_bwd`."""
    emb = unpacked(codes, scales, len(b), x.shape[1], bits)
    lora_head_xent_bwd(x, u, emb, b, targets, weights, hyper, loss, dx, du, db)
