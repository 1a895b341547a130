"""LoraModel: several named adapters on one frozen base."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evermind_web import ops
from evermind_web.backend.base import Backend, Buf
from evermind_web.batch import Example, Tokens
from evermind_web.checks import checked, disposed
from evermind_web.environment import run_blocking
from evermind_web.errors import InvalidArgumentError
from evermind_web.formats.evl0 import write_evl0
from evermind_web.language_model import LanguageModel
from evermind_web.lora import peft_io
from evermind_web.lora.adapter import LoRAAdapter
from evermind_web.lora.base import Base, MergeReport, PackedMatrix, requantize
from evermind_web.lora.bound import AdaptedWeights, BoundAdapter, LowRank, Sum
from evermind_web.lora.config import EMBEDDING, LoraConfig
from evermind_web.lora.peft_io import NO_FINGERPRINT, check_fingerprint
from evermind_web.lora.training import Tuner
from evermind_web.model import EvermindLM
from evermind_web.network import Views


@dataclass
class NamedAdapter:
    """One adapter: its settings, its tensors by the names of the matrices, and those on the device."""

    config: LoraConfig
    parts: dict[str, LoRAAdapter]
    bound: BoundAdapter


class LoraModel(LanguageModel):
    """Adapters by name on a frozen base; everything that reads or writes text uses the active one (or several, mixed).

    base_quant: how the embedding is kept for it, "none" (the model's own), "fp16", "int8" or "int8-row". Over a model,
    a packed embedding is a second copy; `from_checkpoint` keeps nothing but the packed one.
    The first adapter that is added becomes active; `set_adapter` changes it without compiling anything.
    """

    @checked
    def __init__(self, model: EvermindLM, base_quant: str = "none") -> None:
        self._take(Base.of_model(model, base_quant))

    def _take(self, base: Base) -> None:
        LanguageModel.__init__(self, base.backend, base.config)
        self.base, self.table = base, base.table
        self._weights, self._tuner = AdaptedWeights(base), Tuner()
        self._adapters: dict[str, NamedAdapter] = {}
        self._active: dict[str, float] = {}
        self._mix: BoundAdapter | None = None
        self._kept: list[tuple[Buf, int, Buf]] = []  # a merge's originals: block, offset, copy
        self._packed: PackedMatrix | None = None  # and the packed embedding of before
        self.merged: str | None = None
        self._prepared = False

    @classmethod
    @checked
    def from_checkpoint(cls, data: bytes, backend: str | Backend | None = None, base_quant: str = "none") -> LoraModel:
        """On a checkpoint's weights. With a packed base the float32 embedding never reaches the device."""
        model = cls.__new__(cls)
        model._take(Base.from_checkpoint(data, backend, base_quant))
        return model

    async def views_async(self) -> Views:
        """The base, as its model is now, with the active adapter."""
        busy = self.merged is not None or self._tuner.running
        changed = not busy and await self.base.refresh()
        if changed or not self._prepared:
            self._prepared = True
            self._activate()
        self._weights.queue_merge()
        return self._weights.views()

    # ---- adapters ----

    @property
    def adapter_names(self) -> list[str]:
        """The names, in the order of adding."""
        return list(self._adapters)

    @property
    def active_adapters(self) -> dict[str, float]:
        """Names and weights of what is active now; {} for the bare base."""
        return dict(self._active)

    @checked
    def add_adapter(self, name: str, config: LoraConfig | None = None) -> None:
        """A fresh adapter (delta 0). Raises InvalidArgumentError: name taken, no such target, rank too high."""
        chosen = config or LoraConfig()
        self._add(name, chosen, chosen.adapters(self.table))

    def _add(self, name: str, config: LoraConfig, parts: dict[str, LoRAAdapter]) -> None:
        if not isinstance(name, str) or not name or name in self._adapters:
            raise InvalidArgumentError(f"adapter name {name!r} is empty or taken; there are {self.adapter_names}")
        self._adapters[name] = NamedAdapter(config, parts, BoundAdapter(self.backend, parts))
        if len(self._adapters) == 1 and self.merged is None:
            self.set_adapter(name)

    def delete_adapter(self, name: str) -> None:
        """Forget an adapter; one that is active or merged is refused."""
        gone = self.adapter(name)
        if name in self._active or self.merged == name:
            raise InvalidArgumentError(f"adapter {name!r} is in use; set another one (or None), or unmerge, first")
        gone.bound.free()
        del self._adapters[name]

    @checked
    def adapter(self, name: str) -> NamedAdapter:
        """An adapter by name. After writing to its tensors on the host call `upload`."""
        if name not in self._adapters:
            self.backend.flush()  # a model that was disposed says so here
            raise InvalidArgumentError(f"no adapter is called {name!r}; there are {self.adapter_names}")
        return self._adapters[name]

    def upload(self, name: str) -> None:
        """Bring tensors that were changed on the host (`adapter(name).parts`) to the device."""
        self.adapter(name).bound.upload()
        if name in self._active:
            self._activate()

    @checked
    def set_adapter(self, name: str | None) -> None:
        """Use this adapter from now on; None: the bare base."""
        self.set_adapters({} if name is None else {name: 1.0})

    @checked
    def set_adapters(self, weights: Mapping[str, float]) -> None:
        """Use the weighted sum of several adapters' deltas. Training needs a single one of weight 1."""
        self._refuse_if_busy("change adapters")
        for name, weight in weights.items():
            self.adapter(name)
            if not np.isfinite(weight):
                raise InvalidArgumentError(f"the weight of adapter {name!r} must be a finite number, got {weight!r}")
        self._active = dict(weights)
        self._activate()

    def _refuse_if_busy(self, what: str) -> None:
        self.backend.flush()  # a model that was disposed says so here
        if self.merged is not None:
            raise InvalidArgumentError(f"cannot {what}: adapter {self.merged!r} is merged; unmerge_adapter() first")
        if self._tuner.running:
            raise InvalidArgumentError(f"cannot {what} while a fit is running; stop() it first")

    def _single(self) -> NamedAdapter | None:
        """The active adapter if it is one of weight 1."""
        if len(self._active) != 1:
            return None
        ((name, weight),) = self._active.items()
        return self._adapters[name] if weight == 1 else None

    def parts(self) -> dict[str, LowRank]:
        """What is active, by tensor name: one adapter's tensors, or weighted sums."""
        single = self._single()
        if single is not None:
            return dict(single.parts)
        found: dict[str, list[tuple[LowRank, float]]] = {}
        for name, weight in self._active.items():
            for tensor, part in self._adapters[name].parts.items():
                found.setdefault(tensor, []).append((part, weight))
        return {spec.name: Sum.of(found[spec.name]) for spec in self.table.specs if spec.name in found}

    def _activate(self) -> None:
        """Put what is active on the device's weights."""
        if not self._prepared:
            return
        old, self._mix = self._mix, None
        single = self._single()
        bound = single.bound if single else None
        if single is None and self._active:
            bound = self._mix = BoundAdapter(self.backend, self.parts())
        self._weights.activate(None if self.merged is not None else bound)
        if old is not None:
            old.free()

    # ---- training ----

    async def fit_async(self, sequences: Sequence[Tokens | Example], **options: Any) -> list[float]:
        """Train the active adapter with a fresh AdamW; options and result as in `EvermindLMLoRA.fit_async`.

        lora_dropout is the adapter's own unless it is given. The base stays as it is, bit for bit.
        """
        self._refuse_if_busy("train")
        single = self._single()
        if single is None:
            raise InvalidArgumentError(
                f"training needs one active adapter of weight 1, got {self._active}; set_adapter"
            )
        options.setdefault("lora_dropout", single.config.lora_dropout)
        await self.views_async()
        return await self._tuner.run(self, self._weights, sequences, **options)

    def fit(self, sequences: Sequence[Tokens | Example], **options: Any) -> list[float]:
        """Blocking twin of `fit_async`."""
        return self.alone(self.fit_async(sequences, **options))

    def stop(self) -> None:
        """End a running fit after the step in flight; what was learned stays."""
        self._tuner.stop()

    # ---- merging ----

    @checked
    async def merge_adapter_async(self, requantize_base: bool = False) -> MergeReport:
        """Write base + active adapter into the base's own weights. `unmerge_adapter` brings them back bit for bit.

        Until then the base is used as it is. A packed embedding is refused, since packing again rounds; with
        requantize_base=True it is done, and the report (and a warning, if all of the delta vanishes) says what it lost.
        Refused, too, while any fit of the model or of its adapters goes on.
        """
        self._refuse_if_busy("merge")
        single = self._single()
        if single is None:
            raise InvalidArgumentError(f"merging needs one active adapter of weight 1, got {self._active}; set_adapter")
        with self.base.fitting(frozen=False):
            await self.views_async()
            matrix, report = self.base.ready(), MergeReport(0.0, False)
            if EMBEDDING in single.parts and isinstance(matrix, PackedMatrix):
                if not requantize_base:
                    raise InvalidArgumentError(
                        f"the base embedding is {self.base.quant}: merging into it would round the adapter away; use "
                        "merge() for a float32 or fp16 checkpoint, or pass requantize_base=True"
                    )
                before = await matrix.read(self.config.d_model)
                packed, report = requantize(before, single.parts[EMBEDDING].delta(), self.base.quant)
                self._packed, self.base.matrix = matrix, PackedMatrix.upload(self.backend, packed)
            await self.base.remember_fingerprint()
            for name, at in single.bound.factors.items():
                window = self._window(name)
                if window is None:
                    continue
                block, offset, shape = window
                view, copy = self.backend.view(block, offset, shape), self.backend.alloc(shape)
                self.backend.copy(block, offset, copy, 0, copy.size)
                ops.lora_fwd(self.backend, (copy, at.b, at.a, at.scale), (view,))
                self.backend.free(view)
                self._kept.append((block, offset, copy))
            (self.merged,) = self._active
            self.base.seen(wrote=True)
            self._activate()
            return report

    def _window(self, name: str) -> tuple[Buf, int, tuple[int, ...]] | None:
        """Where a tensor lies: its buffer, first element, shape; None for a packed embedding."""
        if name == EMBEDDING:
            matrix = self.base.ready()
            return None if isinstance(matrix, PackedMatrix) else (matrix.emb, 0, matrix.emb.shape)
        spot = self._weights.spot(name)
        return self._weights.block((spot.layer, spot.kind)), spot.offset, spot.shape

    def merge_adapter(self, requantize_base: bool = False) -> MergeReport:
        """Blocking twin of `merge_adapter_async`."""
        return self.alone(self.merge_adapter_async(requantize_base))

    def unmerge_adapter(self) -> None:
        """Undo `merge_adapter`: the base is bit for bit what it was. Queued; nothing waits."""
        self.backend.flush()  # a model that was disposed says so here
        if self.merged is None:
            raise InvalidArgumentError("nothing is merged")
        if self.base.changed:
            raise InvalidArgumentError(
                f"the base was trained, loaded or merged into since {self.merged!r} was merged: to bring back what was "
                "before would mix two models; undo that first, or load the base anew"
            )
        with self.base.fitting(frozen=False):
            for block, offset, copy in self._kept:
                self.backend.copy(copy, 0, block, offset, copy.size)
                self.backend.free(copy)
        self._kept.clear()
        if self._packed is not None:
            assert isinstance(self.base.matrix, PackedMatrix)
            self.base.matrix.free()
            self.base.matrix, self._packed = self._packed, None
        self.merged = None
        self.base.seen(wrote=True)
        self.base.forget_fingerprint()
        self._activate()

    @checked
    async def merge_async(self, fp16: bool = False) -> bytes:
        """A checkpoint of base + what is active, float32 or fp16; nothing of this model changes.

        With a packed base the packed values are what the adapter was trained on, so they are what is merged.
        fp16: a value that it cannot hold is refused by its tensor's name.
        """
        await self.views_async()
        tensors = await self.base.tensors_async()
        parts = {} if self.merged is not None else self.parts()
        for name, part in parts.items():
            tensors[name] = np.asarray(tensors[name] + (part.B * np.float32(part.scale)) @ part.A, np.float32)
        flat = np.concatenate([tensors[spec.name].ravel() for spec in self.table.specs], dtype=np.float32)
        return write_evl0(self.config, flat, fp16)

    def merge(self, fp16: bool = False) -> bytes:
        """Blocking twin of `merge_async`."""
        return self.alone(self.merge_async(fp16))

    # ---- files ----

    @checked
    async def save_adapter_async(self, name: str, fp16: bool = False) -> dict[str, bytes]:
        """The files of an adapter in PEFT's layout, by file name; see `peft_io`. They name the base by its fingerprint.

        fp16: a value that it cannot hold is refused by its tensor's name; how many became 0 is said in a warning.
        """
        kept = self.adapter(name)
        return peft_io.write_adapter(kept.config, kept.parts, await self.base.fingerprint_async(), fp16)

    def save_adapter(self, name: str, fp16: bool = False) -> dict[str, bytes]:
        """Blocking twin of `save_adapter_async`."""
        return run_blocking(self.save_adapter_async(name, fp16))

    def save_lora_blob(self, name: str) -> bytes:
        """An adapter on the embedding alone as the reference's "LORA" file; InvalidArgumentError for other targets."""
        parts = self.adapter(name).parts
        if list(parts) != [EMBEDDING]:
            raise InvalidArgumentError(
                f"a LORA file holds the embedding only, {name!r} has {list(parts)}; save_adapter"
            )
        return parts[EMBEDDING].serialize()

    @checked
    async def load_adapter_async(
        self,
        name: str,
        data: bytes | Mapping[str, bytes],
        base_fingerprint: str | None = None,
        force: bool = False,
    ) -> None:
        """Add an adapter from the files of `save_adapter` (by name), or from a "LORA" file.

        Shapes, ranks and (unless force) the base's fingerprint must fit: FormatError, InvalidArgumentError or
        ConfigMismatchError otherwise, and nothing has changed. Without a fingerprint, in the file or given, only
        shapes can be checked, which is said in a warning.
        """
        if isinstance(data, Mapping):
            config, parts, recorded = peft_io.read_adapter(data, self.table)
        else:
            config, parts, recorded = peft_io.read_blob(data, self.table)
        recorded = base_fingerprint or recorded
        if recorded is None:
            warnings.warn(NO_FINGERPRINT, stacklevel=2)
        elif not force:
            check_fingerprint(recorded, await self.base.fingerprint_async(), force)
        self._add(name, config, parts)

    def load_adapter(
        self,
        name: str,
        data: bytes | Mapping[str, bytes],
        base_fingerprint: str | None = None,
        force: bool = False,
    ) -> None:
        """Blocking twin of `load_adapter_async`."""
        run_blocking(self.load_adapter_async(name, data, base_fingerprint, force))

    # ---- memory ----

    def memory_bytes(self) -> dict[str, int]:
        """Device bytes of the base's embedding and layers, of all adapters, and of merged copies."""
        self.backend.flush()  # a model that was disposed says so here
        adapters = sum(a.bound.nbytes for a in self._adapters.values()) + (self._mix.nbytes if self._mix else 0)
        return self.base.memory_bytes() | {"adapters": adapters, "merged_copies": self._weights.nbytes()}

    def dispose(self) -> None:
        """Give the memory back, but not the model's; what is merged into it stays. A second call does nothing."""
        self._free_work()
        self._weights.free()
        for adapter in self._adapters.values():
            adapter.bound.free()
        if self._mix is not None:
            self._mix.free()
        for _, _, copy in self._kept:
            self.backend.free(copy)
        if self._packed is not None:
            self._packed.free()
        self._adapters, self._active, self._mix, self._kept, self._packed = {}, {}, None, [], None
        self.base.dispose()
        self.backend = disposed(type(self).__name__)
