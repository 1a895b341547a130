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
from evermind_web.errors import ConfigMismatchError, FormatError
from evermind_web.formats.evl0 import read_evl0
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
            if adapter.lora is not None:
                adapter.lora.dispose()
                adapter.lora = None
        self.model.dispose()

    async def moved_to(self, backend: Backend | None) -> ModelSet:
        """The same set rebuilt from its bytes, for after the device was lost."""
        moved = await ModelSet.of_files(self.checkpoint, self.tokenizer.to_str().encode(), self.metadata, backend)
        moved.name, moved.saved = self.name, self.saved
        moved.adapters = {n: Adapter(n, a.data, a.metadata, a.saved) for n, a in self.adapters.items()}
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
