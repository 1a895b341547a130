"""The records of models and adapters: of those in memory, and of those that come as files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evermind_web.errors import ConfigMismatchError, EvermindError, FormatError
from evermind_web.formats.evl0 import read_evl0
from evermind_web.session import adapter_file
from evermind_web.session.arrivals import TEXT_PREFIX, content_name
from evermind_web.session.container import MODEL, TOKENIZER, Package
from evermind_web.session.model_set import Adapter, ModelSet, fingerprint_of, read_tokenizer
from evermind_web.store import Record, SaveItem


def base_items(name: str, checkpoint: bytes, tokenizer: bytes, training: dict[str, Any]) -> list[SaveItem]:
    """The records of a model: tokenizer first, so that no listing ever shows a base without it."""
    codec = content_name("tokenizer", tokenizer)
    return [
        SaveItem(codec, tokenizer, "tokenizer", "", {}),
        SaveItem(name, checkpoint, "base", fingerprint_of(checkpoint), {"tokenizer": codec, "training": training}),
    ]


def adapter_items(adapter: Adapter, fingerprint: str) -> list[SaveItem]:
    """The records of an adapter: the texts that it learned from, as far as they are in memory, first."""
    items = [
        SaveItem(TEXT_PREFIX + identity, text.encode(), "text", fingerprint) for identity, text in adapter.texts.items()
    ]
    return [*items, SaveItem(adapter.name, adapter.data, "adapter", fingerprint, {"training": adapter.metadata})]


def is_tokenizer(record: Record | None) -> bool:
    """A base from a file may claim that anything is its tokenizer."""
    return record is not None and record.kind == "tokenizer"


# ── what comes as a file ─────────────────────────────────────────────────────
def imported_base(name: str, package: Package, tokenizer: bytes | None, training: dict[str, Any]) -> list[SaveItem]:
    """The records of an imported model. Raises FormatError without a tokenizer, ConfigMismatchError for another's."""
    codec = tokenizer if tokenizer is not None else package.files.get(TOKENIZER)
    if codec is None:
        raise FormatError(f"“{name}” has no tokenizer in it. Choose its tokenizer.json and the checkpoint together.")
    config, _ = read_evl0(package.files[MODEL])
    size = read_tokenizer(codec).vocab_size
    if size != config.vocab_size:
        raise ConfigMismatchError(
            f"this tokenizer does not belong to this model: it has {size} tokens, the model has "
            f"{config.vocab_size}. Choose the tokenizer that was exported with the model."
        )
    return base_items(name, package.files[MODEL], codec, training)


def base_for(package: Package, known: Mapping[str, Record], current: ModelSet | None) -> tuple[str, str]:
    """(fingerprint of the base that an imported adapter belongs to, notice). Raises ConfigMismatchError."""
    fingerprint = package.base_fingerprint
    saved = any(r.kind == "base" and r.base_fingerprint == fingerprint for r in known.values())
    if fingerprint and saved and (current is None or current.fingerprint != fingerprint):
        return fingerprint, ""
    if current is None:
        raise EvermindError("Load or import the model that this adapter belongs to first.")
    adapter_file.check(adapter_file.of_members(package.files), current.model.config)
    if not fingerprint:
        return current.fingerprint, "This file does not say which model it belongs to; only its shape was checked."
    if fingerprint != current.fingerprint:
        raise ConfigMismatchError(
            f"this adapter belongs to another model (fingerprint {fingerprint[:12]}…, the model here has "
            f"{current.fingerprint[:12]}…). Import or load the model that it was trained on first."
        )
    return fingerprint, ""


def others_in_memory(package: Package, name: str, current: ModelSet | None) -> set[str]:
    """Names of adapters in memory that an imported file must not take; its own place it may take again."""
    live = current.adapters if current is not None else {}
    own = name in live and package.kind == "adapter" and adapter_file.of_members(package.files) == live[name].data
    return set(live) - ({name} if own else set())
