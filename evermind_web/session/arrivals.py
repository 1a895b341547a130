"""Names of saved things, and what a backup or an undone deletion brings: nothing that is here is replaced."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from zlib import crc32

from evermind_web.errors import FormatError, InvalidArgumentError
from evermind_web.store import Record, SaveItem

TOKENIZER_PREFIX = "tokenizer:"
TEXT_PREFIX = "text:"
# Records that are named by what they hold, so that copies share them.
_BY_CONTENT = {"tokenizer": TOKENIZER_PREFIX, "text": TEXT_PREFIX}


def content_name(kind: str, data: bytes | bytearray | memoryview) -> str:
    """The name of a tokenizer's or a text's record."""
    return _BY_CONTENT[kind] + hashlib.sha256(data).hexdigest()[:16]


def free_name(known: Set[str], name: str) -> str:
    """`name`, or `name 2`, `name 3`, … if it is taken."""
    number, free = 1, name
    while free in known:
        number += 1
        free = f"{name[:74]} {number}"
    return free


def check_free(known: Mapping[str, Record], name: str, kind: str, fingerprint: str) -> None:
    """The same thing may be saved again under its name; anything else that has the name is not overwritten."""
    other = known.get(name)
    if other is not None and (other.kind, other.base_fingerprint) != (kind, fingerprint):
        what = "model" if other.kind == "base" else other.kind
        raise InvalidArgumentError(
            f"“{name}” is the name of another saved {what}. Choose another name, or delete that one."
        )


def arrivals(
    items: Iterable[SaveItem], records: Iterable[Record], live: Mapping[str, bytes]
) -> tuple[list[SaveItem], dict[str, str]]:
    """What is to be saved of `items`, and the name that each model or adapter among them has from now on.

    What is here already is not saved again; what has the name of something else gets the next free one. live: adapters
    in memory, by name. Raises FormatError where a tokenizer or text is not what its name says.
    """
    known = {record.name: record for record in records}
    wanted: list[SaveItem] = []
    names: dict[str, str] = {}
    for item in items:
        if item.kind in _BY_CONTENT or item.name.startswith(tuple(_BY_CONTENT.values())):
            if item.kind not in _BY_CONTENT or item.name != content_name(item.kind, item.data):
                raise FormatError(f"this file is damaged: {item.name} is not what its name says. Export it again.")
            if item.name not in known:
                wanted.append(item)
            continue
        name = names[item.name] = item.name if _is_here(item, known.get(item.name)) else _free(item, known, live, names)
        if name not in known:
            wanted.append(replace(item, name=name))
    return wanted, names


def _is_here(item: SaveItem, record: Record | None) -> bool:
    return record is not None and (record.kind, record.base_fingerprint, record.crc32, record.metadata) == (
        item.kind, item.base_fingerprint, crc32(item.data), item.metadata or {}
    )  # fmt: skip


def _free(item: SaveItem, known: Mapping[str, Record], live: Mapping[str, bytes], names: Mapping[str, str]) -> str:
    others = {name for name, data in live.items() if name != item.name or data != item.data}
    return free_name(known.keys() | others | set(names.values()), item.name)
