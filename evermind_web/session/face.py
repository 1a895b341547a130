"""The session as the page's worker sees it: one entry, JSON and bytes in, JSON and bytes out.

JSON, because a string crosses between JavaScript and Python without proxies that someone would have to
free, and without dicts that turn into Maps. Bytes (texts, files) cross beside it.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from evermind_web._version import __version__
from evermind_web.errors import EvermindError, InvalidArgumentError
from evermind_web.session.core import Session
from evermind_web.session.following import follow
from evermind_web.session.library import Library
from evermind_web.session.mood import Mood
from evermind_web.session.personas import Personas
from evermind_web.session.recipes import sampling
from evermind_web.session.texts import check_learnable, read_text
from evermind_web.store import open_store

Emit = Callable[[dict[str, Any]], None]


class Arguments(dict[str, Any]):
    """Those of a call, by name. Raises InvalidArgumentError for one that is not there."""

    def __missing__(self, name: str) -> Any:
        raise InvalidArgumentError(f"{name} is missing: give it with the call.")


# Calls that can be stopped; the session runs one of them at a time.
JOBS = frozenset({"train", "personalize", "generate", "compare", "token_shares", "expert_shares"})

LEARNING = frozenset({"train", "personalize"})
# What options are called on the page, for messages.
LABELS = {
    "max_new_tokens": "Tokens",
    "temperature": "Temperature",
    "top_k": "Top k",
    "top_p": "Top p",
    "min_p": "Min p",
    "repetition_penalty": "Repetition",
    "frequency_penalty": "Frequency",
    "presence_penalty": "Presence",
}
_OPTION = re.compile(rf"^({'|'.join(LABELS)})\b")


class Face:
    """Dispatches calls by name. Make it with `await Face.open(options_json)`."""

    def __init__(self, session: Session, library: Library) -> None:
        self.session = session
        self.library = library
        self.personas = Personas(library)
        self._job_call = -1
        self._stopped: set[int] = set()

    @classmethod
    async def open(cls, options: str = "{}") -> Face:
        """`options`: JSON with `backend` (a name or null) and `store` (the database's name)."""
        parsed = json.loads(options)
        session = await Session.open(parsed.get("backend"), strict=False)
        return cls(session, Library(session, await open_store(parsed.get("store") or "evermind")))

    def info(self) -> str:
        """Description of the session and the package, as JSON."""
        return json.dumps(self.session.describe() | {"version": __version__})

    async def handle(self, call_id: int, method: str, arguments: str, buffers: Any, on_event: Any) -> tuple[str, bytes]:
        """Run `method` and return (JSON result, bytes); reports go to `on_event(JSON)` while it runs.

        An `EvermindError` becomes `{"error": {"name", "message"}}`; anything else is a defect and is raised.
        `buffers`: byte arrays that `arguments` has the place of, in the order that the method documents.
        """
        data = [b.to_bytes() if hasattr(b, "to_bytes") else bytes(b) for b in buffers]

        def emit(event: dict[str, Any]) -> None:
            on_event(json.dumps(event))

        handler = getattr(self, f"_do_{method}", None)
        if handler is None:
            raise AttributeError(f"the worker has no method {method}")
        try:
            if call_id in self._stopped:
                self._stopped.discard(call_id)
                return json.dumps({"value": {"stopped": True, "steps": 0, "session": self.session.describe()}}), b""
            if method in JOBS and not self.session.busy:
                self._job_call = call_id
            result = await handler(Arguments(json.loads(arguments)), data, emit)
            if method in LEARNING:
                gc.collect()  # a run's parts know one another; their arrays should not wait for a collection by chance
            value, payload = result if isinstance(result, tuple) else (result, b"")
            return json.dumps({"value": value}), payload
        except EvermindError as error:
            message = _OPTION.sub(lambda found: LABELS[found[1]], str(error))
            return json.dumps({"error": {"name": type(error).__name__, "message": message}}), b""

    def stop(self, call_id: int) -> None:
        """Stop the call `call_id` if it runs. Without effect on any other."""
        if call_id == self._job_call:
            self.session.stop()
        elif call_id > self._job_call:  # its turn has not come yet
            self._stopped.add(call_id)

    def dispose(self) -> None:
        """Free the device and the store's connection."""
        self.session.dispose()
        self.library.store.close()

    # ── learning and writing ─────────────────────────────────────────────────
    async def _do_train(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        text = buffers[0] if buffers else arguments["text"]
        return await self.session.train(text, arguments.get("options"), emit)

    async def _do_personalize(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        text = buffers[0] if buffers else arguments["text"]
        return await self.personas.learn(text, str(arguments.get("name") or ""), arguments.get("options"), emit)

    async def _do_pause(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        self.session.pause(bool(arguments["on"]))

    async def _do_generate(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        async with aclosing(self.session.stream(arguments["prompt"], arguments.get("options"))) as pieces:
            async for piece in pieces:
                emit({"text": piece})
        return None

    async def _do_compare(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        async with aclosing(self.session.compare(arguments["prompt"], arguments.get("options"))) as pieces:
            async for side, piece in pieces:
                emit({"side": side, "text": piece})
        return None

    async def _do_set_adapter(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        return self.session.set_adapter(arguments.get("name"))

    async def _do_describe(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        return self.session.describe()

    async def _do_check_text(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        check_learnable(read_text(buffers[0] if buffers else arguments["text"], arguments.get("name") or "the text"))

    async def _do_read_text(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        return read_text(buffers[0], arguments.get("name") or "the text")

    # ── personas, mood, what goes on inside ──────────────────────────────────
    async def _do_set_mix(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        return self.session.set_mix(dict(arguments["weights"]))

    async def _do_persona_texts(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        return await self.personas.texts(arguments["name"])

    async def _do_remove_text(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        return await self.personas.remove_text(arguments["name"], arguments["id"])

    async def _do_paint(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        return await self.personas.paint(arguments["name"], arguments["colour"])

    async def _do_duplicate(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        return await self.personas.duplicate(arguments["name"])

    async def _do_rename_persona(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        return await self.personas.rename(arguments["old"], arguments["new"])

    async def _do_remove_persona(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> tuple[Any, bytes]:
        return await self.personas.remove(arguments["name"])

    async def _do_unreplace(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        return await self.personas.unreplace()

    async def _do_token_shares(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        return await self.session.token_shares(arguments["text"], arguments.get("adapter"))

    async def _do_expert_shares(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        return await self.session.expert_shares(arguments["text"], arguments.get("adapter"))

    async def _do_mood(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        """`on`, then `traits` or an `experience`; `options` are those that its effect is shown on."""
        if not arguments.get("on"):
            self.session.mood = None
            return None
        mood = self.session.mood = self.session.mood or await Mood.learned()
        if arguments.get("traits") is not None:
            mood.set_traits(dict(arguments["traits"]))
        if arguments.get("experience"):
            await mood.feel(arguments["experience"])
        return mood.describe(sampling(arguments.get("options") or {}))

    # ── saved things ─────────────────────────────────────────────────────────
    async def _do_save(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        return await self.library.save(arguments["name"])

    async def _do_list(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        return await self.library.items()

    async def _do_follow(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        return await follow(self.library)

    async def _do_storage(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        return await self.library.storage()

    async def _do_load(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        return await self.library.load(arguments["name"])

    async def _do_rename(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        return await self.library.rename(arguments["old"], arguments["new"])

    async def _do_delete(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        return await self.library.delete(arguments["name"])

    async def _do_snapshot(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> tuple[Any, bytes]:
        return None, await self.library.snapshot(arguments["name"])

    async def _do_put_back(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        return await self.library.put_back(buffers[0])

    async def _do_backup(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> tuple[Any, bytes]:
        return None, await self.library.backup()

    async def _do_restore(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        return await self.library.restore(buffers[0])

    async def _do_wipe(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        return await self.library.wipe()

    async def _do_export(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> tuple[Any, bytes]:
        filename, data = await self.library.export_file(arguments["name"])
        return {"filename": filename}, data

    async def _do_import(self, arguments: Arguments, buffers: list[bytes], emit: Emit) -> Any:
        tokenizer = buffers[1] if len(buffers) > 1 else None
        return await self.library.import_file(buffers[0], arguments["filename"], tokenizer)
