"""What is in memory: one base model with its tokenizer, and the adapters that belong to it.

Everything is also kept as bytes, so that a lost GPU costs no more than the training that was running.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evermind_web import strict_json
from evermind_web.backend.base import Backend
from evermind_web.errors import ConfigMismatchError, FormatError, InvalidArgumentError
from evermind_web.formats import values
from evermind_web.formats.evl0 import read_evl0
from evermind_web.language_model import LanguageModel
from evermind_web.lora import LoraModel
from evermind_web.model import EvermindLM
from evermind_web.session import adapter_file
from evermind_web.tokenizer import BPETokenizer


def fingerprint_of(checkpoint: bytes) -> str:
    """SHA-256 (hex) of the little-endian float32 parameters in an `EVL0` file, as loaded."""
    return values.fingerprint_of(read_evl0(checkpoint)[1])


@dataclass
class Adapter:
    """One adapter; `data` are its bytes, see `adapter_file`."""

    name: str
    data: bytes
    metadata: dict[str, Any] = field(default_factory=dict)
    saved: bool = False
    texts: dict[str, str] = field(default_factory=dict)  # what it learned from, by id, as far as it is not in the store

    def describe(self) -> dict[str, Any]:
        """As plain values."""
        return {"name": self.name, "saved": self.saved, "bytes": len(self.data), "training": self.metadata}


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
    lora: LoraModel | None = None  # all adapters that were used, by name; they share its merged copies of the weights

    @classmethod
    def of_trained(
        cls, model: EvermindLM, tokenizer: BPETokenizer, checkpoint: bytes, metadata: dict[str, Any]
    ) -> ModelSet:
        """A model that is in memory, and the bytes of it."""
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
        self.remove(adapter.name)
        self.adapters[adapter.name] = adapter

    def remove(self, name: str) -> Adapter | None:
        """Forget an adapter, and return it."""
        if self.lora is not None and name in self.lora.adapter_names:
            if name in self.lora.active_adapters:
                self.lora.set_adapter(None)
            self.lora.delete_adapter(name)
        return self.adapters.pop(name, None)

    def writer(self, weights: Mapping[str, float]) -> LanguageModel:
        """Who writes: the model itself, or with the weighted sum of adapters. Valid until the next call."""
        if not weights:
            return self.model
        lora = self.lora = self.lora or LoraModel(self.model)
        for name in weights:
            if name not in lora.adapter_names:
                data = self.adapter(name).data
                adapter_file.check(data, self.model.config)
                adapter_file.put(lora, name, data)
        if lora.active_adapters != weights:
            lora.set_adapters(weights)
        return lora

    @property
    def reach(self) -> int:
        """How many tokens back the model can see."""
        config = self.model.config
        return config.num_layers * (config.conv_kernel - 1)

    def describe(self) -> dict[str, Any]:
        """The model as plain values."""
        return {
            "name": self.name,
            "saved": self.saved,
            "fingerprint": self.fingerprint,
            "parameters": int(self.model.num_parameters),
            "vocab_size": int(self.model.config.vocab_size),
            "bytes": len(self.checkpoint),
            "training": self.metadata,
        }

    def forget_writers(self) -> None:
        """Free what adapters take on the device; they are made from their bytes when they are used again."""
        if self.lora is not None:
            self.lora.dispose()
            self.lora = None

    def dispose(self) -> None:
        """Free what lies on the device."""
        self.forget_writers()
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
        if not isinstance(strict_json.loads(text), dict):
            raise ValueError("not a JSON object")
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"this is not a tokenizer.json ({error}). Choose the file that came with the model."
        ) from None
    return BPETokenizer.from_str(text)
