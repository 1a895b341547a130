"""Adapters on the device: the tensors of one adapter in a flat vector, and the weights of a base with it on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

import numpy as np

from evermind_web import ops
from evermind_web.backend.base import Backend, Buf
from evermind_web.layout import ALIGN, padded
from evermind_web.lora.base import Base
from evermind_web.lora.config import EMBEDDING
from evermind_web.lora.embedding import LowRankBackward, LowRankEmbedding, RowScratch
from evermind_web.network import Grads, LayerGrads, LayerViews, Views
from evermind_web.ops import NOISE
from evermind_web.params import F32

_SERIALS = count()
SALT = 0x10000  # first salt of adapters' dropout, far from those of the layers


class LowRank(Protocol):
    """delta = scale · B (rows,R) A (R,cols); a `LoRAAdapter` is one."""

    B: F32
    A: F32

    @property
    def scale(self) -> float: ...


@dataclass
class Sum:
    """What several adapters on one matrix add up to, weighted: their B side by side, their A one below the other."""

    B: F32
    A: F32
    scale: float = 1.0

    @classmethod
    def of(cls, parts: Sequence[tuple[LowRank, float]]) -> Sum:
        """Σ weight · delta of the parts."""
        left = [part.B * np.float32(part.scale * weight) for part, weight in parts]
        return cls(np.concatenate(left, axis=1), np.concatenate([part.A for part, _ in parts], axis=0))


@dataclass(frozen=True, slots=True)
class Factors:
    """Views of one target: b (rows,R), a (R,cols), scale (1), noise (64) of its dropout."""

    b: Buf
    a: Buf
    scale: Buf
    noise: Buf


class BoundAdapter:
    """The tensors of one adapter on a device. `flat` holds, for each target in order, B and then A."""

    def __init__(self, backend: Backend, parts: Mapping[str, LowRank]) -> None:
        self.backend, self.parts = backend, dict(parts)
        sizes = [padded(m.size) for part in self.parts.values() for m in (part.B, part.A)]
        targets = len(self.parts)
        self.flat, self._scales = backend.alloc((sum(sizes),)), backend.alloc((targets * ALIGN,))
        self._noise = backend.alloc((targets * ALIGN,), "int32")
        self.noisy = False
        self._blocks = [size // ALIGN for size in sizes]
        self.factors = self._cut(self.flat)
        self.upload()

    def _cut(self, flat: Buf) -> dict[str, Factors]:
        out, at = {}, 0
        for i, (name, part) in enumerate(self.parts.items()):
            b = self.backend.view(flat, at, part.B.shape)
            a = self.backend.view(flat, at + padded(part.B.size), part.A.shape)
            at += padded(part.B.size) + padded(part.A.size)
            scale, noise = (
                self.backend.view(buf, i * ALIGN, (n,)) for buf, n in ((self._scales, 1), (self._noise, ALIGN))
            )
            out[name] = Factors(b, a, scale, noise)
        return out

    def twin(self) -> tuple[Buf, dict[str, Factors]]:
        """A vector like `flat`, for gradients or a changed copy, and its factors; the caller gives both back."""
        flat = self.backend.alloc(self.flat.shape)
        return flat, self._cut(flat)

    def release(self, factors: Mapping[str, Factors]) -> None:
        """Give the views of factors back."""
        for at in factors.values():
            for view in (at.b, at.a, at.scale, at.noise):
                self.backend.free(view)

    def upload(self) -> None:
        """Host → device."""
        for name, part in self.parts.items():
            at = self.factors[name]
            self.backend.write(at.b, part.B)
            self.backend.write(at.a, part.A)
            self.backend.write(at.scale, np.array([part.scale], np.float32))

    async def download(self) -> None:
        """Device → host."""
        bufs = [buf for at in self.factors.values() for buf in (at.b, at.a)]
        arrays = iter(await self.backend.read(*bufs))
        for part in self.parts.values():
            part.B[...], part.A[...] = next(arrays), next(arrays)

    def set_noise(self, seed: int, step: int, dropout: float, only: str | None = None) -> None:
        """What dropout draws from, for all targets or one; dropout 0 turns it off."""
        if not dropout and not self.noisy:
            return
        rows = np.zeros((len(self.parts), ALIGN), np.uint32)
        rows[:, NOISE["seed"]], rows[:, NOISE["step"]] = seed % 2**32, step % 2**32
        rows[:, NOISE["salt"]] = SALT + np.arange(len(rows))
        rows[:, NOISE["threshold"]] = int(dropout * 2**32)
        self.noisy = dropout > 0
        for row, (name, at) in zip(rows.view(np.int32), self.factors.items(), strict=True):
            if only is None or only == name:
                self.backend.write(at.noise, row)

    def groups(self, owned: tuple[int, int]) -> F32:
        """For `ops.adamw`: 1 for the tensors B, A, B, A, … whose number mod count is index, else -1."""
        index, count = owned
        values = [1.0 if i % count == index else -1.0 for i in range(len(self._blocks))]
        return np.repeat(np.array(values, np.float32), self._blocks)

    @property
    def nbytes(self) -> int:
        """Device bytes."""
        return 4 * (self.flat.size + self._scales.size + self._noise.size)

    def free(self) -> None:
        """Give the memory back; a second call does nothing."""
        if self.factors:
            self.release(self.factors)
            for buf in (self.flat, self._scales, self._noise):
                self.backend.free(buf)
        self.factors = {}


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where a target other than the embedding lies: layer, "conv" or "moe", first element in that block, shape."""

    layer: int
    kind: str
    offset: int
    shape: tuple[int, ...]


class AdaptedWeights:
    """A base's weights with one adapter (or none) on them.

    Convolution, router and experts are merged into copies of the blocks that the adapter touches; the embedding takes
    the low-rank path. Changing the adapter changes buffers only: plans and pipelines depend on shapes.
    """

    def __init__(self, base: Base) -> None:
        self.base, self.backend = base, base.backend
        self.bound: BoundAdapter | None = None
        self._copies: dict[tuple[int, str], Buf] = {}
        self._quiet = self.backend.alloc((ops.NOISE_SIZE,), "int32")
        self._nothing = [self.backend.alloc(s) for s in ((base.config.vocab_size, 0), (0, base.config.d_model), (1,))]
        self._windows: dict[str, tuple[Buf, Buf]] = {}  # of what is merged: the base's tensor and its copy's
        self._scratch: RowScratch | None = None
        self._views: Views | None = None
        self._serial = next(_SERIALS)
        self.stale = True  # the merged copies are not those of the adapter as it is

    def activate(self, bound: BoundAdapter | None) -> None:
        """Take this adapter from now on."""
        self.bound, self._views, self.stale, self._serial = bound, None, True, next(_SERIALS)
        self._close_windows()
        touched = {(s.layer, s.kind) for s in self.spots().values()}
        for key in set(self._copies) - touched:
            self.backend.free(self._copies.pop(key))
        for key in touched - set(self._copies):
            self._copies[key] = self.backend.alloc(self.block(key).shape)
        for key, copy in self._copies.items():
            self.backend.copy(self.block(key), 0, copy, 0, copy.size)
        for name, s in self.spots().items():
            key = (s.layer, s.kind)
            base, copy = (self.backend.view(b, s.offset, s.shape) for b in (self.block(key), self._copies[key]))
            self._windows[name] = base, copy

    def _close_windows(self) -> None:
        for window in self._windows.values():
            for view in window:
                self.backend.free(view)
        self._windows.clear()

    def block(self, key: tuple[int, str]) -> Buf:
        """A block of the base by layer and kind."""
        block: Buf = getattr(self.base.layers[key[0]], key[1])
        return block

    def spots(self) -> dict[str, _Spot]:
        """The places of the adapter's targets that are merged, by name."""
        return {name: self.spot(name) for name in (self.bound.factors if self.bound else ()) if name != EMBEDDING}

    def spot(self, name: str) -> _Spot:
        """The place of a tensor in its layer."""
        spec, layer = self.base.table.by_name[name], int(name.split(".")[1])
        kind = "conv" if ".conv." in name else "moe"
        first = self.base.table.by_name[f"layers.{layer}.moe.router.weight"].padded_offset
        return _Spot(layer, kind, 0 if kind == "conv" else spec.padded_offset - first, spec.shape)

    def views(self) -> Views:
        """The weights; `queue_merge` must have been called since the adapter last changed."""
        if self._views is None:
            layers = list(self.base.layers)
            for (index, kind), copy in self._copies.items():
                layers[index] = replace(layers[index], **{kind: copy})
            plain = self.base.plain_embedding()
            low = self.low_rank()
            self._views = Views(low if low.scratch.rank or plain is None else plain, tuple(layers))
        return self._views

    def low_rank(self) -> LowRankEmbedding:
        """The embedding by its low-rank path, of rank 0 where the adapter does not touch it."""
        at = self.bound.factors.get(EMBEDDING) if self.bound else None
        rank = at.a.shape[0] if at else 0
        if self._scratch is None or self._scratch.rank != rank:
            if self._scratch is not None:
                self._scratch.free()
            self._scratch = RowScratch(self.backend, rank)
        b, a, scale = (at.b, at.a, at.scale) if at else self._nothing
        noise = at.noise if at else self._quiet
        return LowRankEmbedding(self.backend, self.base.ready(), b, a, scale, noise, self._quiet, self._scratch)

    def queue_merge(self, factors: Mapping[str, Factors] | None = None) -> None:
        """Queue merged = base + scale · B A for all targets but the embedding; factors: other ones to take."""
        if self.bound is None or not self.stale:
            return
        chosen = factors or self.bound.factors

        def build() -> None:
            for name, (base, copy) in self._windows.items():
                at = chosen[name]
                ops.lora_fwd(self.backend, (base, at.b, at.a, at.scale), (copy,))

        if self._windows:
            first = next(iter(chosen.values()))
            self.backend.replay(("lora merge", self._serial, first.b.id), build)
        self.stale = factors is not None

    def nbytes(self) -> int:
        """Device bytes of the merged copies."""
        return sum(4 * copy.size for copy in self._copies.values())

    def free(self) -> None:
        """Give the memory back; a second call does nothing."""
        self._close_windows()
        for copy in self._copies.values():
            self.backend.free(copy)
        if self._nothing:
            for buf in (*self._nothing, self._quiet):
                self.backend.free(buf)
        if self._scratch is not None:
            self._scratch.free()
        self._copies.clear()
        self._nothing, self._scratch, self._views, self.bound = [], None, None, None


class AdapterGradients:
    """Where the gradients of the active adapter go: `flat`, laid out as the adapter's own vector.

    Of a block that is merged the dense gradient is summed in scratch memory, and contracted at the end of a step.
    """

    def __init__(self, weights: AdaptedWeights) -> None:
        assert weights.bound is not None
        self.weights, self.backend, self.bound = weights, weights.backend, weights.bound
        self.flat, self.factors = self.bound.twin()
        self._spots = weights.spots()
        keys = {(s.layer, s.kind): None for s in self._spots.values()}
        self._blocks = {key: self.backend.alloc(weights.block(key).shape) for key in keys}
        self._windows = {
            name: self.backend.view(self._blocks[s.layer, s.kind], s.offset, s.shape) for name, s in self._spots.items()
        }
        vocab = weights.base.config.vocab_size
        self._none = [self.backend.alloc((vocab, 0)), self.backend.alloc((0, weights.base.config.d_model))]
        at = self.factors.get(EMBEDDING)
        places = (at.b, at.a) if at else (self._none[0], self._none[1])
        layers: list[LayerViews | LayerGrads] = [LayerGrads()] * len(weights.base.layers)
        for (index, kind), block in self._blocks.items():
            layers[index] = replace(layers[index], **{kind: block})
        self.grads = Grads(LowRankBackward(weights.low_rank(), *places), tuple(layers))

    def zero(self) -> None:
        """Queue setting everything to 0."""

        def build() -> None:
            for buf in (self.flat, *self._blocks.values()):
                self.backend.zero(buf)

        self.backend.replay(("lora zero", self.flat.id), build)

    def contract(self, factors: Mapping[str, Factors]) -> None:
        """Queue dB, dA += of the dense gradients, for the factors that were merged; their dropout is inverted too."""

        def build() -> None:
            for name, dense in self._windows.items():
                at, to = factors[name], self.factors[name]
                ops.lora_bwd(self.backend, (dense, at.b, at.a, at.scale), (to.b, to.a))
                if self.bound.noisy:
                    ops.lora_dropout(self.backend, (at.noise,), (to.a,))

        first = next(iter(factors.values()))
        self.backend.replay(("lora contract", self.flat.id, first.b.id, self.bound.noisy), build)

    def free(self) -> None:
        """Give the memory back."""
        self.bound.release(self.factors)
        for buf in (*self._windows.values(), *self._blocks.values(), *self._none, self.flat):
            self.backend.free(buf)
