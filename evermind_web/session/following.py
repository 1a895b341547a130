"""What other tabs do to the saved things, taken up by the model in memory.

What is in memory and saved follows the store: another name, what another tab taught it since, new adapters. What was
deleted there stays in memory, unsaved, so that nothing is lost; the sentences that are returned say so.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from typing import Any

from evermind_web.session.library import Library
from evermind_web.session.metadata import training_of
from evermind_web.session.model_set import Adapter, ModelSet
from evermind_web.store import Record

BUSY_SECONDS = 0.3  # between two looks at whether a job is over


async def follow(library: Library) -> dict[str, Any]:
    """Wait until no job runs, then look at the store. Returns `notices`, sentences, and the session's description."""
    session = library.session
    while session.busy:  # noqa: ASYNC110 - a job tells nobody when it is over
        await asyncio.sleep(BUSY_SECONDS)
    notices: list[str] = []
    with session.exclusive("Looking at what another tab saved"):
        current = session.current
        if current is not None:
            records = [r for r in await library.store.list() if r.base_fingerprint == current.fingerprint]
            notices += _follow_model(current, [r.name for r in records if r.kind == "base"])
            notices += await _follow_adapters(library, current, {r.name: r for r in records if r.kind == "adapter"})
    return {"notices": notices, "session": session.describe()}


def _follow_model(current: ModelSet, names: list[str]) -> list[str]:
    if not current.saved or current.name in names:
        return []
    if names:
        old, current.name = current.name, names[0]
        return [f"“{old}” is called “{names[0]}” now: it was renamed in another tab."]
    current.saved = False
    return [f"“{current.name}” was deleted in another tab. It is still in memory here: save it to keep it."]


async def _follow_adapters(library: Library, current: ModelSet, records: dict[str, Record]) -> list[str]:
    notices = []
    for name, adapter in list(current.adapters.items()):
        record = records.get(name)
        if not adapter.saved or (record is not None and is_record_of(adapter, record)):
            continue
        new = next(
            (r.name for r in records.values() if r.name not in current.adapters and is_record_of(adapter, r)), None
        )
        if record is not None:
            current.put(await library.read_adapter(record))
            notices.append(f"“{name}” was changed in another tab; here it is the new one now, too.")
        elif new is not None:
            library.rename_in_memory(name, new)
            notices.append(f"“{name}” is called “{new}” now: it was renamed in another tab.")
        else:
            adapter.saved = False
            notices.append(
                f"“{name}” was deleted in another tab. It is still in memory here: save the model to keep it."
            )
    if current.saved:
        for name in records.keys() - current.adapters.keys():
            current.put(await library.read_adapter(records[name]))
    return notices


def is_record_of(adapter: Adapter, record: Record) -> bool:
    """Whether a record holds what is in memory."""
    training = json.loads(json.dumps(adapter.metadata))  # a record has lists where Python may have tuples
    return zlib.crc32(adapter.data) == record.crc32 and training == training_of(record.metadata)
