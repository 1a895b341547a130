"""THE interface between the model and the machine: every operation, its shapes, and what it does to its outputs.

One alphabet, used in the whole project:

    N rows of a batch (all tokens of all its sequences, one after another)    D model width    V vocabulary
    L layers    K conv taps    H hidden width of one expert    E routed experts    k experts per token
    R LoRA rank    P length of a flat padded vector    B sequences decoded side by side    S steps decoded at once
    I inputs, A dimensions of the affect state of the limbic model

A batch is ragged: its sequences lie one after another in N rows, and `pos (N)` is each row's place within its
own sequence, so a conv tap j is inside the sequence exactly where pos >= j. Rows that only fill up a batch have
target IGNORE and weight 0; they change no loss and no gradient.

An output is marked `=` (overwritten, whatever was in it) or `+=` (accumulated onto what is there). `float32`
unless marked `:i` (int32). `W (M)` is the padded parameter block of one mixture of experts (`layout.moe_layout`).
`rtol` is what two backends may differ by, relative to the largest value of an output: float32 sums of the
operation's length in another order.

This file computes nothing and knows no backend. The maths is in `backend/reference/`, the kernels in `wgsl/`.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evermind_web.backend.base import Backend, Buf
from evermind_web.errors import InvalidArgumentError

MAX_SEEN: Final = 1024  # combinations of shapes that an operation remembers as good
IGNORE: Final = -100  # target of a row that is not scored

# Slots of the `hyper` buffer: what changes from step to step, so that a step can be replayed with new values.
HYPER: Final = {
    name: i
    for i, name in enumerate(
        (
            "lr",
            "beta1",
            "one_minus_beta1",  # passed on its own: 1 - beta would lose digits in float32
            "beta2",
            "one_minus_beta2",
            "eps",
            "weight_decay",
            "bias_correction1",  # 1 - beta1**t
            "bias_correction2",
            "grad_scale",  # the gradient is multiplied by this in the loss: the loss scale
            "inv_grad_scale",  # and by this before the update
            "max_grad_norm",  # 0: no clipping
        )
    )
}
HYPER_SIZE: Final = 16


def hyper_vector(values: Mapping[str, float]) -> NDArray[np.float32]:
    """The contents of a `hyper` buffer; gradient scales default to 1, all others to 0."""
    vector = np.zeros(HYPER_SIZE, np.float32)
    for name, value in ({"grad_scale": 1.0, "inv_grad_scale": 1.0} | dict(values)).items():
        vector[HYPER[name]] = value
    return vector


# Words of a `noise` row: what a random draw depends on. amplitude is a float32 by its bits; threshold is p * 2^32.
NOISE: Final = {name: i for i, name in enumerate(("seed", "step", "salt", "threshold", "amplitude"))}
NOISE_SIZE: Final = 64
SAMPLING: Final = {  # slots of the `sampling` buffer, as in `generation.GenerationConfig`
    name: i
    for i, name in enumerate(
        ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty")
    )
}
SAMPLING_SIZE: Final = 16


@dataclass(frozen=True, slots=True)
class Arg:
    """One operand: name, shape in letters ("N*k" and "E+1" allowed), dtype, and for outputs whether it accumulates."""

    name: str
    dims: tuple[str, ...]
    dtype: str
    accumulates: bool


@dataclass(frozen=True)
class Op:
    """A named operation; calling it checks shapes and dtypes and queues it on the backend."""

    name: str
    ins: tuple[Arg, ...]
    outs: tuple[Arg, ...]
    scalars: tuple[str, ...]
    rtol: float
    about: str = field(repr=False)
    _seen: set[Hashable] = field(default_factory=set, repr=False, compare=False)  # operands that were found to fit

    def __call__(self, backend: Backend, ins: Sequence[Buf], outs: Sequence[Buf], **scalars: int) -> None:
        """Queue the operation. Raises InvalidArgumentError if an operand does not fit."""
        given = (len(ins), *scalars.items(), *[(buf.shape, buf.dtype) for buf in (*ins, *outs)])
        if given not in self._seen:
            self._check_all(ins, outs, scalars)
            if len(self._seen) >= MAX_SEEN:
                self._seen.clear()
            self._seen.add(given)
        backend.run(self.name, ins, outs, tuple(scalars.values()))

    def _check_all(self, ins: Sequence[Buf], outs: Sequence[Buf], scalars: Mapping[str, int]) -> None:
        if tuple(scalars) != self.scalars:
            raise InvalidArgumentError(f"{self.name}: expected scalars {self.scalars}, got {tuple(scalars)}")
        letters: dict[str, int] = dict(scalars)
        for args, bufs, side in ((self.ins, ins, "inputs"), (self.outs, outs, "outputs")):
            if len(args) != len(bufs):
                raise InvalidArgumentError(f"{self.name}: expected {len(args)} {side}, got {len(bufs)}")
            for arg, buf in zip(args, bufs, strict=True):
                self._check(arg, buf, letters)

    def _check(self, arg: Arg, buf: Buf, letters: dict[str, int]) -> None:
        if buf.dtype != arg.dtype:
            raise InvalidArgumentError(f"{self.name}: {arg.name} must be {arg.dtype}, got {buf.dtype}")
        wanted = f"({', '.join(arg.dims)})"
        if len(buf.shape) != len(arg.dims):
            raise InvalidArgumentError(f"{self.name}: {arg.name} must have shape {wanted}, got {buf.shape}")
        for dim, extent in zip(arg.dims, buf.shape, strict=True):
            if dim.isalpha() and dim not in letters:
                letters[dim] = extent
            expected = extent_of(dim, letters)
            if expected != extent:
                known = {name: value for name, value in letters.items() if name in wanted}
                raise InvalidArgumentError(
                    f"{self.name}: {arg.name} must have shape {wanted} with {known}, got {buf.shape}"
                )


def extent_of(dim: str, letters: Mapping[str, int]) -> int:
    """The value of a dimension such as "N", "E+1", "K-1", "N*k" or "N*(k+1)"; every letter must be known."""
    product = 1
    for name, more in _factors(dim):
        product *= (int(name) if name.isdigit() else letters[name]) + more
    return product


@cache
def _factors(dim: str) -> tuple[tuple[str, int], ...]:
    """(letter or number, what is added to it) of each factor."""
    factors = []
    for factor in dim.split("*"):
        match = re.fullmatch(r"\(?([A-Za-z]+|\d+)([+-]\d+)?\)?", factor)
        if match is None:
            raise InvalidArgumentError(f"not a dimension: {dim!r}")
        factors.append((match[1], int(match[2] or 0)))
    return tuple(factors)


def _args(text: str, outputs: bool) -> tuple[Arg, ...]:
    parsed = []
    for name, kind, dims, mode in re.findall(r"(\w+)(:i)? \(((?:[^()]|\([^()]*\))*)\)\s*(\+?=)?", text):
        if outputs != bool(mode):
            raise InvalidArgumentError(f"an output, and only an output, is marked = or +=: {text!r}")
        shape = tuple(dim.strip() for dim in dims.split(","))
        parsed.append(Arg(name, shape, "int32" if kind else "float32", mode == "+="))
    return tuple(parsed)


OPS: dict[str, Op] = {}


def _op(name: str, ins: str, outs: str, about: str, scalars: tuple[str, ...] = (), rtol: float = 1e-5) -> Op:
    OPS[name] = Op(name, _args(ins, False), _args(outs, True), scalars, rtol, about)
    return OPS[name]


embed_fwd = _op(
    "embed_fwd", "tokens:i (N), emb (V, D)", "x (N, D) =",
    "x[n] = emb[tokens[n]]", rtol=0.0,
)  # fmt: skip
embed_bwd = _op(
    "embed_bwd", "tokens:i (N), dx (N, D)", "demb (V, D) +=",
    "demb[tokens[n]] += dx[n], rows of one token added in ascending n",
)  # fmt: skip
rmsnorm_fwd = _op(
    "rmsnorm_fwd", "x (N, D), g (D)", "y (N, D) =, rstd (N) =",
    "rstd = 1/sqrt(mean(x^2) + 1e-5); y = g * x * rstd",
)  # fmt: skip
rmsnorm_bwd = _op(
    "rmsnorm_bwd", "x (N, D), g (D), rstd (N), dy (N, D)", "dx (N, D) +=, dg (D) +=",
    "dx += rstd*(g*dy) - x * rstd^3 * mean(g*dy*x); dg += sum_n dy*x*rstd", rtol=1e-4,
)  # fmt: skip
conv_fwd = _op(
    "conv_fwd", "x (N, D), n (N, D), w (D, K), pos:i (N)", "a (N, D) =",
    "a[t,c] = x[t,c] + sum_{j<K, pos[t]>=j} w[c,j] * n[t-j,c]",
)  # fmt: skip
conv_norm_fwd = _op(
    "conv_norm_fwd", "x (N, D), n (N, D), w (D, K), pos:i (N), g (D)", "a (N, D) =, m (N, D) =, rstd (N) =",
    "conv_fwd, and rmsnorm_fwd of its result by g: m, rstd",
)  # fmt: skip
conv_bwd = _op(
    "conv_bwd", "n (N, D), w (D, K), pos:i (N), da (N, D)", "dn (N, D) =, dw (D, K) +=",
    "dn[t,c] = sum_{j: pos[t+j]>=j} da[t+j,c] * w[c,j]; dw[c,j] += sum_t da[t,c] * n[t-j,c]", rtol=1e-4,
)  # fmt: skip
conv_step = _op(
    "conv_step", "x (B, D), n (B, D), w (D, K)", "a (B, D) =, state (B, Q, D) +=",
    "one decoding step, Q = max(K-1, 1): state holds the last K-1 normed inputs, oldest first; "
    "a = x + w[:,0]*n + sum_{j=1..K-1} w[:,j]*state[K-1-j]; then state is shifted by one and n becomes its newest row "
    "(for K = 1 the one row is not used)",
)  # fmt: skip
moe_fwd = _op(
    "moe_fwd", "a (N, D), m (N, D), W (M), noise:i (64)",
    "out (N, D) =, experts:i (N, k) =, gates (N, k) =, probs (N, E) =, "
    "order:i (N*k) =, inverse:i (N*k) =, starts:i (E+1) =, hidden (N*(k+1), H) =",
    "router logits wr m, plus amplitude*u while training (u uniform in [-1, 1), drawn as in reference/noise.py); "
    "experts = the k largest, largest first, equal ones lowest index first; "
    "gates = softmax over those, NaN if any logit is; probs = softmax over all; "
    "out = a + shared(m) + sum gate*expert(m). "
    "order = slots n*k+i sorted by expert, stable; inverse[slot] = its place in order; starts[e] = first place of e; "
    "hidden = relu(w1 m + b1): rows 0..N-1 of the shared expert, then one row per place of order",
    scalars=("H", "E", "k"), rtol=1e-4,
)  # fmt: skip
moe_bwd = _op(
    "moe_bwd",
    "m (N, D), W (M), experts:i (N, k), gates (N, k), order:i (N*k), inverse:i (N*k), starts:i (E+1), "
    "hidden (N*(k+1), H), dy (N, D)",
    "dm (N, D) =, dW (M) +=",
    "gradients of shared(m) + sum gate*expert(m) for m and every parameter of the block; the choice is constant",
    scalars=("H", "E", "k"), rtol=1e-4,
)  # fmt: skip
layer_step = _op(
    "layer_step", "x (B, D), norm_conv (D), conv (D, K), norm_moe (D), W (M)", "out (B, D) =, state (B, Q, D) +=",
    "one decoding step of a layer: rmsnorm_fwd by norm_conv, conv_step, rmsnorm_fwd by norm_moe, moe_fwd, no noise; "
    "out may be x",
    scalars=("H", "E", "k"), rtol=1e-4,
)  # fmt: skip
balance_bwd = _op(
    "balance_bwd", "m (N, D), W (M), experts:i (N, k), probs (N, E), balance (N)", "dm (N, D) +=, dW (M) +=",
    "gradient of the load-balance loss for the router: "
    "dlogit[n,j] = balance[n] * probs[n,j] * (f[j] - sum_e f[e] probs[n,e]) with f[e] the share of expert e in the "
    "choices of the rows whose balance is not 0; dm += dlogit wr; dwr += dlogit^T m",
    rtol=1e-4,
)  # fmt: skip
dropout = _op(
    "dropout", "noise:i (64)", "x (N, D) +=",
    "x *= keep / (1 - p) in place; element i is dropped where mix(key ^ i) < threshold = p 2^32, "
    "key = mix(mix(mix(seed) ^ step) ^ salt), mix as in reference/noise.py. Backward: the same call on the gradient",
)  # fmt: skip
head_logits = _op(
    "head_logits", "x (N, D), emb (V, D)", "logits (N, V) =",
    "logits = x emb^T",
)  # fmt: skip
head_xent_fwd = _op(
    "head_xent_fwd", "x (N, D), emb (V, D), targets:i (N), weights (N)", "loss (1) +=",
    "loss += sum_n weights[n] * (logsumexp(x[n] emb^T) - (x[n] emb^T)[targets[n]]), rows of target IGNORE left out",
)  # fmt: skip
head_xent_bwd = _op(
    "head_xent_bwd", "x (N, D), emb (V, D), targets:i (N), weights (N), hyper (16)",
    "loss (1) +=, dx (N, D) =, demb (V, D) +=",
    "the loss of head_xent_fwd and its gradients in one: d = hyper.grad_scale * weights[n] * (softmax - onehot); "
    "dx = d emb; demb += d^T x", rtol=1e-4,
)  # fmt: skip
lora_fwd = _op(
    "lora_fwd", "base (V, D), b (V, R), a (R, D), alpha (1)", "merged (V, D) =",
    "merged = base + alpha[0] * b a (alpha[0] is alpha/rank)",
)  # fmt: skip
lora_bwd = _op(
    "lora_bwd", "dw (V, D), b (V, R), a (R, D), alpha (1)", "db (V, R) +=, da (R, D) +=",
    "gradients of merged: db += alpha[0] * dw a^T; da += alpha[0] * b^T dw", rtol=1e-4,
)  # fmt: skip
dequant = _op(
    "dequant", "codes:i (C), scales (Q)", "values (P) =",
    "values from packed storage, `bits` 16 (two fp16 in a word) or 8 (four int8 in a word, times the scale of their "
    "block of P/Q values)",
    scalars=("bits",), rtol=0.0,
)  # fmt: skip
grad_stats = _op(
    "grad_stats", "g (P), hyper (16)", "stats (2) +=",
    "stats[0] = sum (g*inv_grad_scale)^2; stats[1] = 1 if any g is NaN or infinite (by its bits), else 0. "
    "half = 1: g is first rounded to fp16, so that 65520 and more count as infinite. add = 0: stats is overwritten; "
    "1: it holds those of other parts of the vector; the flag stays 0 or 1",
    scalars=("half", "add"), rtol=1e-4,
)  # fmt: skip
adamw = _op(
    "adamw", "g (P), group (G), hyper (16), stats (2)", "p (P) +=, m (P) +=, v (P) +=",
    "AdamW of FORMAT 8 on g*inv_grad_scale, clipped to max_grad_norm; nothing changes if stats[1] != 0. "
    "group has one value per 64 elements: 1 decayed, 0 not decayed, -1 left alone. half as in grad_stats",
    scalars=("half",), rtol=1e-4,
)  # fmt: skip
sample = _op(
    "sample", "logits (B, V), sampling (16), draws:i (B, S), bias (V)",
    "token:i (B) =, cursor:i (B) +=, out:i (B, 2, S) +=, counts:i (B, V) +=",
    "choose one token a row: l = logits + bias; where counts > 0, l is divided by repetition_penalty if positive, else "
    "multiplied; l -= frequency_penalty*counts + presence_penalty*(counts > 0). temperature 0: first largest l. Else "
    "p = exp((l - max)/temperature) over the tokens that stay: the top_k largest l, of those the largest that make up "
    "top_p of the sum, of those p >= min_p (equal ones stay together); the first i where u*sum <= cumulative p, or the "
    "last that stays, u = draws[b, cursor] as uint32 / 2^32. token[b] = out[b, 0, cursor[b]] = choice; "
    "out[b, 1, cursor[b]] = bits of its log softmax(logits); counts[b, choice] += 1; cursor += 1. "
    "-1 if a logit, or a bias other than -inf, is not finite, -2 if the bias left no candidate",
)  # fmt: skip
limbic_fwd = _op(
    "limbic_fwd", "x (N, I), h (N, H), s (N, A), W (M)", "hidden (N, H) =, delta (N, A) =, reward (N) =",
    "one step of the limbic model for each of N samples; W is its padded vector (`layout.limbic_layout`): "
    "a = sigmoid(a_logit); hidden = a*h + (1-a)*tanh(win x + ws s); delta = tanh(wout_state hidden + bout_state); "
    "reward = wout_reward hidden + bout_reward",
)  # fmt: skip
limbic_bwd = _op(
    "limbic_bwd", "x (N, I), h (N, H), s (N, A), W (M), targets (N, A+2), reward_weight (1)",
    "loss (1) +=, dW (M) +=",
    "a row of targets is delta (A), reward, weight; loss += sum weight*(|delta-target|^2 + "
    "reward_weight*(reward-target)^2)/2 and its gradient for every parameter; h is a constant", rtol=1e-4,
)  # fmt: skip

# ---- what adapters need besides: backward passes without frozen parameters, and the low-rank path ----
# `drop` keeps an element or sets it to 0, as `dropout` does; a noise row of zeros keeps everything. A rank R of 0 is
# allowed in the head and stands for an embedding without an adapter.

rmsnorm_bwd_inputs = _op(
    "rmsnorm_bwd_inputs", "x (N, D), g (D), rstd (N), dy (N, D)", "dx (N, D) +=",
    "rmsnorm_bwd for a frozen g", rtol=1e-4,
)  # fmt: skip
conv_bwd_inputs = _op(
    "conv_bwd_inputs", "w (D, K), pos:i (N), da (N, D)", "dn (N, D) =",
    "conv_bwd for a frozen w", rtol=1e-4,
)  # fmt: skip
moe_bwd_inputs = _op(
    "moe_bwd_inputs",
    "m (N, D), W (M), experts:i (N, k), gates (N, k), order:i (N*k), inverse:i (N*k), starts:i (E+1), "
    "hidden (N*(k+1), H), dy (N, D)",
    "dm (N, D) =",
    "moe_bwd for a frozen W", scalars=("H", "E", "k"), rtol=1e-4,
)  # fmt: skip
lora_down = _op(
    "lora_down", "noise:i (64), x (N, D), a (R, D), alpha (1)", "u (N, R) =",
    "u = alpha[0] * drop(x) a^T",
)  # fmt: skip
lora_up = _op(
    "lora_up", "noise:i (64), u (N, R), a (R, D), alpha (1)", "x (N, D) +=",
    "x += drop(alpha[0] * u a): the gradient of lora_down's x, given that of its u",
)  # fmt: skip
lora_outer = _op(
    "lora_outer", "noise:i (64), u (N, R), x (N, D), alpha (1)", "da (R, D) +=",
    "da += alpha[0] * u^T drop(x): the gradient of lora_down's a, given u's", rtol=1e-4,
)  # fmt: skip
lora_dropout = _op(
    "lora_dropout", "noise:i (64)", "a (R, D) +=",
    "whole columns of a kept or set to 0 as `dropout` does, element c of the draws for column c: a matrix that is "
    "merged before use sees its inputs dropped, the same ones for all rows",
)  # fmt: skip
lora_head_logits = _op(
    "lora_head_logits", "x (N, D), u (N, R), emb (V, D), b (V, R)", "logits (N, V) =",
    "logits = x emb^T + u b^T",
)  # fmt: skip
lora_head_xent_fwd = _op(
    "lora_head_xent_fwd", "x (N, D), u (N, R), emb (V, D), b (V, R), targets:i (N), weights (N)", "loss (1) +=",
    "head_xent_fwd for the logits of lora_head_logits",
)  # fmt: skip
lora_head_xent_bwd = _op(
    "lora_head_xent_bwd",
    "x (N, D), u (N, R), emb (V, D), b (V, R), targets:i (N), weights (N), hyper (16)",
    "loss (1) +=, dx (N, D) =, du (N, R) =, db (V, R) +=",
    "head_xent_bwd for the logits of lora_head_logits and a frozen emb: dx = d emb; du = d b; db += d^T u", rtol=1e-4,
)  # fmt: skip
_PACKED = "codes and scales as in `dequant` stand for emb (V, D)"
packed_embed_fwd = _op(
    "packed_embed_fwd", "tokens:i (N), codes:i (C), scales (Q)", "x (N, D) =",
    f"embed_fwd; {_PACKED}", scalars=("V", "bits"),
)  # fmt: skip
packed_head_logits = _op(
    "packed_head_logits", "x (N, D), u (N, R), codes:i (C), scales (Q), b (V, R)", "logits (N, V) =",
    f"lora_head_logits; {_PACKED}", scalars=("bits",),
)  # fmt: skip
packed_head_xent_fwd = _op(
    "packed_head_xent_fwd", "x (N, D), u (N, R), codes:i (C), scales (Q), b (V, R), targets:i (N), weights (N)",
    "loss (1) +=",
    f"lora_head_xent_fwd; {_PACKED}", scalars=("bits",),
)  # fmt: skip
packed_head_xent_bwd = _op(
    "packed_head_xent_bwd",
    "x (N, D), u (N, R), codes:i (C), scales (Q), b (V, R), targets:i (N), weights (N), hyper (16)",
    "loss (1) +=, dx (N, D) =, du (N, R) =, db (V, R) +=",
    f"lora_head_xent_bwd; {_PACKED}", scalars=("bits",), rtol=1e-4,
)  # fmt: skip
