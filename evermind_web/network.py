"""The model as a list of operations: forward, and the exact backward that inverts it line by line.

Everything here is queued on a backend; nothing waits and nothing is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from evermind_web import ops
from evermind_web.backend.base import Backend, Buf
from evermind_web.batch import Batch
from evermind_web.formats.arch import Arch
from evermind_web.layout import ALIGN, moe_layout
from evermind_web.ops import NOISE
from evermind_web.params import ParamTable


@dataclass(frozen=True, slots=True)
class LayerViews:
    """The tensors of one layer: conv (D,K), both norm gains (D), the parameter block of the mixture (M)."""

    conv: Buf
    norm_conv: Buf
    norm_moe: Buf
    moe: Buf


@dataclass(frozen=True, slots=True)
class Views:
    """A flat vector (weights or gradients) cut into what the operations take."""

    emb: Buf
    layers: tuple[LayerViews, ...]


def cut(backend: Backend, arch: Arch, table: ParamTable, flat: Buf) -> Views:
    """Views into a flat padded vector (P)."""

    def view(name: str) -> Buf:
        spec = table.by_name[name]
        return backend.view(flat, spec.padded_offset, spec.shape)

    block = moe_layout(arch.d_model, arch.hidden_dim, arch.num_experts).size
    layers = []
    for i in range(arch.num_layers):
        at = f"layers.{i}"
        moe = backend.view(flat, table.by_name[f"{at}.moe.router.weight"].padded_offset, (block,))
        norms = view(f"{at}.norm_conv.weight"), view(f"{at}.norm_moe.weight")
        layers.append(LayerViews(view(f"{at}.conv.weight"), *norms, moe))
    return Views(view("token_embedding.weight"), tuple(layers))


@dataclass(frozen=True, slots=True)
class Noise:
    """What is random while training, all drawn from seed, step and place, so that a recompute draws the same again."""

    seed: int
    step: int
    dropout: float = 0.0
    router_noise: float = 0.0
    balance_coef: float = 0.0
    grad_scale: float = 1.0

    @property
    def random(self) -> bool:
        """Whether anything is drawn at all."""
        return self.dropout > 0 or self.router_noise > 0

    def part(self, number: int) -> Noise:
        """The noise of batch `number` of a step that is run as several."""
        return replace(self, seed=(self.seed + 0x9E3779B9 * number) % 2**32)

    def words(self, layers: int) -> NDArray[np.int32]:
        """`noise` rows (2L,64): row 2l is for the convolution of layer l, row 2l+1 for its mixture."""
        rows = np.zeros((2 * layers, ALIGN), np.uint32)
        rows[:, NOISE["seed"]], rows[:, NOISE["step"]] = self.seed, self.step % 2**32
        rows[:, NOISE["salt"]] = np.arange(len(rows))
        rows[:, NOISE["threshold"]] = min(int(self.dropout * 2**32), 2**32 - 1)
        rows[:, NOISE["amplitude"]] = np.float32(self.router_noise).view(np.uint32)
        return rows.view(np.int32)


@dataclass(frozen=True, slots=True)
class LayerTape:
    """What one layer's backward needs of its forward, N rows."""

    n: Buf  # (N,D) normed input of the convolution
    rstd_conv: Buf  # (N)
    a: Buf  # (N,D) after the convolution
    m: Buf  # (N,D) normed input of the mixture
    rstd_moe: Buf  # (N)
    experts: Buf  # (N,k) int32
    gates: Buf  # (N,k)
    probs: Buf  # (N,E)
    order: Buf  # (N*k) int32
    inverse: Buf  # (N*k) int32
    starts: Buf  # (E+1) int32
    hidden: Buf  # (N*(k+1),H)


class Tape:
    """The buffers of a forward (and backward) pass over N rows: inputs, layer inputs, what each layer keeps.

    `shared_layers=True` keeps one LayerTape for all layers: enough for inference, and for a backward that
    recomputes each layer from its input (activation checkpointing).
    """

    def __init__(self, backend: Backend, arch: Arch, rows: int, shared_layers: bool) -> None:
        self.backend, self.arch, self.rows, self.shared_layers = backend, arch, rows, shared_layers
        self._bufs: list[Buf] = []
        self.tokens, self.pos, self.targets = (self._new((rows,), "int32") for _ in range(3))
        self.weights, self.balance = self._new((rows,)), self._new((rows,))
        self._noise: list[Buf] = []
        self.noise: Noise | None = None
        self.x = [self._new((rows, arch.d_model)) for _ in range(arch.num_layers + 1)]
        self.layers = [self._layer() for _ in range(1 if shared_layers else arch.num_layers)]
        self._gradients: tuple[Buf, Buf] | None = None

    def _new(self, shape: tuple[int, ...], dtype: str = "float32") -> Buf:
        buf = self.backend.alloc(shape, dtype)
        self._bufs.append(buf)
        return buf

    def _layer(self) -> LayerTape:
        N, D = self.rows, self.arch.d_model
        E, k, H = self.arch.num_experts, self.arch.top_k, self.arch.hidden_dim
        wide = [self._new((N, D)) for _ in range(3)]
        ints = [self._new(shape, "int32") for shape in ((N, k), (N * k,), (N * k,), (E + 1,))]
        return LayerTape(
            n=wide[0], rstd_conv=self._new((N,)), a=wide[1], m=wide[2], rstd_moe=self._new((N,)),
            experts=ints[0], gates=self._new((N, k)), probs=self._new((N, E)),
            order=ints[1], inverse=ints[2], starts=ints[3], hidden=self._new((N * (k + 1), H)),
        )  # fmt: skip

    def layer(self, index: int) -> LayerTape:
        """The buffers of layer `index`."""
        return self.layers[0 if self.shared_layers else index]

    def gradients(self) -> tuple[Buf, Buf]:
        """d (N,D), the gradient that travels down the residual stream, and one more (N,D) for a branch."""
        if self._gradients is None:
            self._gradients = self._new((self.rows, self.arch.d_model)), self._new((self.rows, self.arch.d_model))
        return self._gradients

    def load(self, batch: Batch, noise: Noise | None = None) -> None:
        """Queue the upload of a batch of exactly `rows` rows; `noise` only for training."""
        for buf, array in ((self.tokens, batch.tokens), (self.pos, batch.pos), (self.targets, batch.targets)):
            self.backend.write(buf, array)
        self.backend.write(self.weights, batch.weights)
        self.noise = noise
        if noise is not None and noise.balance_coef:
            share = np.zeros(self.rows, np.float32)
            share[: batch.rows] = noise.grad_scale * noise.balance_coef * self.arch.num_experts / batch.rows
            self.backend.write(self.balance, share)
        if noise is not None and noise.random:
            if not self._noise:
                words = self._new((2 * self.arch.num_layers, ALIGN), "int32")
                self._noise = [words, *(self.backend.view(words, i * ALIGN, (ALIGN,)) for i in range(words.shape[0]))]
            self.backend.write(self._noise[0], noise.words(self.arch.num_layers))

    def drop(self, layer: int, branch: int, x: Buf) -> None:
        """Queue dropout on x (N,D), or on its gradient; branch 0 of a layer is its convolution, 1 its mixture."""
        if self.noise is not None and self.noise.dropout:
            ops.dropout(self.backend, (self._noise[1 + 2 * layer + branch],), (x,))

    def free(self) -> None:
        """Give all buffers back."""
        for buf in (*self._noise[1:], *self._bufs):
            self.backend.free(buf)
        self._noise, self._bufs = [], []


def layer_forward(tape: Tape, weights: Views, index: int) -> None:
    """x[index] → x[index+1] (=), filling the layer's tape (=)."""
    backend, arch, t, w = tape.backend, tape.arch, tape.layer(index), weights.layers[index]
    x, out = tape.x[index], tape.x[index + 1]
    ops.rmsnorm_fwd(backend, (x, w.norm_conv), (t.n, t.rstd_conv))
    tape.drop(index, 0, t.n)
    ops.conv_fwd(backend, (x, t.n, w.conv, tape.pos), (t.a,))
    ops.rmsnorm_fwd(backend, (t.a, w.norm_moe), (t.m, t.rstd_moe))
    tape.drop(index, 1, t.m)
    saved = (t.experts, t.gates, t.probs, t.order, t.inverse, t.starts, t.hidden)
    ops.moe_fwd(backend, (t.a, t.m, w.moe), (out, *saved), H=arch.hidden_dim, E=arch.num_experts, k=arch.top_k)


def forward(tape: Tape, weights: Views) -> Buf:
    """The residual stream after the last layer, (N,D); its logits are head_logits(x, weights.emb)."""
    ops.embed_fwd(tape.backend, (tape.tokens, weights.emb), (tape.x[0],))
    for index in range(tape.arch.num_layers):
        layer_forward(tape, weights, index)
    return tape.x[-1]


def layer_backward(tape: Tape, weights: Views, grads: Views, index: int) -> None:
    """Turns d from the gradient of x[index+1] into that of x[index]; gradients of the layer's tensors +=."""
    backend, arch, t = tape.backend, tape.arch, tape.layer(index)
    w, g = weights.layers[index], grads.layers[index]
    d, branch = tape.gradients()
    # x[index+1] = a + moe(drop(rmsnorm(a, norm_moe)))
    routing = (t.experts, t.gates, t.order, t.inverse, t.starts, t.hidden)
    sizes = {"H": arch.hidden_dim, "E": arch.num_experts, "k": arch.top_k}
    ops.moe_bwd(backend, (t.m, w.moe, *routing, d), (branch, g.moe), **sizes)
    if tape.noise is not None and tape.noise.balance_coef:
        ops.balance_bwd(backend, (t.m, w.moe, t.experts, t.probs, tape.balance), (branch, g.moe))
    tape.drop(index, 1, branch)
    ops.rmsnorm_bwd(backend, (t.a, w.norm_moe, t.rstd_moe, branch), (d, g.norm_moe))
    # a = x[index] + conv(drop(rmsnorm(x[index], norm_conv)))
    ops.conv_bwd(backend, (t.n, w.conv, tape.pos, d), (branch, g.conv))
    tape.drop(index, 0, branch)
    ops.rmsnorm_bwd(backend, (tape.x[index], w.norm_conv, t.rstd_conv, branch), (d, g.norm_conv))


def backward(tape: Tape, weights: Views, grads: Views, hyper: Buf, loss: Buf) -> None:
    """Loss (1) += and all gradients += for the forward pass that the tape holds.

    With a shared tape each layer is run again from its input before it is inverted: the same numbers, less memory.
    """
    backend = tape.backend
    d, _ = tape.gradients()
    ops.head_xent_bwd(backend, (tape.x[-1], weights.emb, tape.targets, tape.weights, hyper), (loss, d, grads.emb))
    for index in reversed(range(tape.arch.num_layers)):
        if tape.shared_layers:
            layer_forward(tape, weights, index)
        layer_backward(tape, weights, grads, index)
    ops.embed_bwd(backend, (tape.tokens, d), (grads.emb,))


class TapePool:
    """Tapes by number of rows, the least recently used one given back first."""

    def __init__(self, backend: Backend, arch: Arch, shared_layers: bool, keep: int = 3) -> None:
        self.backend, self.arch, self.shared_layers, self.keep = backend, arch, shared_layers, keep
        self._tapes: dict[int, Tape] = {}

    def get(self, rows: int) -> Tape:
        """A tape of exactly `rows` rows."""
        tape = self._tapes.pop(rows, None) or Tape(self.backend, self.arch, rows, self.shared_layers)
        self._tapes[rows] = tape
        while len(self._tapes) > self.keep:
            self._tapes.pop(next(iter(self._tapes))).free()
        return tape

    def free(self) -> None:
        """Give all tapes back."""
        for tape in self._tapes.values():
            tape.free()
        self._tapes.clear()


def views_of(views: Views) -> Iterator[Buf]:
    """Every view, to be freed."""
    yield views.emb
    for layer in views.layers:
        yield from (getattr(layer, f.name) for f in fields(layer))
