"""A store in a folder: one index of all records, and one file of bytes for each.

    <folder>/index.json     {"format": "evermind_web store", "version": 1, "records": [{…, "blob": "<hex>.bin"}, …]}
    <folder>/blobs/<hex>.bin
    <folder>/.lock          held by the one process that writes

A change writes new bytes first and then replaces `index.json` in one step: that is the moment it happens. Whatever
was cut short before leaves only bytes that no record names; the next change sweeps them up. Names of records never
become paths, so that any name is safe.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..checks import checked
from ..errors import StorageError, StorageFullError
from .base import JsonObject, Record, SaveItem, Store, check_bytes, not_found, plan_rename, plan_save, prepare

FORMAT = "evermind_web store"
VERSION = 1
_LOCK_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class _Entry:
    """A record and the file name of its bytes."""

    record: Record
    blob: str


_Index = dict[str, _Entry]


class FolderStore(Store):
    """Records in a folder. Several processes may use it at once; they write one after the other."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Create the folder if need be. Raises: StorageError if it cannot be used, or is of a newer version."""
        self._folder = Path(folder)
        self._blobs = self._folder / "blobs"
        self._closed = False
        try:
            self._blobs.mkdir(parents=True, exist_ok=True)
            with _writer_lock(self._folder / ".lock"):
                self._create_index()
        except (OSError, ValueError) as error:  # ValueError: a path that no system takes
            raise StorageError(f"cannot keep a store in {str(self._folder)!r}: {error}") from error
        self._read_index()

    @checked
    async def save_many(self, items: Iterable[SaveItem], *, replace: bool = False) -> list[Record]:
        prepared = [prepare(item) for item in items]
        with self._changing(sum(len(data) for _, data in prepared)) as index:
            existing = {name: entry.record for name, entry in index.items()}
            saved = plan_save(existing, [record for record, _ in prepared], replace)
            for record, (_, data) in zip(saved, prepared, strict=True):
                index[record.name] = _Entry(record, self._write_blob(data))
        return saved

    @checked
    async def load(self, name: str) -> tuple[Record, bytes]:
        missing = ""
        while True:
            entry = self._read_index().get(name)
            if entry is None:
                raise not_found(name, self._place)
            try:
                return entry.record, check_bytes(entry.record, (self._blobs / entry.blob).read_bytes())
            except FileNotFoundError as error:  # replaced by another process since the index was read, or lost
                if entry.blob == missing:
                    raise StorageError(
                        f"the bytes of {name} are missing; delete it, and import it again from a file"
                    ) from error
                missing = entry.blob
            except OSError as error:
                raise StorageError(f"the bytes of {name} cannot be read: {error}") from error

    async def list(self) -> list[Record]:
        return sorted((entry.record for entry in self._read_index().values()), key=lambda record: record.name)

    @checked
    async def rename(self, old: str, new: str) -> None:
        with self._changing(0) as index:
            existing = {name: entry.record for name, entry in index.items()}
            record = plan_rename(existing, old, new, self._place)
            index[new] = _Entry(record, index.pop(old).blob)

    async def delete(self, *names: str) -> None:
        with self._changing(0) as index:
            for name in dict.fromkeys(names):
                if index.pop(name, None) is None:
                    raise not_found(name, self._place)

    async def estimate(self) -> tuple[int, int]:
        used = sum(entry.record.size for entry in self._read_index().values())
        return used, used + shutil.disk_usage(self._folder).free

    async def persist(self) -> bool:
        return True

    def close(self) -> None:
        self._closed = True

    @property
    def _place(self) -> str:
        return f"the folder {self._folder}"

    # ---- files ----

    def _read_index(self) -> _Index:
        if self._closed:
            raise StorageError("the store is closed; open it again")
        path = self._folder / "index.json"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise StorageError(f"{path} cannot be read: {error}; restore it from a backup") from error
        return _parse_index(content, path)

    def _create_index(self) -> None:
        """Start a new folder. A folder with bytes and no index has lost it: a sweep would finish the loss."""
        path = self._folder / "index.json"
        if path.exists():
            return
        if any(self._blobs.iterdir()):
            raise StorageError(f"{path} is missing, but records are there; restore it from a backup")
        self._write_index({})

    @contextlib.contextmanager
    def _changing(self, need: int) -> Iterator[_Index]:
        """The index, to be edited; written back, and its unnamed bytes swept up, when the block ends well."""
        try:
            with _writer_lock(self._folder / ".lock"):
                index = self._read_index()
                try:
                    yield index
                    sync_folder(self._blobs)
                    self._write_index(index)
                finally:
                    self._sweep(self._read_index())
        except OSError as error:
            raise self._storage_error(error, need) from error

    def _write_blob(self, data: bytes) -> str:
        name = f"{secrets.token_hex(16)}.bin"
        with open(self._blobs / name, "xb") as file:
            _write_through(file, data)
        return name

    def _write_index(self, index: _Index) -> None:
        records = [{**entry.record.to_json(), "blob": entry.blob} for entry in index.values()]
        text = json.dumps({"format": FORMAT, "version": VERSION, "records": records}, ensure_ascii=False, indent=0)
        temporary = self._folder / "index.json.tmp"
        with open(temporary, "wb") as file:
            _write_through(file, text.encode())
        os.replace(temporary, self._folder / "index.json")
        sync_folder(self._folder)

    def _sweep(self, index: _Index) -> None:
        """Remove bytes that no record names; safe under the lock only, while nobody else writes."""
        named = {entry.blob for entry in index.values()}
        for path in self._blobs.iterdir():
            if path.name not in named:
                with contextlib.suppress(OSError):  # open in another process on Windows: next time
                    path.unlink()

    def _storage_error(self, error: OSError, need: int) -> StorageError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(self._folder).free
            return StorageFullError(
                f"the disk of {self._folder} is full: need {need / 2**20:.2f} MiB, free {free / 2**20:.2f} MiB; "
                f"{'delete records or free' if need else 'free some'} disk space; nothing was changed"
            )
        return StorageError(f"cannot write to {self._folder}: {error}; nothing was changed")


def _parse_index(content: object, path: Path) -> _Index:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise StorageError(f"{path} is not an index of this package; choose another folder")
    if content.get("version") != VERSION:
        raise StorageError(
            f"{path} has version {content.get('version')}, this package reads {VERSION}; update evermind_web"
        )
    index: _Index = {}
    rows: list[JsonObject] | None = content.get("records")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise StorageError(f"{path} holds no list of records; restore it from a backup")
    for row in rows:
        blob = row.get("blob")
        if not isinstance(blob, str) or not blob.endswith(".bin") or not blob[:-4].isalnum():
            raise StorageError(f"{path} names {blob!r} as a file of bytes; restore it from a backup")
        record = Record.from_json(row)
        if record.name in index:
            raise StorageError(f"{path} names {record.name} twice; restore it from a backup")
        index[record.name] = _Entry(record, blob)
    return index


def _write_through(file: BinaryIO, data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make new and replaced names durable, where the system can open a folder (not on Windows)."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _writer_lock(path: Path) -> Iterator[None]:
    """Hold the folder's lock; it falls off by itself when the process dies. Raises: StorageError after 10 s."""
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    with path.open("ab") as file:
        while not try_lock(file):
            if time.monotonic() > deadline:
                raise StorageError(f"another process has been writing to {path.parent} for 10 s; try again")
            time.sleep(0.02)
        yield  # closing the file lets go of the lock


def try_lock(file: BinaryIO) -> bool:
    """Whether this process now holds the lock of an open file, until that is closed or the process dies."""
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
