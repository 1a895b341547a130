"""What is in memory: one base model with its tokenizer, and the adapters that belong to it.

Everything is also kept as bytes, so that a lost GPU costs no more than the training that was running.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evermind_web import EvermindLMLoRA
from evermind_web.backend.base import Backend
from evermind_web.errors import ConfigMismatchError, FormatError, InvalidArgumentError
from evermind_web.formats.evl0 import read_evl0
from evermind_web.lora import LoraModel
from evermind_web.model import EvermindLM
from evermind_web.session.container import check_adapter_shape
from evermind_web.tokenizer import BPETokenizer


def fingerprint_of(checkpoint: bytes) -> str:
    """SHA-256 (hex) of the little-endian float32 parameters in an `EVL0` file, as loaded."""
    _, flat = read_evl0(checkpoint)
    return hashlib.sha256(np.asarray(flat, dtype="<f4").tobytes()).hexdigest()


@dataclass
class Adapter:
    """One adapter. `lora` is None until it is first used; `data` is the `LORA` blob."""

    name: str
    data: bytes
    metadata: dict[str, Any] = field(default_factory=dict)
    saved: bool = False
    lora: EvermindLMLoRA | None = None
    texts: dict[str, str] = field(default_factory=dict)  # what it learned from, by id, as far as it is not in the store


@dataclass
class ModelSet:
    """A base, its tokenizer and adapters by name. `name` is "" and `saved` False until it is saved."""

    model: EvermindLM
    tokenizer: BPETokenizer
    checkpoint: bytes
    fingerprint: str
    metadata: dict[str, Any]
    name: str = ""
    saved: bool = False
    adapters: dict[str, Adapter] = field(default_factory=dict)
    mixer: LoraModel | None = None  # made when adapters are first mixed

    @classmethod
    async def of_trained(cls, model: EvermindLM, tokenizer: BPETokenizer, metadata: dict[str, Any]) -> ModelSet:
        checkpoint = await model.export_weights_async()
        return cls(model, tokenizer, checkpoint, fingerprint_of(checkpoint), metadata)

    @classmethod
    async def of_files(
        cls, checkpoint: bytes, tokenizer: bytes, metadata: dict[str, Any], backend: Backend | None
    ) -> ModelSet:
        """Build a model from its files. Raises FormatError or ConfigMismatchError, before anything is allocated."""
        config, _ = read_evl0(checkpoint)
        codec = read_tokenizer(tokenizer)
        if codec.vocab_size > config.vocab_size:
            raise ConfigMismatchError(
                f"this tokenizer does not belong to this model: it has {codec.vocab_size} tokens, "
                f"the model has {config.vocab_size}. Choose the tokenizer that was exported with the model."
            )
        model = EvermindLM.from_checkpoint(checkpoint, backend)
        return cls(model, codec, checkpoint, fingerprint_of(checkpoint), metadata)

    def adapter(self, name: str) -> Adapter:
        """The adapter of that name. Raises InvalidArgumentError if there is none."""
        if name not in self.adapters:
            raise InvalidArgumentError(f"this model has no adapter called “{name}”.")
        return self.adapters[name]

    def put(self, adapter: Adapter) -> None:
        """Add an adapter, or put it in the place of one of its name."""
        self._drop(self.adapters.pop(adapter.name, None))
        self.adapters[adapter.name] = adapter

    def remove(self, name: str) -> None:
        """Forget an adapter."""
        self._drop(self.adapters.pop(name, None))

    def _drop(self, adapter: Adapter | None) -> None:
        if self.mixer is not None:  # it has a copy of each, by name
            self.mixer.dispose()
            self.mixer = None
        if adapter is not None and adapter.lora is not None:
            adapter.lora.dispose()
            adapter.lora = None

    async def mixed(self, weights: dict[str, float]) -> LoraModel:
        """A writer with the weighted sum of several adapters."""
        if self.mixer is None:
            self.mixer = LoraModel(self.model)
        for name in weights:
            if name not in self.mixer.adapter_names:
                await self.mixer.load_adapter_async(name, self.adapter(name).data, base_fingerprint=self.fingerprint)
        self.mixer.set_adapters(weights)
        return self.mixer

    async def lora_of(self, adapter: Adapter) -> EvermindLMLoRA:
        """The live adapter, made from its bytes the first time."""
        if adapter.lora is None:
            config = self.model.config
            check_adapter_shape(adapter.data, config.vocab_size, config.d_model)
            adapter.lora = await EvermindLMLoRA.load_adapter_async(
                self.model, adapter.data, base_fingerprint=self.fingerprint
            )
        return adapter.lora

    @property
    def all_saved(self) -> bool:
        return self.saved and all(a.saved for a in self.adapters.values())

    def dispose(self) -> None:
        """Free what lies on the device."""
        for adapter in self.adapters.values():
            self._drop(adapter)
        self._drop(None)
        self.model.dispose()

    async def moved_to(self, backend: Backend | None) -> ModelSet:
        """The same set rebuilt from its bytes, for after the device was lost."""
        moved = await ModelSet.of_files(self.checkpoint, self.tokenizer.to_str().encode(), self.metadata, backend)
        moved.name, moved.saved = self.name, self.saved
        moved.adapters = {n: Adapter(n, a.data, a.metadata, a.saved, texts=a.texts) for n, a in self.adapters.items()}
        return moved


def read_tokenizer(data: bytes) -> BPETokenizer:
    """A tokenizer from the bytes of a `tokenizer.json`. Raises FormatError for anything else."""
    try:
        text = data.decode("utf-8-sig")
        if not isinstance(json.loads(text), dict):
            raise ValueError("not a JSON object")
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"this is not a tokenizer.json ({error}). Choose the file that came with the model."
        ) from None
    return BPETokenizer.from_str(text)
