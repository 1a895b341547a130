"""What is kept in the browser: save, list, load, rename, delete, export and import, over one store.

A model is two records, the base and its tokenizer; an adapter is one and names its base by fingerprint.
A tokenizer is stored under its own hash, so that renaming a model touches one record and copies share it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from evermind_web.errors import (
    EvermindError,
    FormatError,
    InvalidArgumentError,
    RecordNotFoundError,
    StorageError,
)
from evermind_web.session import adapter_file, container
from evermind_web.session.arrivals import TEXT_PREFIX, arrivals, check_free, free_name
from evermind_web.session.container import MODEL, TOKENIZER, Package
from evermind_web.session.core import NO_MODEL, Session, check_name
from evermind_web.session.metadata import is_date, training_of
from evermind_web.session.model_set import Adapter, ModelSet
from evermind_web.session.records import (
    adapter_items,
    base_for,
    base_items,
    imported_base,
    is_tokenizer,
    others_in_memory,
)
from evermind_web.store import Record, SaveItem, Store
from evermind_web.store.backup import export_all, read_backup


class Library:
    """The saved things of one store, and their way into and out of a session."""

    def __init__(self, session: Session, store: Store) -> None:
        self.session = session
        self.store = store

    # ── listing ──────────────────────────────────────────────────────────────
    async def items(self) -> list[dict[str, Any]]:
        """Saved models and adapters, newest first: name, kind, bytes, dates, base (an adapter's model), training.

        `date` is its own: when it was taught, as far as that is known, wherever it was saved or restored since.
        """
        records = await self.store.list()
        sizes = {r.name: r.size for r in records if r.kind == "tokenizer"}
        bases = {r.base_fingerprint: r.name for r in records if r.kind == "base"}
        runs = {r.name: training_of(r.metadata) for r in records}
        items = [
            {
                "name": r.name,
                "kind": r.kind,
                "bytes": r.size + sizes.get(str(r.metadata.get("tokenizer", "")), 0),
                "date": runs[r.name].get("date") or (r.created if is_date(r.created) else r.modified),
                "created": r.created,
                "modified": r.modified,
                "fingerprint": r.base_fingerprint,
                "base": bases.get(r.base_fingerprint, "") if r.kind == "adapter" else "",
                "training": runs[r.name],
            }
            for r in records
            if r.kind in ("base", "adapter")
        ]
        return sorted(items, key=lambda item: str(item["date"]), reverse=True)

    async def storage(self) -> dict[str, Any]:
        """Bytes used and free, whether records survive a reload, and a sentence when they do not.

        `kinds`: {kind of record: [how many, their bytes]}; what else is used is the browser's.
        """
        used, quota = await self.store.estimate()
        kinds = {kind: [0, 0] for kind in ("base", "tokenizer", "adapter", "text")}
        for record in await self.store.list():
            entry = kinds.setdefault(record.kind, [0, 0])
            entry[:] = entry[0] + 1, entry[1] + record.size
        return {
            "kinds": kinds,
            "used": used,
            "quota": quota,
            "survives_reload": self.store.persistent,
            "notice": self.store.notice,
        }

    # ── saving and loading ───────────────────────────────────────────────────
    async def save(self, name: str) -> dict[str, Any]:
        """Save the model in memory as `name`, its tokenizer and its adapters, in one transaction.

        Raises InvalidArgumentError when `name`, or an adapter's name, is taken by something else.
        """
        current, name = self._require_model(), check_name(name)
        known = {r.name: r for r in await self.store.list()}
        check_free(known, name, "base", current.fingerprint)
        for adapter in current.adapters.values():
            check_free(known, adapter.name, "adapter", current.fingerprint)
            if adapter.name == name:
                raise InvalidArgumentError(f"An adapter is called “{name}” already. Choose another name for the model.")
        items = base_items(name, current.checkpoint, current.tokenizer.to_str().encode(), current.metadata)
        for adapter in current.adapters.values():
            items += adapter_items(adapter, current.fingerprint)
        await self.store.save_many(items, replace=True)
        current.name, current.saved = name, True
        for adapter in current.adapters.values():
            adapter.saved = True
        return self.session.describe()

    async def save_adapter(self, adapter: Adapter) -> None:
        """Save one adapter of the model in memory with its texts. Raises as `save`."""
        fingerprint = self._require_model().fingerprint
        await self.check_adapter_name(adapter.name)
        await self.store.save_many(adapter_items(adapter, fingerprint), replace=True)
        adapter.saved = True

    async def check_adapter_name(self, name: str) -> None:
        """Raise InvalidArgumentError if an adapter of the model in memory could not be saved as `name`."""
        fingerprint = self._require_model().fingerprint
        check_free({r.name: r for r in await self.store.list()}, check_name(name), "adapter", fingerprint)

    async def load(self, name: str) -> dict[str, Any]:
        """Load a saved model with all its adapters, or an adapter with its model, and make it the current one."""
        with self.session.exclusive("Loading"):
            record, data = await self.store.load(name)
            if record.kind not in ("base", "adapter"):
                raise InvalidArgumentError(f"“{name}” is a {record.kind}, not a model or adapter.")
            current = self.session.current
            here = current is not None and current.fingerprint == record.base_fingerprint
            if not (here and record.kind == "adapter"):  # whose model may be in memory only
                base = record if record.kind == "base" else await self._base_of(record)
                if current is None or not here:
                    current = await self._load_set(base, data if base is record else None)
                current.name, current.saved = base.name, True
            assert current is not None
            await self._add_adapters(current)
            self.session.adopt(current, name if record.kind == "adapter" else None)
            return self.session.describe()

    async def _load_set(self, base: Record, data: bytes | None) -> ModelSet:
        checkpoint = data if data is not None else (await self.store.load(base.name))[1]
        _, tokenizer = await self.store.load(str(base.metadata.get("tokenizer", "")))
        return await ModelSet.of_files(checkpoint, tokenizer, training_of(base.metadata), self.session.backend)

    async def _add_adapters(self, current: ModelSet) -> None:
        """Bring the saved adapters of a model that are not in memory yet; those that are keep what they learned."""
        new = [
            record
            for record in await self.store.list()
            if record.kind == "adapter" and record.base_fingerprint == current.fingerprint
            if record.name not in current.adapters
        ]
        for adapter in await asyncio.gather(*map(self.read_adapter, new)):  # a thousand would wait one after the other
            current.adapters[adapter.name] = adapter

    async def read_adapter(self, record: Record) -> Adapter:
        """A saved adapter, with its texts: whoever deletes the records, also in another tab, memory has it whole."""
        _, data = await self.store.load(record.name)
        adapter = Adapter(record.name, data, training_of(record.metadata), saved=True)
        adapter.texts = await self.texts_of(adapter)
        return adapter

    async def texts_of(self, adapter: Adapter) -> dict[str, str]:
        """The texts of an adapter that are still there, by id."""
        found: dict[str, str] = {}
        for entry in adapter.metadata.get("persona", {}).get("texts", []):
            if entry.get("removed"):
                continue
            with suppress(RecordNotFoundError):
                in_memory = adapter.texts.get(entry["id"])
                stored = in_memory or (await self.store.load(TEXT_PREFIX + entry["id"]))[1].decode()
                found[entry["id"]] = stored
        return found

    async def _base_of(self, adapter: Record) -> Record:
        for record in await self.store.list():
            if record.kind == "base" and record.base_fingerprint == adapter.base_fingerprint:
                return record
        raise StorageError(
            f"the model that “{adapter.name}” was trained on is not in this browser. Import that model, then try again."
        )

    # ── renaming and deleting ────────────────────────────────────────────────
    async def rename(self, old: str, new: str) -> dict[str, Any]:
        """Give a saved model or adapter another name. Raises InvalidArgumentError if it is taken."""
        new = check_name(new)
        known = {r.name: r for r in await self.store.list()}
        if new != old and new in known:
            raise InvalidArgumentError(f"“{new}” is taken already. Choose another name.")
        current = self.session.current
        record = known.get(old)
        own = current is not None and record is not None and record.base_fingerprint == current.fingerprint
        ours = current is not None and own and old in current.adapters
        if current is not None and new in current.adapters and new != old:
            raise InvalidArgumentError(f"An adapter is called “{new}” already. Choose another name.")
        await self.store.rename(old, new)
        if current is not None and current.name == old:
            current.name = new
        return self.rename_in_memory(old, new) if ours else self.session.describe()

    def rename_in_memory(self, old: str, new: str) -> dict[str, Any]:
        """Give an adapter of the model in memory another name. Raises InvalidArgumentError if it is taken."""
        current = self._require_model()
        adapter = current.adapter(old)
        if new in current.adapters and new != old:
            raise InvalidArgumentError(f"An adapter is called “{new}” already. Choose another name.")
        del current.adapters[old]
        adapter.name = new
        current.put(adapter)
        self.session.mix = {}
        if self.session.active_adapter == old:
            self.session.active_adapter = new
        return self.session.describe()

    async def delete(self, name: str) -> dict[str, Any]:
        """Delete a saved model or adapter. What is in memory stays, now unsaved.

        Adapters of a model stay saved too, since what they learned is the user's own work; `needing` in the result
        names those that cannot be used until their model is back. `session` is its description.
        """
        records = {r.name: r for r in await self.store.list()}
        await self.store.delete(name)
        record = records.pop(name, None)
        tokenizer = str(record.metadata.get("tokenizer", "")) if record is not None else ""
        # The tokenizer goes last: if this is cut short, one unused record stays, never a model without its tokenizer.
        if is_tokenizer(records.get(tokenizer)) and not any(
            r.metadata.get("tokenizer") == tokenizer for r in records.values()
        ):
            await self.store.delete(tokenizer)
        await self.drop_unused_texts()
        current = self.session.current
        if current is not None and record is not None and record.base_fingerprint == current.fingerprint:
            if record.kind == "base" and current.name == name:
                same = (
                    r.name for r in records.values() if (r.kind, r.base_fingerprint) == ("base", current.fingerprint)
                )
                other = next(same, "")
                current.name, current.saved = other or name, bool(other)
            elif record.kind == "adapter" and name in current.adapters:
                current.adapters[name].saved = False
        left = (r for r in await self.items() if record is not None and r["fingerprint"] == record.base_fingerprint)
        needing = [r["name"] for r in left if r["kind"] == "adapter" and not r["base"]]
        return {"needing": needing, "session": self.session.describe()}

    async def drop_unused_texts(self) -> None:
        """Delete texts that no persona keeps any more."""
        records = await self.store.list()
        kept = {
            TEXT_PREFIX + text["id"]
            for r in records
            for text in training_of(r.metadata).get("persona", {}).get("texts", [])
            if not text.get("removed")
        }
        for record in records:
            if record.kind == "text" and record.name not in kept:
                await self.store.delete(record.name)

    # ── backups ──────────────────────────────────────────────────────────────
    async def backup(self) -> bytes:
        """Everything that is saved, as one file."""
        return await export_all(self.store)

    async def restore(self, data: bytes) -> list[str]:
        """Save everything that a backup holds; returns models' and adapters' names, which are the next free ones where
        something else has theirs.

        Raises FormatError, and then nothing has changed.
        """
        return [*(await self._take_in(data)).values()]

    async def wipe(self) -> dict[str, Any]:
        """Delete everything that is saved. What is in memory stays, unsaved."""
        await self.store.delete(*(record.name for record in await self.store.list()))
        if (current := self.session.current) is not None:
            current.saved = False
            for adapter in current.adapters.values():
                adapter.saved = False
        return self.session.describe()

    async def snapshot(self, name: str) -> bytes:
        """A model or adapter with all that would go with it, for `put_back`."""
        record, _ = await self.store.load(name)
        known = {r.name for r in await self.store.list()}
        training = training_of(record.metadata)
        parts = [TEXT_PREFIX + text["id"] for text in training.get("persona", {}).get("texts", [])]
        parts.append(str(record.metadata.get("tokenizer", "")))
        return await export_all(self.store, [*(p for p in parts if p in known), name])

    async def put_back(self, data: bytes) -> dict[str, Any]:
        """Undo a deletion: what `snapshot` gave comes back, into the model in memory too if it is of that.

        `names` in the result: of what came back; the next free one if another has its name by now.
        """
        return {"names": [*(await self._take_in(data)).values()], "session": self.session.describe()}

    async def _take_in(self, data: bytes) -> dict[str, str]:
        current = self.session.current
        live = {} if current is None else {a.name: a.data for a in current.adapters.values()}
        items, names = arrivals(read_backup(data), await self.store.list(), live)
        for record in await self.store.save_many(items):
            if current is None or record.base_fingerprint != current.fingerprint:
                continue
            if record.kind == "base" and not current.saved:
                current.name, current.saved = record.name, True
            elif record.kind == "adapter" and record.name in current.adapters:
                current.adapters[record.name].saved = True
            elif record.kind == "adapter":
                await self._add_adapters(current)
        return names

    # ── files ────────────────────────────────────────────────────────────────
    async def export_file(self, name: str) -> tuple[str, bytes]:
        """(file name, bytes) that `import_file` reads, here or in another browser."""
        record, data = await self.store.load(name)
        files = {} if record.kind == "base" else adapter_file.members(data)
        if record.kind == "base":
            _, tokenizer = await self.store.load(str(record.metadata.get("tokenizer", "")))
            files = {MODEL: data, TOKENIZER: tokenizer}
        package = Package(record.kind, name, files, record.base_fingerprint, {"training": training_of(record.metadata)})
        kind = "model" if record.kind == "base" else "adapter"
        safe = "".join(c if c.isalnum() or c in " -_" else "_" for c in name).strip() or kind
        return f"{safe}.{kind}.zip", container.pack(package)

    async def import_file(self, data: bytes, filename: str, tokenizer: bytes | None = None) -> dict[str, Any]:
        """Check a file and save what it holds, under its own name or the next free one.

        `tokenizer`: the tokenizer.json that goes with a bare `EVL0` checkpoint. Returns name, kind and notice.
        Raises FormatError or ConfigMismatchError, before anything is saved.
        """
        package = container.unpack(data, filename)
        known = {r.name: r for r in await self.store.list()}
        wanted = check_name(package.name[:80])
        name, notice = free_name(known.keys() | others_in_memory(package, wanted, self.session.current), wanted), ""
        training = training_of(package.metadata)
        if package.kind == "base":
            items = imported_base(name, package, tokenizer, training)
        elif package.kind == "adapter":
            fingerprint, notice = base_for(package, known, self.session.current)
            data = adapter_file.of_members(package.files)
            items = [SaveItem(name, data, "adapter", fingerprint, {"training": training})]
        else:
            raise FormatError(f"{filename} is a tokenizer alone. Choose it together with its checkpoint (.evl0).")
        # A tokenizer that is there already has the same hash, so it is the same.
        await self.store.save_many([item for item in items if item.kind != "tokenizer" or item.name not in known])
        self._note_imported(name, package, items[-1].base_fingerprint)
        return {"name": name, "kind": package.kind, "notice": notice, "session": self.session.describe()}

    def _note_imported(self, name: str, package: Package, fingerprint: str) -> None:
        """If what was imported belongs to the model in memory, that model has it now, saved."""
        current = self.session.current
        if current is None or current.fingerprint != fingerprint:
            return
        if package.kind == "base":
            current.name, current.saved = name, True
        elif name in current.adapters:
            current.adapters[name].saved = True
        else:
            training = training_of(package.metadata)
            current.adapters[name] = Adapter(name, adapter_file.of_members(package.files), training, saved=True)

    def _require_model(self) -> ModelSet:
        if self.session.current is None:
            raise EvermindError(NO_MODEL)
        return self.session.current
