"""The model as a list of operations: forward, and the exact backward that inverts it line by line.

Everything here is queued on a backend; nothing waits and nothing is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import count
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from evermind_web import ops
from evermind_web.backend.base import Backend, Buf
from evermind_web.batch import Batch
from evermind_web.embedding import DenseEmbedding, Embedding, EmbeddingBackward
from evermind_web.errors import InvalidArgumentError
from evermind_web.flat_vector import FlatVector
from evermind_web.formats.arch import Arch
from evermind_web.layout import ALIGN, moe_layout, padded
from evermind_web.ops import NOISE
from evermind_web.params import ParamTable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LayerViews:
    """The tensors of one layer: conv (D,K), both norm gains (D), the parameter block of the mixture (M)."""

    conv: Buf
    norm_conv: Buf
    norm_moe: Buf
    moe: Buf


@dataclass(frozen=True, slots=True)
class Views:
    """Weights as the operations take them."""

    embedding: Embedding
    layers: tuple[LayerViews, ...]
    serial: int = field(default_factory=count().__next__, init=False)  # names these buffers in keys of `replay`

    @property
    def emb(self) -> Buf:
        """The embedding's matrix (V,D), where it is a plain one. Raises InvalidArgumentError otherwise."""
        if not isinstance(self.embedding, DenseEmbedding):
            raise InvalidArgumentError("this embedding is no plain matrix: it is packed, or has an adapter on it")
        return self.embedding.emb


@dataclass(frozen=True, slots=True)
class LayerGrads:
    """Where the gradients of one layer go (+=); None for a tensor (or mixture) that is frozen."""

    conv: Buf | None = None
    norm_conv: Buf | None = None
    norm_moe: Buf | None = None
    moe: Buf | None = None


@dataclass(frozen=True, slots=True)
class Grads:
    """Where gradients go. What is frozen has no place, and no work is done for it."""

    embedding: EmbeddingBackward
    layers: tuple[LayerViews | LayerGrads, ...]
    serial: int = field(default_factory=count().__next__, init=False)  # names these buffers in keys of `replay`

    @property
    def lowest(self) -> int:
        """The first layer that must be inverted: nothing below it is trained."""
        if self.embedding.trained:
            return 0
        trained = (
            i for i, layer in enumerate(self.layers) if any(getattr(layer, f.name) is not None for f in fields(layer))
        )
        return next(trained, len(self.layers))


def cut(arch: Arch, table: ParamTable, flat: FlatVector) -> Views:
    """Views into a flat padded vector (P), of weights or of gradients."""
    spec = table.by_name["token_embedding.weight"]
    emb = flat.view(spec.padded_offset, spec.shape)
    return Views(DenseEmbedding(flat.backend, emb), cut_layers(arch, table, flat))


def cut_layers(arch: Arch, table: ParamTable, flat: FlatVector) -> tuple[LayerViews, ...]:
    """The layers' part of `cut`; the table may lack the embedding."""

    def view(name: str) -> Buf:
        spec = table.by_name[name]
        return flat.view(spec.padded_offset, spec.shape)

    block = moe_layout(arch.d_model, arch.hidden_dim, arch.num_experts).size
    layers = []
    for i in range(arch.num_layers):
        at = f"layers.{i}"
        moe = flat.view(table.by_name[f"{at}.moe.router.weight"].padded_offset, (block,))
        norms = view(f"{at}.norm_conv.weight"), view(f"{at}.norm_moe.weight")
        layers.append(LayerViews(view(f"{at}.conv.weight"), *norms, moe))
    return tuple(layers)


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
        room = padded(rows)
        self.ids = self._new((3, room), "int32")  # one upload
        self._id_views = [backend.view(self.ids, i * room, (rows,)) for i in range(3)]
        self.tokens, self.pos, self.targets = self._id_views
        self.weights, self.balance = self._new((rows,)), self._new((rows,))
        self._no_noise = self._new((ALIGN,), "int32")
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
        self.backend.write(self.ids, batch.ids)
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

    def router_noise(self, layer: int) -> Buf:
        """The `noise` row of a layer's router; zeros outside training."""
        on = self.noise is not None and self.noise.router_noise > 0
        return self._noise[2 + 2 * layer] if on else self._no_noise

    def free(self) -> None:
        """Give all buffers back."""
        for buf in (*self._noise[1:], *self._id_views, *self._bufs):
            self.backend.free(buf)
        self._noise, self._id_views, self._bufs = [], [], []


def layer_forward(tape: Tape, weights: Views, index: int) -> None:
    """x[index] → x[index+1] (=), filling the layer's tape (=)."""
    backend, arch, t, w = tape.backend, tape.arch, tape.layer(index), weights.layers[index]
    x, out = tape.x[index], tape.x[index + 1]
    ops.rmsnorm_fwd(backend, (x, w.norm_conv), (t.n, t.rstd_conv))
    tape.drop(index, 0, t.n)
    ops.conv_norm_fwd(backend, (x, t.n, w.conv, tape.pos, w.norm_moe), (t.a, t.m, t.rstd_moe))
    tape.drop(index, 1, t.m)
    saved = (t.experts, t.gates, t.probs, t.order, t.inverse, t.starts, t.hidden)
    inputs = (t.a, t.m, w.moe, tape.router_noise(index))
    ops.moe_fwd(backend, inputs, (out, *saved), H=arch.hidden_dim, E=arch.num_experts, k=arch.top_k)


def forward(tape: Tape, weights: Views) -> Buf:
    """The residual stream after the last layer, (N,D), from which `weights.embedding` makes the logits."""
    weights.embedding.lookup(tape.tokens, tape.x[0])
    for index in range(tape.arch.num_layers):
        layer_forward(tape, weights, index)
    return tape.x[-1]


def layer_backward(tape: Tape, weights: Views, grads: Grads, index: int) -> None:
    """Turns d from the gradient of x[index+1] into that of x[index]; gradients of the layer's tensors +=."""
    backend, t, w, g = tape.backend, tape.layer(index), weights.layers[index], grads.layers[index]
    d, branch = tape.gradients()
    # x[index+1] = a + moe(drop(rmsnorm(a, norm_moe)))
    mixture_backward(tape, t, w.moe, g.moe, d, branch)
    tape.drop(index, 1, branch)
    norm_backward(backend, (t.a, w.norm_moe, t.rstd_moe, branch), d, g.norm_moe)
    # a = x[index] + conv(drop(rmsnorm(x[index], norm_conv)))
    if g.conv is None:
        ops.conv_bwd_inputs(backend, (w.conv, tape.pos, d), (branch,))
    else:
        ops.conv_bwd(backend, (t.n, w.conv, tape.pos, d), (branch, g.conv))
    tape.drop(index, 0, branch)
    norm_backward(backend, (tape.x[index], w.norm_conv, t.rstd_conv, branch), d, g.norm_conv)


def mixture_backward(tape: Tape, t: LayerTape, moe: Buf, dmoe: Buf | None, d: Buf, branch: Buf) -> None:
    """branch = gradient of the mixture's input m, given d, that of its output; dmoe (M) += unless it is frozen."""
    backend, arch = tape.backend, tape.arch
    given = (t.m, moe, t.experts, t.gates, t.order, t.inverse, t.starts, t.hidden, d)
    sizes = {"H": arch.hidden_dim, "E": arch.num_experts, "k": arch.top_k}
    if dmoe is None:
        ops.moe_bwd_inputs(backend, given, (branch,), **sizes)
        return
    ops.moe_bwd(backend, given, (branch, dmoe), **sizes)
    if tape.noise is not None and tape.noise.balance_coef:
        ops.balance_bwd(backend, (t.m, moe, t.experts, t.probs, tape.balance), (branch, dmoe))


def norm_backward(backend: Backend, given: tuple[Buf, Buf, Buf, Buf], dx: Buf, dg: Buf | None) -> None:
    """dx += and dg (D) += for x, g, rstd, dy; dg None: the gain is frozen."""
    if dg is None:
        ops.rmsnorm_bwd_inputs(backend, given, (dx,))
    else:
        ops.rmsnorm_bwd(backend, given, (dx, dg))


def backward(tape: Tape, weights: Views, grads: Grads, hyper: Buf, loss: Buf) -> None:
    """Loss (1) += and all gradients += for the forward pass that the tape holds.

    With a shared tape each layer is run again from its input before it is inverted: the same numbers, less memory.
    """
    d, _ = tape.gradients()
    grads.embedding.loss(tape.x[-1], tape.targets, tape.weights, hyper, loss, d)
    for index in reversed(range(grads.lowest, tape.arch.num_layers)):
        if tape.shared_layers:
            layer_forward(tape, weights, index)
        layer_backward(tape, weights, grads, index)
    if grads.embedding.trained:
        grads.embedding.lookup(tape.tokens, d)


class RowPool(Generic[T]):
    """What `make` makes for a number of rows, the least recently used given back by `release` first."""

    def __init__(self, make: Callable[[int], T], release: Callable[[T], object], keep: int = 3) -> None:
        self._make, self._release, self._keep = make, release, keep
        self._kept: dict[int, T] = {}

    def get(self, rows: int) -> T:
        """That of exactly `rows` rows; contents are arbitrary."""
        found = self._kept.pop(rows) if rows in self._kept else self._make(rows)
        self._kept[rows] = found
        while len(self._kept) > self._keep:
            self._release(self._kept.pop(next(iter(self._kept))))
        return found

    def free(self) -> None:
        """Give all back."""
        while self._kept:
            self._release(self._kept.popitem()[1])


def views_of(views: Views) -> Iterator[Buf]:
    """Every view, to be freed."""
    yield views.emb
    for layer in views.layers:
        yield from (getattr(layer, f.name) for f in fields(layer))
