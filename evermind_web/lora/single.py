"""EvermindLMLoRA: personalising a model through its tied embedding, as the reference does it (FORMAT 10)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evermind_web.backend.base import Buf
from evermind_web.batch import Example, Tokens
from evermind_web.checks import checked, disposed
from evermind_web.environment import run_blocking
from evermind_web.language_model import LanguageModel
from evermind_web.lora.adapter import DEFAULT_SEED, LoRAAdapter
from evermind_web.lora.base import Base, DenseMatrix, check_quant, stored_bytes
from evermind_web.lora.bound import AdaptedWeights, BoundAdapter
from evermind_web.lora.config import EMBEDDING
from evermind_web.lora.peft_io import NO_FINGERPRINT, check_fingerprint, check_shape
from evermind_web.lora.training import Tuner
from evermind_web.model import EvermindLM
from evermind_web.network import Views
from evermind_web.params import F32


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of the adapter file and of the frozen base as stored; numbers of weights trained and frozen."""

    adapter_bytes: int
    base_bytes: int
    trainable_params: int
    base_params: int


class EvermindLMLoRA(LanguageModel):
    """A LoRA adapter on the tied embedding (V,D) of a model whose own weights stay as they are.

    `model.generate` writes without the adapter, `lora.generate` with it: everything that reads or writes text works as
    on `EvermindLM`. `base_quant` is how the frozen embedding is kept for it: "none" (the model's own), or a packed
    copy, "fp16", "int8" (one scale) or "int8-row" (one scale a row). `merge` sets the embedding aside first, so that
    it never applies the adapter twice. Neither the adapted embedding nor its gradient is ever made on the device.
    """

    @checked
    def __init__(
        self,
        model: EvermindLM,
        rank: int = 8,
        alpha: float | None = None,
        seed: int = DEFAULT_SEED,
        base_quant: str = "none",
    ) -> None:
        self.base_quant = check_quant(base_quant)
        self.adapter = LoRAAdapter(model.config.vocab_size, model.config.d_model, rank, alpha, seed)
        super().__init__(model.backend, model.config)
        self.model = model
        self._base = Base.of_model(model, base_quant)
        self._weights = AdaptedWeights(self._base)
        self._bound: BoundAdapter | None = None
        self._set_aside: Buf | None = None  # the model's embedding from before the first merge
        self._tuner = Tuner()

    async def views_async(self) -> Views:
        """The base with the adapter as it is on the host now."""
        changed = not self._tuner.running and await self._base.refresh()
        if changed or self._bound is None or self._bound.parts[EMBEDDING] is not self.adapter:
            if self._bound is not None:
                self._bound.free()
            self._bound = BoundAdapter(self.backend, {EMBEDDING: self.adapter})
            self._weights.activate(self._bound)
        elif not self._tuner.running:
            self._bound.upload()
        return self._weights.views()

    async def merged_emb_async(self) -> F32:
        """The embedding with the adapter, float32 (V,D)."""
        await self.views_async()
        return self.adapter.apply_to(await self._base.embedding_async())

    def merged_emb(self) -> F32:
        """Blocking twin of `merged_emb_async`."""
        return run_blocking(self.merged_emb_async())

    # ---- training ----

    async def fit_async(self, sequences: Sequence[Tokens | Example], **options: Any) -> list[float]:
        """Train the adapter with a fresh AdamW over [B, A]; returns the mean loss of each epoch.

        Sequences, `validation` and the callbacks as in `EvermindLMTrainer.fit_async`; lr, beta1, beta2, eps,
        weight_decay, shard of AdamW; lora_dropout (part of the inputs of the low-rank path) and checkpoint; all other
        keywords, epochs and accum_steps among them, are those of `TrainingOptions`. on_snapshot, snapshot_seconds and
        resume=snapshot as in `EvermindLMTrainer.fit_async`.
        All weights of the model stay as they are, bit for bit.
        """
        await self.views_async()
        return await self._tuner.run(self, self._weights, sequences, **options)

    def fit(self, sequences: Sequence[Tokens | Example], **options: Any) -> list[float]:
        """Blocking twin of `fit_async`."""
        return self.alone(self.fit_async(sequences, **options))

    def stop(self) -> None:
        """End a running fit after the step in flight; what was learned stays."""
        self._tuner.stop()

    # ---- merging ----

    async def merge_async(self, fp16: bool = False) -> bytes:
        """Write base + adapter into the model's embedding, in float32, and return the model's checkpoint.

        With a quantised base the quantised values are what the adapter was trained on, so they are what is merged.
        """
        merged = await self.merged_emb_async()
        emb = self.model.weights.emb
        with self.model.fitting():
            if self._set_aside is None and isinstance(self._base.matrix, DenseMatrix):
                self._set_aside = self.backend.alloc(emb.shape)
                self.backend.copy(emb, 0, self._set_aside, 0, emb.size)
                self._base.matrix = DenseMatrix(self.backend, self._set_aside)
                self._weights.activate(self._bound)
            self.backend.write(emb, merged)
            self._base.seen(wrote=True)
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
    @checked
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
        check_shape(EMBEDDING, (adapter.rows, adapter.cols), (model.config.vocab_size, model.config.d_model))
        if base_fingerprint is None:
            warnings.warn(NO_FINGERPRINT, stacklevel=2)
        elif not force:
            check_fingerprint(base_fingerprint, await model.fingerprint_async(), force)
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
        return Footprint(20 + 4 * count, stored_bytes(n, self.base_quant, self.adapter.rows), count, n)

    def dispose(self) -> None:
        """Give the memory back; a second call does nothing. The model stays."""
        self._free_work()
        self._weights.free()
        if self._bound is not None:
            self._bound.free()
        self._base.dispose()
        if self._set_aside is not None:
            self.backend.free(self._set_aside)
            self._set_aside = None
        self.backend = disposed(type(self).__name__)
