"""Low-rank adapters: the adapter itself, and personalising a model through its tied embedding (FORMAT 10)."""

from __future__ import annotations

import math
import warnings
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evermind_web import ops
from evermind_web.backend.base import Buf
from evermind_web.batch import Example, Item, Tokens, check_item, item_batches
from evermind_web.environment import run_blocking
from evermind_web.errors import ConfigMismatchError, InvalidArgumentError
from evermind_web.flat_model import Parameter
from evermind_web.formats.lora_blob import read_lora, write_lora
from evermind_web.layout import ALIGN, padded
from evermind_web.model import EvermindLM, drain
from evermind_web.network import Noise
from evermind_web.optim import AdamWOptions, FlatAdamW
from evermind_web.params import F32
from evermind_web.quant import dequantize_fp16, dequantize_int8, quantize_fp16, quantize_int8
from evermind_web.rng import SeededRng
from evermind_web.training.loop import Loop, OnEval, OnStep
from evermind_web.training.options import TrainingOptions

DEFAULT_SEED = 0x4C6F5241
BASE_QUANTS = ("none", "fp16", "int8")


class LoRAAdapter:
    """delta (rows,cols) = alpha/rank · B (rows,rank) A (rank,cols); B starts at 0, A normal with std 1/sqrt(cols).

    Raises InvalidArgumentError unless 1 ≤ rank ≤ min(rows, cols).
    """

    def __init__(
        self, rows: int, cols: int, rank: int = 8, alpha: float | None = None, seed: int = DEFAULT_SEED
    ) -> None:
        if not isinstance(rank, (int, np.integer)) or rank < 1:
            raise InvalidArgumentError(f"rank must be a whole number from 1 on, got {rank!r}")
        if rank > min(rows, cols):
            raise InvalidArgumentError(f"rank {rank} exceeds min(in {cols}, out {rows}); choose a lower rank")
        self.rows, self.cols, self.rank = int(rows), int(cols), int(rank)
        self.alpha = float(rank if alpha is None else alpha)
        if not math.isfinite(self.alpha):
            raise InvalidArgumentError(f"alpha must be a finite number, got {alpha!r}")
        self.B: F32 = np.zeros((self.rows, self.rank), np.float32)
        self.A: F32 = (
            SeededRng(seed).gaussian(self.rank * self.cols, 1 / math.sqrt(self.cols)).reshape(self.rank, self.cols)
        )
        self._gB, self._gA = np.zeros_like(self.B), np.zeros_like(self.A)

    @property
    def scale(self) -> float:
        """alpha / rank."""
        return self.alpha / self.rank

    def delta(self) -> F32:
        """What is added to the matrix, float32 (rows,cols)."""
        return np.asarray((self.B * np.float32(self.scale)) @ self.A, np.float32)

    def apply_to(self, base: NDArray[np.float32]) -> F32:
        """base (rows,cols), or flat, + delta; a fresh array in the shape of base."""
        self._check(base, "base")
        return np.asarray(base, np.float32) + self.delta().reshape(np.shape(base))

    def accumulate_gradient(self, g: NDArray[np.float32]) -> None:
        """Gradients += for g, the gradient of the adapted matrix, (rows,cols) or flat.

        Inverts `merged = base + scale * B A`: gA += scale * Bᵀ g; gB += scale * g Aᵀ.
        """
        self._check(g, "gradient")
        full, scale = np.asarray(g, np.float32).reshape(self.rows, self.cols), np.float32(self.scale)
        self._gA += (self.B * scale).T @ full
        self._gB += scale * (full @ self.A.T)

    def _check(self, array: NDArray[Any], what: str) -> None:
        if np.size(array) != self.rows * self.cols:
            raise InvalidArgumentError(f"{what}: expected {(self.rows, self.cols)}, got shape {np.shape(array)}")

    def parameters(self) -> list[Parameter]:
        """B, A: live arrays."""
        return [Parameter("lora_B", self.B), Parameter("lora_A", self.A)]

    def gradients(self) -> list[Parameter]:
        """Gradients of B, A: live arrays."""
        return [Parameter("lora_B", self._gB), Parameter("lora_A", self._gA)]

    def zero_grad(self) -> None:
        """Set the gradients to 0."""
        self._gB[...] = 0
        self._gA[...] = 0

    def num_params(self) -> int:
        """rank * (rows + cols)."""
        return self.A.size + self.B.size

    def serialize(self) -> bytes:
        """A "LORA" file; alpha is rounded to float32 by the format."""
        return write_lora(self.rows, self.cols, self.rank, self.alpha, self.B, self.A)

    @classmethod
    def deserialize(cls, data: bytes) -> LoRAAdapter:
        """From a "LORA" file. Raises FormatError for anything that is not a whole one."""
        blob = read_lora(data)
        adapter = cls(blob.rows, blob.cols, blob.rank, blob.alpha)
        adapter.A[...], adapter.B[...] = blob.A.reshape(adapter.A.shape), blob.B.reshape(adapter.B.shape)
        return adapter


@dataclass(frozen=True, slots=True)
class QuantizedBase:
    """A frozen matrix as it is used (`view`, float32) and what its storage takes (`bytes`)."""

    view: F32
    bytes: int


def quantize_base(base: NDArray[np.float32], mode: str) -> QuantizedBase:
    """`mode` none, fp16 or int8 (one scale a tensor). Raises InvalidArgumentError for another mode."""
    values = np.asarray(base, np.float32)
    if mode == "none":
        return QuantizedBase(values.copy(), 4 * values.size)
    if mode == "fp16":
        return QuantizedBase(dequantize_fp16(quantize_fp16(values)).reshape(values.shape), 2 * values.size)
    if mode == "int8":
        q = quantize_int8(values)
        return QuantizedBase(dequantize_int8(q.data, q.scale).reshape(values.shape), values.size + 4)
    raise InvalidArgumentError(f"base_quant must be one of {', '.join(BASE_QUANTS)}, got {mode!r}")


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of the adapter file and of the frozen base as stored; numbers of weights trained and frozen."""

    adapter_bytes: int
    base_bytes: int
    trainable_params: int
    base_params: int


class EvermindLMLoRA:
    """A LoRA adapter on the tied embedding (V,D) of a model whose own weights stay as they are.

    `model.generate` writes without the adapter, `lora.generate` with it. `base_quant` ("none", "fp16", "int8") is how
    the frozen embedding is stored. The base is copied at construction, so `merge` does not apply the adapter twice.
    """

    def __init__(
        self,
        model: EvermindLM,
        rank: int = 8,
        alpha: float | None = None,
        seed: int = DEFAULT_SEED,
        base_quant: str = "none",
    ) -> None:
        vocab, width = model.config.vocab_size, model.config.d_model
        if base_quant not in BASE_QUANTS:
            raise InvalidArgumentError(f"base_quant must be one of {', '.join(BASE_QUANTS)}, got {base_quant!r}")
        self.adapter = LoRAAdapter(vocab, width, rank, alpha, seed)
        self.model, self.backend, self.base_quant = model, model.backend, base_quant
        self._bufs: list[Buf] = []
        self._base, self._merged = self._new((vocab, width)), self._new((vocab, width))
        self.backend.copy(model.weights.emb, 0, self._base, 0, vocab * width)
        self._base_ready = base_quant == "none"
        # B and A in one padded vector, so that AdamW is one pass
        b, a = padded(vocab * rank), padded(rank * width)
        self._flat, self._scale = self._new((b + a,)), self._new((1,))
        self._b = self.backend.view(self._flat, 0, (vocab, rank))
        self._a = self.backend.view(self._flat, b, (rank, width))
        self._views = [self._b, self._a]
        self._loop: Loop | None = None

    def _new(self, shape: tuple[int, ...]) -> Buf:
        self._bufs.append(self.backend.alloc(shape))
        return self._bufs[-1]

    async def _prepare(self) -> None:
        """Put the adapter on the device and, once, bring the base into its storage format."""
        if not self._base_ready:
            (base,) = await self.backend.read(self._base)
            self.backend.write(self._base, quantize_base(base, self.base_quant).view)
            self._base_ready = True
        self.backend.write(self._b, self.adapter.B)
        self.backend.write(self._a, self.adapter.A)
        self.backend.write(self._scale, np.array([self.adapter.scale], np.float32))

    def queue_merge(self) -> Buf:
        """Queue merged = base + scale * B A; returns its buffer (V,D)."""
        ops.lora_fwd(self.backend, (self._base, self._b, self._a, self._scale), (self._merged,))
        return self._merged

    async def merged_emb_async(self) -> F32:
        """The embedding with the adapter, float32 (V,D)."""
        await self._prepare()
        (merged,) = await self.backend.read(self.queue_merge())
        return np.asarray(merged, np.float32)

    def merged_emb(self) -> F32:
        """Blocking twin of `merged_emb_async`."""
        return run_blocking(self.merged_emb_async())

    # ---- training ----

    async def fit_async(
        self,
        sequences: Sequence[Tokens | Example],
        *,
        lr: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        shard: tuple[int, int] | None = None,
        on_step: OnStep | None = None,
        validation: Sequence[Tokens | Example] = (),
        on_eval: OnEval | None = None,
        **options: Any,
    ) -> list[float]:
        """Train the adapter with a fresh AdamW over [B, A]; returns the mean loss of each epoch.

        Sequences, validation and the callbacks as in `EvermindLMTrainer.fit_async`; all other keywords, epochs and
        accum_steps among them, are those of `TrainingOptions`. All weights of the model stay as they are, bit for bit.
        """
        adamw, vocab = AdamWOptions(lr, beta1, beta2, eps, weight_decay, shard), self.model.config.vocab_size
        chosen = TrainingOptions(**options)
        items, held_out = ([check_item(s, vocab) for s in given] for given in (sequences, validation))
        await self._prepare()
        job = _LoRATraining(self, adamw, chosen, held_out)
        self._loop = Loop(job, chosen, on_step=on_step, on_eval=on_eval, validating=bool(held_out))
        try:
            return await self._loop.run(items)
        finally:
            self._loop = None
            try:  # what was learned stays, also after Stop or an error
                self.adapter.B[...], self.adapter.A[...] = await self.backend.read(self._b, self._a)
            finally:
                job.free()

    def fit(self, sequences: Sequence[Tokens | Example], **options: Any) -> list[float]:
        """Blocking twin of `fit_async`."""
        return run_blocking(self.fit_async(sequences, **options))

    def stop(self) -> None:
        """End a running fit after the step in flight; what was learned stays."""
        if self._loop is not None:
            self._loop.stopped = True

    # ---- use ----

    async def stream_async(self, prompt: Tokens, **options: Any) -> AsyncIterator[int]:
        """`EvermindLM.stream_async` with the adapter."""
        await self._prepare()
        async for token in self.model.stream_async(prompt, **options, emb=self.queue_merge()):
            yield token

    def stream(self, prompt: Tokens, **options: Any) -> Iterator[int]:
        """Blocking twin of `stream_async`."""
        return drain(self.stream_async(prompt, **options))

    async def generate_async(self, prompt: Tokens, **options: Any) -> list[int]:
        """`EvermindLM.generate_async` with the adapter."""
        return [token async for token in self.stream_async(prompt, **options)]

    def generate(self, prompt: Tokens, **options: Any) -> list[int]:
        """Blocking twin of `generate_async`."""
        return run_blocking(self.generate_async(prompt, **options))

    async def forward_async(self, tokens: Tokens) -> F32:
        """`EvermindLM.forward_async` with the adapter."""
        await self._prepare()
        return await self.model.forward_async(tokens, emb=self.queue_merge())

    def forward(self, tokens: Tokens) -> F32:
        """Blocking twin of `forward_async`."""
        return run_blocking(self.forward_async(tokens))

    async def evaluate_async(self, sequences: Sequence[Tokens | Example]) -> float:
        """`EvermindLM.evaluate_async` with the adapter."""
        await self._prepare()
        return await self.model.evaluate_async(sequences, emb=self.queue_merge())

    def evaluate(self, sequences: Sequence[Tokens | Example]) -> float:
        """Blocking twin of `evaluate_async`."""
        return run_blocking(self.evaluate_async(sequences))

    async def merge_async(self, fp16: bool = False) -> bytes:
        """Write base + adapter into the model's embedding, in float32, and return the model's checkpoint.

        With a quantised base the quantised values are what the adapter was trained on, so they are what is merged.
        """
        await self._prepare()
        emb = self.model.weights.emb
        self.backend.copy(self.queue_merge(), 0, emb, 0, emb.size)
        return await self.model.export_weights_async(fp16)

    def merge(self, fp16: bool = False) -> bytes:
        """Blocking twin of `merge_async`."""
        return run_blocking(self.merge_async(fp16))

    # ---- files ----

    def serialize_adapter(self) -> bytes:
        """The adapter as a "LORA" file."""
        return self.adapter.serialize()

    async def serialize_adapter_async(self) -> bytes:
        """Twin of `serialize_adapter`; the adapter is always on the host between calls."""
        return self.adapter.serialize()

    @classmethod
    async def load_adapter_async(
        cls,
        model: EvermindLM,
        data: bytes,
        base_quant: str = "none",
        base_fingerprint: str | None = None,
        force: bool = False,
    ) -> EvermindLMLoRA:
        """An adapter file on a model. Its shape must fit, and `base_fingerprint`, the base that it was trained on, too.

        Raises FormatError, or ConfigMismatchError for another shape or (unless force) another base. Without a
        fingerprint only the shape can be checked, which is said in a warning.
        """
        adapter = LoRAAdapter.deserialize(data)
        vocab, width = model.config.vocab_size, model.config.d_model
        if (adapter.rows, adapter.cols) != (vocab, width):
            raise ConfigMismatchError(
                f"token_embedding.weight: adapter {(adapter.rows, adapter.cols)}, base {(vocab, width)}; "
                "load the base that the adapter was trained on"
            )
        if base_fingerprint is None:
            warnings.warn(
                "this adapter does not say which base it was trained on; only its shape was checked", stacklevel=2
            )
        elif not force and base_fingerprint != (found := await model.fingerprint_async()):
            raise ConfigMismatchError(
                f"the adapter was trained on base {base_fingerprint[:12]}…, this base is {found[:12]}…; "
                "load that base, or pass force=True to use it all the same"
            )
        lora = cls(model, adapter.rank, adapter.alpha, base_quant=base_quant)
        lora.adapter = adapter
        return lora

    @classmethod
    def load_adapter(
        cls,
        model: EvermindLM,
        data: bytes,
        base_quant: str = "none",
        base_fingerprint: str | None = None,
        force: bool = False,
    ) -> EvermindLMLoRA:
        """Blocking twin of `load_adapter_async`."""
        return run_blocking(cls.load_adapter_async(model, data, base_quant, base_fingerprint, force))

    def footprint(self) -> Footprint:
        """What adapter and frozen base take."""
        count, n = self.adapter.num_params(), self.adapter.rows * self.adapter.cols
        stored = {"none": 4 * n, "fp16": 2 * n, "int8": n + 4}[self.base_quant]
        return Footprint(20 + 4 * count, stored, count, n)

    def dispose(self) -> None:
        """Give the memory back; a second call does nothing."""
        for buf in (*self._views, *self._bufs):
            self.backend.free(buf)
        self._views, self._bufs = [], []


class _LoRATraining:
    """One fit of an adapter: gradients of B and A, and their AdamW."""

    def __init__(
        self, lora: EvermindLMLoRA, adamw: AdamWOptions, options: TrainingOptions, validation: Sequence[Item]
    ) -> None:
        self.lora, self.backend, self.adamw, self.options = lora, lora.backend, adamw, options
        self._validation = validation
        flat, b, a = lora._flat, lora._b, lora._a
        self._g = self.backend.alloc(flat.shape)
        self._gb = self.backend.view(self._g, 0, b.shape)
        self._ga = self.backend.view(self._g, flat.size - padded(a.size), a.shape)
        self._demb = self.backend.alloc(lora._base.shape)
        index, count = adamw.owned
        b_owned, a_owned = (1.0 if tensor % count == index else -1.0 for tensor in (0, 1))
        blocks = padded(b.size) // ALIGN, padded(a.size) // ALIGN
        self.adam = FlatAdamW(self.backend, flat, np.repeat(np.array([b_owned, a_owned], np.float32), blocks))
        self._queued = 0

    @property
    def trained(self) -> Buf:
        """See `training.loop.Steppable`."""
        return self.lora._flat

    def queue_step(self, window: Sequence[Item], number: int, total: int, loss_scale: float) -> tuple[Buf, Buf, float]:
        """See `training.loop.Steppable`."""
        lora, model, backend, options = self.lora, self.lora.model, self.backend, self.options
        self._queued += 1
        lr = self.adamw.lr * options.lr_factor(self._queued, total)
        model.set_hyper(self.adamw.hyper(self._queued) | {"lr": lr, "max_grad_norm": options.max_grad_norm})
        for buf in (self._g, self._demb, model.loss):
            backend.zero(buf)
        merged = lora.queue_merge()
        noise = Noise(options.seed, number, options.dropout, options.router_noise)
        for part, batch in enumerate(item_batches(window, options.weights(window), backend.row_multiple)):
            model.accumulate(batch, emb=merged, demb=self._demb, noise=noise.part(part))
        ops.lora_bwd(backend, (self._demb, lora._b, lora._a, lora._scale), (self._gb, self._ga))
        self.adam.queue(self._g, model.hyper)
        return model.loss, self.adam.stats, lr

    def applied(self) -> None:
        """See `training.loop.Steppable`."""
        self.adam.step += 1

    async def validate(self) -> float:
        """See `training.loop.Steppable`."""
        weights = self.options.weights(self._validation)
        return await self.lora.model.evaluate_items(self._validation, weights, self.lora.queue_merge())

    def free(self) -> None:
        """Give the buffers back and leave the model as it was found."""
        self.adam.free()
        for buf in (self._gb, self._ga, self._g, self._demb):
            self.backend.free(buf)
        self.lora.model.zero_grad()
        self.lora.model.set_hyper({})
