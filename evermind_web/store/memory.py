"""A store in memory, for tests and for programs that save nothing. It is gone when the process ends."""

from __future__ import annotations

from collections.abc import Iterable

from ..checks import checked
from ..errors import StorageError
from .base import Record, SaveItem, Store, check_bytes, not_found, plan_rename, plan_save, prepare

_PLACE = "memory"


class MemoryStore(Store):
    """Records in a dict. `persistent` is False."""

    persistent = False

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._data: dict[str, bytes] = {}
        self._closed = False

    @checked
    async def save_many(self, items: Iterable[SaveItem], *, replace: bool = False) -> list[Record]:
        self._check_open()
        prepared = [prepare(item) for item in items]
        saved = plan_save(self._records, [record for record, _ in prepared], replace)
        for record, (_, data) in zip(saved, prepared, strict=True):
            self._records[record.name] = record
            self._data[record.name] = data
        return saved

    @checked
    async def load(self, name: str) -> tuple[Record, bytes]:
        self._check_open()
        if name not in self._records:
            raise not_found(name, _PLACE)
        return self._records[name], check_bytes(self._records[name], self._data[name])

    async def list(self) -> list[Record]:
        self._check_open()
        return sorted(self._records.values(), key=lambda record: record.name)

    @checked
    async def rename(self, old: str, new: str) -> None:
        self._check_open()
        record = plan_rename(self._records, old, new, _PLACE)
        data = self._data.pop(old)
        del self._records[old]
        self._records[new], self._data[new] = record, data

    async def delete(self, *names: str) -> None:
        self._check_open()
        for name in names:
            if name not in self._records:
                raise not_found(name, _PLACE)
        for name in {*names}:
            del self._records[name], self._data[name]

    async def estimate(self) -> tuple[int, int]:
        self._check_open()
        return sum(record.size for record in self._records.values()), 0

    async def persist(self) -> bool:
        return False

    def close(self) -> None:
        self._closed = True
        self._records.clear()
        self._data.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError("the store is closed; open it again")
