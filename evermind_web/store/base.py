"""What a store is: named records of bytes, the checks on them, and the interface that every store offers.

A store moves bytes and knows no tensors. `plan_save` and `plan_rename` decide what a change does to the records;
memory, folder and IndexedDB (in web/store_records.mjs) follow the same rules. Nothing here does input or output.
"""

from __future__ import annotations

import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from ..checks import checked
from ..errors import InvalidArgumentError, RecordNotFoundError, StorageError

MAX_NAME = 200  # Unicode code points
MAX_KIND = 40
_LARGEST_JS_INTEGER = 2**53 - 1

JsonObject = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """What is known of one saved thing without reading its bytes.

    `size` is in bytes, `crc32` that of the bytes, `created` and `modified` are ISO 8601 times in UTC, `metadata` is
    plain JSON. Names are unique in a store, whatever the kind.
    """

    name: str
    kind: str
    base_fingerprint: str
    crc32: int
    size: int
    created: str
    modified: str
    metadata: JsonObject = field(default_factory=dict)

    def to_json(self) -> JsonObject:
        """The fields as a dict that `json.dumps` takes."""
        return asdict(self)

    @classmethod
    @checked
    def from_json(cls, fields: Mapping[str, Any]) -> Record:
        """The record that `to_json` wrote. Raises: StorageError naming the field that is missing or wrong."""
        values: JsonObject = {}
        for name, kind in _FIELD_TYPES.items():
            value = fields.get(name)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise StorageError(f"record field {name!r} must be {kind.__name__}, got {type(value).__name__}")
            values[name] = value
        return cls(**values)


_FIELD_TYPES: dict[str, type] = {
    "name": str, "kind": str, "base_fingerprint": str, "crc32": int, "size": int,
    "created": str, "modified": str, "metadata": dict,
}  # fmt: skip


@dataclass(frozen=True)
class SaveItem:
    """One thing to save with `Store.save_many`. `created` keeps the date of something that is imported."""

    name: str
    data: bytes | bytearray | memoryview
    kind: str
    base_fingerprint: str = ""
    metadata: JsonObject | None = None
    created: str = ""


class Store(ABC):
    """Named records of bytes. Get one from `evermind_web.open_store`.

    `persistent` tells whether records outlive the page (or the process); `notice` is a sentence for the user, ""
    when there is nothing to say. A change is all or nothing, and on disk when its call returns. Names are any
    Unicode text of 1 to 200 characters.
    """

    persistent: bool = True
    notice: str = ""

    async def save(
        self,
        name: str,
        data: bytes | bytearray | memoryview,
        kind: str,
        base_fingerprint: str = "",
        metadata: JsonObject | None = None,
        *,
        replace: bool = False,
    ) -> Record:
        """Save a copy of `data` under `name`, with its CRC-32.

        Args: `kind` is "base", "tokenizer", "adapter", "state" or another short word; `metadata` plain JSON.
        Raises: StorageError if the name is taken and `replace` is false; StorageFullError, at once, with the
        older record untouched; InvalidArgumentError for a bad name, kind or metadata.
        """
        item = SaveItem(name, data, kind, base_fingerprint, metadata)
        return (await self.save_many([item], replace=replace))[0]

    @abstractmethod
    async def save_many(self, items: Iterable[SaveItem], *, replace: bool = False) -> list[Record]:
        """Save several records (a base with its tokenizer), all or none. Raises: as `save`."""

    @abstractmethod
    async def load(self, name: str) -> tuple[Record, bytes]:
        """A record and its bytes, length and CRC-32 checked.

        Raises: RecordNotFoundError if there is none; StorageError if the bytes are not those that were saved.
        """

    @abstractmethod
    async def list(self) -> list[Record]:
        """Every record, ordered by name. Reads no bytes."""

    @abstractmethod
    async def rename(self, old: str, new: str) -> None:
        """Raises: RecordNotFoundError if there is no `old`; StorageError if `new` is taken."""

    @abstractmethod
    async def delete(self, *names: str) -> None:
        """Delete them all, or none. Raises: RecordNotFoundError."""

    @abstractmethod
    async def estimate(self) -> tuple[int, int]:
        """Bytes used and bytes allowed; the second is 0 where it is not known."""

    @abstractmethod
    async def persist(self) -> bool:
        """Ask that the records are not evicted when space runs low; tells whether that is promised."""

    @abstractmethod
    def close(self) -> None:
        """Let go of files and connections. Every later call is refused. A second close does nothing."""


# ---- checks and plans -----------------------------------------------------------------------------------------


def check_name(name: str) -> str:
    """`name`, if it may be a record's. Raises: InvalidArgumentError."""
    if not isinstance(name, str) or not name.strip():
        raise InvalidArgumentError("a record needs a name")
    if len(name) > MAX_NAME:
        raise InvalidArgumentError(f"a record's name has at most {MAX_NAME} characters, this one has {len(name)}")
    if not _is_unicode(name):
        raise InvalidArgumentError("a record's name is not valid Unicode text")
    return name


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def check_metadata(metadata: JsonObject | None) -> JsonObject:
    """A deep copy, as plain JSON. Raises: InvalidArgumentError for anything that JSON (or JavaScript) would lose."""
    if metadata is not None and not isinstance(metadata, dict):
        raise InvalidArgumentError(f"metadata must be a dict, got {type(metadata).__name__}")
    try:
        text = json.dumps(metadata or {}, allow_nan=False, ensure_ascii=False)
        text.encode()  # half of a surrogate pair is in no file
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"metadata must be plain JSON: {error}") from error
    copy: JsonObject = json.loads(text, parse_int=_safe_integer)
    return copy


def _safe_integer(text: str) -> int:
    if abs(int(text)) > _LARGEST_JS_INTEGER:
        raise InvalidArgumentError(f"metadata holds {text}, more than JavaScript counts exactly; store it as a string")
    return int(text)


def prepare(item: SaveItem) -> tuple[Record, bytes]:
    """The record of a new item and a copy of its bytes. Raises: InvalidArgumentError."""
    if not isinstance(item.kind, str) or not 0 < len(item.kind) <= MAX_KIND:
        raise InvalidArgumentError(f'a record\'s kind is a short word such as "base" or "adapter", got {item.kind!r}')
    if not isinstance(item.base_fingerprint, str):
        raise InvalidArgumentError(f"base_fingerprint must be a str, got {type(item.base_fingerprint).__name__}")
    if not _is_unicode(item.kind + item.base_fingerprint + item.created):
        raise InvalidArgumentError("a record's kind, base_fingerprint or date is not valid Unicode text")
    if not isinstance(item.data, (bytes, bytearray, memoryview)):
        raise InvalidArgumentError(f"data to save must be bytes, got {type(item.data).__name__}")
    data = bytes(item.data)
    now = now_utc()
    return Record(
        name=check_name(item.name),
        kind=item.kind,
        base_fingerprint=item.base_fingerprint,
        crc32=zlib.crc32(data),
        size=len(data),
        created=item.created or now,
        modified=now,
        metadata=check_metadata(item.metadata),
    ), data


def plan_save(existing: Mapping[str, Record], new: Sequence[Record], replacing: bool) -> list[Record]:
    """`new` as it is to be stored. Raises: StorageError for a name that is taken or given twice."""
    names: set[str] = set()
    for record in new:
        if record.name in names:
            raise InvalidArgumentError(f"the name {record.name} is given twice")
        if record.name in existing and not replacing:
            raise name_taken(record.name)
        names.add(record.name)
    return [
        replace(record, created=existing[record.name].created) if record.name in existing else record for record in new
    ]


def plan_rename(existing: Mapping[str, Record], old: str, new: str, place: str) -> Record:
    """The record `old` under its new name. Raises: RecordNotFoundError, StorageError if `new` is taken."""
    check_name(new)
    if old not in existing:
        raise not_found(old, place)
    if new == old:
        return existing[old]
    if new in existing:
        raise name_taken(new)
    return replace(existing[old], name=new, modified=now_utc())


def check_bytes(record: Record, data: bytes) -> bytes:
    """`data`, if it is what `record` was saved with. Raises: StorageError."""
    repair = "delete it, and import it again from a file"
    if len(data) != record.size:
        raise StorageError(f"{record.name} is truncated: have {len(data)} of {record.size} bytes; {repair}")
    found = zlib.crc32(data)
    if found != record.crc32:
        raise StorageError(f"{record.name} is damaged: CRC-32 is {found:08x}, saved as {record.crc32:08x}; {repair}")
    return data


def not_found(name: str, place: str) -> RecordNotFoundError:
    """`place` ends the sentence: "this browser", "the folder models"."""
    return RecordNotFoundError(f"checkpoint {name} is no longer in {place}; import it from a file, or train it again")


def name_taken(name: str) -> StorageError:
    return StorageError(f"the name {name} is taken; choose another, or replace the record on purpose")


def now_utc() -> str:
    """ISO 8601 with milliseconds, as JavaScript's `toISOString` writes it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
