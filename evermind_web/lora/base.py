"""The frozen base under adapters: its layers as they are, its embedding as float32 or packed to fp16 or int8."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evermind_web import ops
from evermind_web.backend.base import Backend, Buf
from evermind_web.backend.reference.lora import unpacked
from evermind_web.backend.request import resolve_backend
from evermind_web.checks import checked, disposed
from evermind_web.embedding import DenseEmbedding
from evermind_web.errors import InvalidArgumentError
from evermind_web.flat_vector import FlatVector, part_sizes
from evermind_web.formats.arch import Arch, evermind_tensor_spec
from evermind_web.formats.evl0 import read_evl0
from evermind_web.formats.values import fingerprint_of
from evermind_web.lora.config import EMBEDDING
from evermind_web.model import EvermindLM
from evermind_web.network import LayerViews, cut_layers
from evermind_web.params import F32, ParamTable, check_arch
from evermind_web.quant import dequantize_int8, quantize_fp16, quantize_int8, quantize_int8_per_channel

BASE_QUANTS = ("none", "fp16", "int8", "int8-row")


def check_quant(mode: Any) -> str:
    """The mode itself. Raises InvalidArgumentError for another one."""
    if mode not in BASE_QUANTS:
        raise InvalidArgumentError(f"base_quant must be one of {', '.join(BASE_QUANTS)}, got {mode!r}")
    return str(mode)


# ── packed on the host ───────────────────────────────────────────────────────
@dataclass(frozen=True)
class Packed:
    """A matrix of `shape` as `ops.dequant` reads it: int32 words, float32 scales (1, or one a row), bits 16 or 8."""

    shape: tuple[int, int]
    codes: NDArray[np.int32]
    scales: F32
    bits: int

    def values(self) -> F32:
        """The matrix that the words stand for, float32."""
        return np.asarray(unpacked(self.codes, self.scales, *self.shape, self.bits), np.float32)

    @property
    def bytes(self) -> int:
        """Bytes of words and scales."""
        return self.codes.nbytes + self.scales.nbytes


def pack_matrix(values: NDArray[Any], mode: str, name: str = EMBEDDING) -> Packed:
    """A matrix (rows,cols) packed: "fp16", "int8" (one scale) or "int8-row" (one scale a row).

    Raises InvalidArgumentError naming the tensor for what fp16 cannot hold, or int8 (NaN and infinities).
    """
    matrix = np.asarray(values, np.float32)
    shape = (matrix.shape[0], matrix.shape[1])
    if mode == "fp16":
        return Packed(shape, _words(quantize_fp16(matrix, name)), np.ones(1, np.float32), 16)
    if mode == "int8":
        whole = quantize_int8(matrix)
        return Packed(shape, _words(whole.data), np.array([whole.scale], np.float32), 8)
    rows = quantize_int8_per_channel(matrix, shape[0])
    return Packed(shape, _words(rows.data), rows.scales, 8)


def _words(data: NDArray[Any]) -> NDArray[np.int32]:
    raw = np.ascontiguousarray(data, data.dtype.newbyteorder("<")).tobytes()
    return np.frombuffer(raw + bytes(-len(raw) % 4), "<i4").astype(np.int32)


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What merging into a packed base lost: the largest error of a value, and whether nothing of the delta is left."""

    max_error: float
    vanished: bool


def requantize(base: Packed, delta: F32, mode: str) -> tuple[Packed, MergeReport]:
    """base + delta packed again as `mode`, and what that lost. Warns if the whole delta vanishes in the rounding."""
    before = base.values()
    exact = before + delta
    packed = pack_matrix(exact, mode)
    after = packed.values()
    vanished = bool(delta.any()) and bool(np.array_equal(after, before))
    report = MergeReport(float(np.abs(after - exact).max(initial=0)), vanished)
    if vanished:
        warnings.warn(
            f"merging into the {mode} base lost the whole adapter: its largest value {np.abs(delta).max():g} is below "
            "half a quantisation step; merge into float32 or fp16 instead",
            stacklevel=2,
        )
    return packed, report


@dataclass(frozen=True, slots=True)
class QuantizedBase:
    """A frozen matrix as it is used (`view`, float32) and what its storage takes (`bytes`)."""

    view: F32
    bytes: int


@checked
def quantize_base(base: NDArray[np.float32], mode: str) -> QuantizedBase:
    """`mode` none, fp16, int8 (one scale a tensor) or int8-row (one a row). InvalidArgumentError for another mode."""
    values = np.asarray(base, np.float32)
    if check_quant(mode) == "none":
        return QuantizedBase(values.copy(), 4 * values.size)
    if mode == "int8":  # with the scale in float64, as the reference has it
        q = quantize_int8(values)
        return QuantizedBase(dequantize_int8(q.data, q.scale).reshape(values.shape), stored_bytes(values.size, mode))
    rows = len(values) if mode == "int8-row" and values.ndim > 1 else 1
    packed = pack_matrix(values.reshape(rows, -1), mode, "base")
    return QuantizedBase(packed.values().reshape(values.shape), stored_bytes(values.size, mode, rows))


def stored_bytes(size: int, mode: str, rows: int = 1) -> int:
    """Bytes that a matrix of `size` values takes in a mode."""
    return {"none": 4 * size, "fp16": 2 * size, "int8": size + 4, "int8-row": size + 4 * rows}[mode]


# ── on the device ────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class DenseMatrix:
    """A float32 embedding (V,D) with the products that the low-rank path needs; u (N,R), b (V,R), R may be 0."""

    backend: Backend
    emb: Buf

    def lookup(self, tokens: Buf, x: Buf) -> None:
        """x (N,D) = rows of the tokens."""
        ops.embed_fwd(self.backend, (tokens, self.emb), (x,))

    def logits(self, x: Buf, u: Buf, b: Buf, logits: Buf) -> None:
        """logits (N,V) = x embᵀ + u bᵀ."""
        ops.lora_head_logits(self.backend, (x, u, self.emb, b), (logits,))

    def loss(self, x: Buf, u: Buf, b: Buf, scored: tuple[Buf, Buf], loss: Buf) -> None:
        """loss += cross-entropies; scored: targets, weights."""
        ops.lora_head_xent_fwd(self.backend, (x, u, self.emb, b, *scored), (loss,))

    def backward(self, x: Buf, u: Buf, b: Buf, scored: tuple[Buf, Buf, Buf], outs: tuple[Buf, ...]) -> None:
        """outs: loss +=, dx =, du =, db +=; scored: targets, weights, hyper."""
        ops.lora_head_xent_bwd(self.backend, (x, u, self.emb, b, *scored), outs)


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """`DenseMatrix` for one that lies packed on the device; no float32 copy of it is made."""

    backend: Backend
    rows: int
    codes: Buf
    scales: Buf
    bits: int

    @classmethod
    def upload(cls, backend: Backend, packed: Packed) -> PackedMatrix:
        """Onto a device."""
        codes, scales = backend.alloc(packed.codes.shape, "int32"), backend.alloc(packed.scales.shape)
        backend.write(codes, packed.codes)
        backend.write(scales, packed.scales)
        return cls(backend, packed.shape[0], codes, scales, packed.bits)

    async def read(self, width: int) -> Packed:
        """Back to the host."""
        codes, scales = await self.backend.read(self.codes, self.scales)
        return Packed((self.rows, width), codes, np.asarray(scales, np.float32), self.bits)

    def lookup(self, tokens: Buf, x: Buf) -> None:
        """See `DenseMatrix`."""
        ops.packed_embed_fwd(self.backend, (tokens, self.codes, self.scales), (x,), V=self.rows, bits=self.bits)

    def logits(self, x: Buf, u: Buf, b: Buf, logits: Buf) -> None:
        """See `DenseMatrix`."""
        ops.packed_head_logits(self.backend, (x, u, self.codes, self.scales, b), (logits,), bits=self.bits)

    def loss(self, x: Buf, u: Buf, b: Buf, scored: tuple[Buf, Buf], loss: Buf) -> None:
        """See `DenseMatrix`."""
        given = (x, u, self.codes, self.scales, b, *scored)
        ops.packed_head_xent_fwd(self.backend, given, (loss,), bits=self.bits)

    def backward(self, x: Buf, u: Buf, b: Buf, scored: tuple[Buf, Buf, Buf], outs: tuple[Buf, ...]) -> None:
        """See `DenseMatrix`."""
        given = (x, u, self.codes, self.scales, b, *scored)
        ops.packed_head_xent_bwd(self.backend, given, outs, bits=self.bits)

    def free(self) -> None:
        """Give the memory back."""
        self.backend.free(self.codes)
        self.backend.free(self.scales)


class Base:
    """The weights under the adapters. They belong to a model, or (from a checkpoint) to the base itself.

    A packed embedding of a model is a second copy beside the model's own float32 one; from a checkpoint it is the only
    one. `matrix` is there after `prepare`.
    """

    def __init__(self, backend: Backend, config: Arch, quant: str) -> None:
        self.backend, self.config, self.quant = backend, config, check_quant(quant)
        self.table = ParamTable(evermind_tensor_spec(config))
        self.model: EvermindLM | None = None
        self.layers: tuple[LayerViews, ...] = ()
        self.matrix: DenseMatrix | PackedMatrix | None = None
        self.fingerprint: str | None = None  # of the float32 weights; None: ask the model
        self._seen = 0  # the model's version that copies of its weights are of
        self._flat: FlatVector | None = None
        self._emb: Buf | None = None

    @classmethod
    def of_model(cls, model: EvermindLM, quant: str) -> Base:
        """Over the weights of a model."""
        base = cls(model.backend, model.config, quant)
        base.model, base.layers = model, model.weights.layers
        base.seen()
        if quant == "none":
            base.matrix = DenseMatrix(model.backend, model.weights.emb)
        return base

    @classmethod
    def from_checkpoint(cls, data: bytes, backend: str | Backend | None, quant: str) -> Base:
        """Of a checkpoint. With a packed embedding its float32 values never reach the device."""
        arch, packed = read_evl0(data)
        base = cls(resolve_backend(backend), check_arch(arch), quant)
        base.fingerprint = fingerprint_of(packed)
        size = base.table.by_name[EMBEDDING].size
        rest = ParamTable(evermind_tensor_spec(arch)[1:])
        base._flat = FlatVector.alloc(base.backend, part_sizes(rest.units(), base.backend))
        base._flat.write(rest.pad(packed[size:]))
        base.layers = cut_layers(arch, rest, base._flat)
        values = packed[:size].reshape(arch.vocab_size, arch.d_model)
        if quant == "none":
            base._emb = base.backend.alloc(values.shape)
            base.backend.write(base._emb, values)
            base.matrix = DenseMatrix(base.backend, base._emb)
        else:
            base.matrix = PackedMatrix.upload(base.backend, pack_matrix(values, quant))
        return base

    async def prepare(self) -> None:
        """Pack the model's embedding, the first time."""
        if self.matrix is None:
            self.backend.flush()  # a base that was disposed says so here
        if self.matrix is None and self.model is not None:
            (values,) = await self.backend.read(self.model.weights.emb)
            self.matrix = PackedMatrix.upload(self.backend, pack_matrix(values, self.quant))

    @property
    def changed(self) -> bool:
        """Whether somebody else wrote to the model's weights since `seen`."""
        return self.model is not None and self.model.version != self._seen

    def seen(self, wrote: bool = False) -> None:
        """Copies are of the weights as they are now; `wrote`: by the caller, which others must learn."""
        if self.model is not None:
            self.model.version += wrote
            self._seen = self.model.version

    async def refresh(self) -> bool:
        """`prepare`, and pack again where the model's weights have changed; whether they have."""
        changed = self.changed
        if changed and isinstance(self.matrix, PackedMatrix):
            self.matrix.free()
            self.matrix = None
        await self.prepare()
        if changed:
            self.seen()
        return changed

    def ready(self) -> DenseMatrix | PackedMatrix:
        """The embedding, after `prepare`."""
        assert self.matrix is not None
        return self.matrix

    def plain_embedding(self) -> DenseEmbedding | None:
        """The embedding without an adapter, if it is float32."""
        return DenseEmbedding(self.backend, self.matrix.emb) if isinstance(self.matrix, DenseMatrix) else None

    async def embedding_async(self) -> F32:
        """The embedding as it is used, float32 (V,D)."""
        await self.prepare()
        matrix = self.ready()
        if isinstance(matrix, PackedMatrix):
            return (await matrix.read(self.config.d_model)).values()
        return np.asarray((await self.backend.read(matrix.emb))[0], np.float32)

    async def tensors_async(self) -> dict[str, F32]:
        """Every tensor as it is used, float32, by name, in canonical order."""
        out = {EMBEDDING: await self.embedding_async()}
        for i, layer in enumerate(self.layers):
            parts = await self.backend.read(layer.conv, layer.norm_conv, layer.norm_moe, layer.moe)
            names = [f"layers.{i}.{n}" for n in ("conv.weight", "norm_conv.weight", "norm_moe.weight")]
            out |= dict(zip(names, parts[:3], strict=True))
            first = self.table.by_name[f"layers.{i}.moe.router.weight"].padded_offset
            for spec in self.table.specs:
                if spec.name.startswith(f"layers.{i}.moe."):
                    at = spec.padded_offset - first
                    out[spec.name] = parts[3][at : at + spec.size].reshape(spec.shape)
        return out

    async def fingerprint_async(self) -> str:
        """SHA-256 (hex) of the float32 weights, before anything was packed or merged."""
        if self.fingerprint is None:
            assert self.model is not None
            return await self.model.fingerprint_async()
        return self.fingerprint

    def fitting(self, frozen: bool = True) -> AbstractContextManager[None]:
        """`FlatModel.fitting` of the model, if there is one: around a fit of adapters, or with frozen=False a merge."""
        return nullcontext() if self.model is None else self.model.fitting(frozen)

    async def remember_fingerprint(self) -> None:
        """Note the fingerprint before the weights are changed in place."""
        self.fingerprint = await self.fingerprint_async()

    def forget_fingerprint(self) -> None:
        """Ask the model again from now on, where there is one."""
        if self.model is not None:
            self.fingerprint = None

    def memory_bytes(self) -> dict[str, int]:
        """Device bytes: `embedding` as the adapters use it, `layers`."""
        matrix, size = self.matrix, self.table.by_name[EMBEDDING].size
        if isinstance(matrix, PackedMatrix):
            embedding = 4 * (matrix.codes.size + matrix.scales.size)
        else:
            embedding = stored_bytes(size, self.quant, self.config.vocab_size)
        rest = sum(4 * b.size for v in self.layers for b in (v.conv, v.norm_conv, v.norm_moe, v.moe))
        return {"embedding": embedding, "layers": rest}

    def dispose(self) -> None:
        """Free what belongs to the base itself; a second call does nothing."""
        if isinstance(self.matrix, PackedMatrix):
            self.matrix.free()
        self.matrix = None
        if self._flat is not None:
            for v in self.layers:
                for buf in (v.conv, v.norm_conv, v.norm_moe, v.moe):
                    self.backend.free(buf)
            self._flat.free()
        if self._emb is not None:
            self.backend.free(self._emb)
        self._flat = self._emb = None
        self.layers, self.backend = (), disposed("LoRA model")
