"""The store of the browser: the Python face of web/store.mjs, which does the work and holds the rules.

Bytes cross once in each direction, as copies; records cross as JSON text, many in one call.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Iterable
from typing import Any

from ..checks import checked
from ..environment import (
    js_error_message,
    js_error_name,
    js_from_json,
    js_to_json,
    load_js_module,
    to_js_bytes,
    to_js_object,
)
from ..errors import EvermindError, InvalidArgumentError, RecordNotFoundError, StorageError, StorageFullError
from .base import JsonObject, Record, SaveItem, Store, check_metadata, check_name

_ERRORS: dict[str, type[EvermindError]] = {
    "StorageError": StorageError,
    "StorageFullError": StorageFullError,
    "RecordNotFoundError": RecordNotFoundError,
    "InvalidArgumentError": InvalidArgumentError,
}


class IndexedDBStore(Store):
    """Records in IndexedDB; in the page's memory, with a `notice`, in a private window that has none."""

    def __init__(self, face: Any) -> None:
        """`face` is a Store of web/store.mjs, as a JsProxy."""
        self._face = face
        self.persistent = bool(face.persistent)
        self.notice = str(face.notice)

    @classmethod
    async def open(cls, name: str) -> IndexedDBStore:
        """Open (or create) the database `name`. Raises: StorageError if other tabs block it, or it does not open."""
        module = await load_js_module("store.mjs")
        return cls(await _result(module.openStore(to_js_object({"name": check_name(name)}))))

    @checked
    async def save_many(self, items: Iterable[SaveItem], *, replace: bool = False) -> list[Record]:
        array = to_js_object([_item_fields(item) for item in items])
        return _records(await _result(self._face.saveMany(array, to_js_object({"replace": bool(replace)}))))

    async def load(self, name: str) -> tuple[Record, bytes]:
        found = await _result(self._face.load(check_name(name)))
        data: bytes = found.data.to_bytes()
        return _record(json.loads(js_to_json(found.record))), data

    async def list(self) -> list[Record]:
        records = _records(await _result(self._face.list()))
        self.notice = str(self._face.notice)  # the browser may lose its database at any time
        return sorted(records, key=lambda record: record.name)

    async def rename(self, old: str, new: str) -> None:
        await _result(self._face.rename(check_name(old), check_name(new)))

    async def delete(self, *names: str) -> None:
        await _result(self._face.delete(*map(check_name, names)))

    async def estimate(self) -> tuple[int, int]:
        found = await _result(self._face.estimate())
        return int(found.used), int(found.quota)

    async def persist(self) -> bool:
        return bool(await _result(self._face.persist()))

    def close(self) -> None:
        self._face.close()


async def _result(promise: Awaitable[Any]) -> Any:
    """Await a call of the face; an error of web/store_records.mjs becomes the Python class of the same name."""
    try:
        return await promise
    except Exception as error:
        known = _ERRORS.get(js_error_name(error))
        if known is None:
            raise
        raise known(js_error_message(error)) from error


def _item_fields(item: SaveItem) -> JsonObject:
    if not isinstance(item.data, (bytes, bytearray, memoryview)):
        raise InvalidArgumentError(f"data to save must be bytes, got {type(item.data).__name__}")
    return {
        "name": check_name(item.name),
        "data": to_js_bytes(item.data),
        "owned": True,
        "kind": item.kind,
        "baseFingerprint": item.base_fingerprint,
        "metadata": js_from_json(json.dumps(check_metadata(item.metadata))),
        "created": item.created,
    }


def _record(fields: JsonObject) -> Record:
    return Record.from_json({**fields, "base_fingerprint": fields["baseFingerprint"]})


def _records(rows: Any) -> list[Record]:
    return [_record(fields) for fields in json.loads(js_to_json(rows))]
