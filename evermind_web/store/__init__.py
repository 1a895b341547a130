"""Saved things: named records of bytes in IndexedDB, in a folder or in memory, behind one interface."""

from __future__ import annotations

import os
from pathlib import Path

from ..checks import checked
from ..environment import IN_BROWSER
from ..errors import InvalidArgumentError
from .backup import export_all as export_all
from .backup import import_all as import_all
from .base import Record as Record
from .base import SaveItem as SaveItem
from .base import Store as Store
from .memory import MemoryStore as MemoryStore


@checked
async def open_store(name: str | os.PathLike[str] = "evermind") -> Store:
    """Open (or create) a store.

    Args: `name` is the name of a database in the browser, and of a folder in CPython; a `Path` is always a folder.
    Raises: StorageError where it does not open (blocked by another tab, not a folder, written by a newer version);
    InvalidArgumentError for an empty name, which would be the current folder.
    """
    if not os.fspath(name).strip():
        raise InvalidArgumentError('a store needs a name, got an empty one; Path(".") is the current folder')
    if IN_BROWSER and isinstance(name, str):
        from .indexeddb import IndexedDBStore

        return await IndexedDBStore.open(name)
    from .folder import FolderStore

    return FolderStore(Path(name))
