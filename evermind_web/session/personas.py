"""Personas: adapters with a colour and the texts that they learned from, which stay in this browser.

What is known of a persona travels in its adapter's metadata, `persona`: {"colour", "texts": [{"id", "title", "words",
"date", "removed"}]}. The texts themselves are records of their own, named by their content, so that copies share them;
an exported adapter does not carry them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evermind_web.errors import EvermindError
from evermind_web.session.arrivals import TEXT_PREFIX, content_name, free_name
from evermind_web.session.core import NO_MODEL, check_name
from evermind_web.session.following import is_record_of
from evermind_web.session.library import Library
from evermind_web.session.model_set import Adapter, ModelSet
from evermind_web.session.progress import Report
from evermind_web.session.texts import read_text
from evermind_web.store import Record


class Personas:
    """What the page does with personas, over a library."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._replaced: tuple[str, Adapter] | None = None  # fingerprint of the model, and what learning anew replaced

    async def learn(
        self, data: str | bytes, name: str, options: dict[str, Any] | None = None, report: Report | None = None
    ) -> dict[str, Any]:
        """As `Session.personalize`, and the text is kept. With `go_on` the texts of before are learned again with it.

        options: also `title` of the text, and `colour`. The persona is saved at once if its model is. Without `go_on`
        it takes the place of one of its name: `replaced` in the result says so, and `unreplace` undoes it.
        """
        options, session = options or {}, self.library.session
        text = read_text(data, options.get("name") or "the text")
        before = self._current().adapters.get(name.strip())
        persona: dict[str, Any] = {"colour": options.get("colour") or "#2f5d8a", "texts": []}
        kept: dict[str, str] = {}
        whole = text
        with session.exclusive("Personalising"):
            # A name that is refused when it is saved would cost all that was learned.
            await self.library.check_adapter_name(name)
            began = await self._stored(name.strip())
            if options.get("go_on") and before is not None:
                persona = {**persona, **before.metadata.get("persona", {})}
                kept = await self.library.texts_of(before)
                whole = "\n\n".join([*kept.values(), text])
                before = None
            elif before is not None:
                before.texts = await self.library.texts_of(before)  # its records go with it
            stopped = session.stopping
        if stopped:
            return {"stopped": True, "steps": 0, "session": session.describe()}
        result = await session.personalize(whole, name, options, report)
        if not result["steps"]:
            return result
        adapter = self._current().adapter(result["name"])
        identity = content_name("text", text.encode()).removeprefix(TEXT_PREFIX)
        known = [t for t in persona["texts"] if t["id"] != identity]
        title = options.get("title") or "pasted text"
        persona["texts"] = [
            *known,
            {"id": identity, "title": title, "words": len(text.split()), "date": result["date"]},
        ]
        adapter.metadata["persona"], adapter.texts = persona, {**kept, identity: text}
        aside = await self._step_aside(adapter, began)
        kept = await self._keep(adapter)
        if aside:
            before = None
        if before is not None:
            self._replaced = self._current().fingerprint, before
            await self.library.drop_unused_texts()
        notice = " ".join(n for n in (result["notice"], aside, kept["notice"]) if n)
        return result | kept | {"name": adapter.name, "notice": notice, "replaced": before is not None}

    async def _stored(self, name: str) -> Record | None:
        return next((r for r in await self.library.store.list() if (r.name, r.kind) == (name, "adapter")), None)

    async def _step_aside(self, adapter: Adapter, began: Record | None) -> str:
        """Take the next free name where another tab has taught the persona since; what both learned stays.

        began: its record before the learning. Returns a sentence, "" where nothing had changed.
        """
        current, name, record = self._current(), adapter.name, await self._stored(adapter.name)
        old = began and (began.crc32, began.metadata)
        if not current.saved or record is None or old == (record.crc32, record.metadata):
            return ""
        taken = {r.name for r in await self.library.store.list()} | set(current.adapters)
        self.library.rename_in_memory(name, free_name(taken, name))
        current.put(await self.library.read_adapter(record))
        return f"“{name}” was taught in another tab meanwhile and is as that left it; this one is “{adapter.name}”."

    async def unreplace(self) -> dict[str, Any]:
        """Put the persona that learning anew replaced last back in its place. Raises EvermindError where it cannot."""
        current, session = self._current(), self.library.session
        with session.exclusive("Bringing back a persona"):
            if self._replaced is None or self._replaced[0] != current.fingerprint:
                raise EvermindError("What was replaced belongs to another model. Load that one, then try again.")
            adapter = self._replaced[1]
            current.put(adapter)
            session.active_adapter, session.mix, self._replaced = adapter.name, {}, None
            kept = await self._keep(adapter)
            await self.library.drop_unused_texts()
        return kept

    async def _keep(self, adapter: Adapter) -> dict[str, Any]:
        notice = ""
        if self._current().saved:
            try:
                await self.library.save_adapter(adapter)
            except EvermindError as error:  # the persona stays in memory
                notice = f"“{adapter.name}” is not saved: {error}"
        return {"notice": notice, "session": self.library.session.describe()}

    async def texts(self, name: str) -> list[dict[str, Any]]:
        """The texts of a persona: id, title, words, and text ("" where it was removed)."""
        adapter = self._current().adapter(name)
        found = await self.library.texts_of(adapter)
        return [{**t, "text": found.get(t["id"], "")} for t in adapter.metadata.get("persona", {}).get("texts", [])]

    async def remove_text(self, name: str, identity: str) -> dict[str, Any]:
        """Forget a text that a persona learned from; what it learned stays."""

        def without(adapter: Adapter, persona: dict[str, Any]) -> dict[str, Any]:
            adapter.texts.pop(identity, None)
            return {"texts": [{**t, "removed": True} if t["id"] == identity else t for t in persona["texts"]]}

        await self._change(name, without)
        await self.library.drop_unused_texts()
        return self.library.session.describe()

    async def paint(self, name: str, colour: str) -> dict[str, Any]:
        """Give a persona another colour."""
        await self._change(name, lambda adapter, persona: {"colour": str(colour)[:20]})
        return self.library.session.describe()

    async def _change(self, name: str, change: Callable[[Adapter, dict[str, Any]], dict[str, Any]]) -> None:
        """Change what is told of a persona, in memory and, if it is saved, in the store.

        Another tab may have taught it since, which memory takes up after the job that runs (see `follow`), or have
        deleted it: what the store holds is changed as it is there.
        """
        adapter = self._current().adapter(name)
        record = await self._stored(name) if adapter.saved else None
        here = record is None or is_record_of(adapter, record)
        stored = adapter if record is None or here else await self.library.read_adapter(record)
        for one in (adapter,) if here else (adapter, stored):
            persona = {"texts": [], **one.metadata.get("persona", {})}
            one.metadata["persona"] = {**persona, **change(one, persona)}
        if record is not None:
            await self.library.save_adapter(stored)

    async def duplicate(self, name: str) -> dict[str, Any]:
        """A copy under the next free name, which learns on by itself."""
        current = self._current()
        source = current.adapter(name)
        taken = {r.name for r in await self.library.store.list()} | set(current.adapters)
        copy = Adapter(free_name(taken, check_name(name)), source.data, dict(source.metadata), texts=dict(source.texts))
        current.put(copy)
        return {"name": copy.name} | await self._keep(copy)

    async def rename(self, old: str, new: str) -> dict[str, Any]:
        """Of a persona that is saved, or only in memory."""
        adapter = self._current().adapter(old)
        if adapter.saved:
            return await self.library.rename(old, new)
        return self.library.rename_in_memory(old, check_name(new))

    async def remove(self, name: str) -> tuple[dict[str, Any], bytes]:
        """Delete a persona from memory and browser; the bytes bring it back with `Library.put_back`."""
        current = self._current()
        adapter = current.adapter(name)
        if not adapter.saved:
            raise EvermindError(f"Save the model in step 4 first, so that “{name}” can be brought back.")
        undo = await self.library.snapshot(name)
        await self.library.delete(name)
        current.remove(name)
        session = self.library.session
        session.mix = {}
        if session.active_adapter == name:
            session.active_adapter = None
        return session.describe(), undo

    def _current(self) -> ModelSet:
        current = self.library.session.current
        if current is None:
            raise EvermindError(NO_MODEL)
        return current
