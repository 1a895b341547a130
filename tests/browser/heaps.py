"""What the page and its worker hold: on JavaScript's heap, from V8's own snapshots, and in Python's memory.

V8 counts the machine code of functions to the heap, which it compiles anew for minutes as it finds out which are used
most; and the browser counts its layout. Neither is held by the page's own data, so neither is counted here.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from playwright.async_api import CDPSession, Page

# Of Pyodide's module, which a test has put at `self.python_module`. Its Python has no allocator of its own, so malloc
# knows every byte.
PYTHON = """() => {
    const module = self.python_module;
    const stack = module.stackSave();
    const info = module.stackAlloc(40); // struct mallinfo: ten words, of which the eighth is the bytes in use
    module._mallinfo(info);
    const used = module.HEAPU32[info / 4 + 7];
    module.stackRestore(stack);
    const top = module.HEAPU32[module._emscripten_get_sbrk_ptr() / 4];
    return { python: used, top, wasm: module.HEAPU8.length };
}"""
DATA = {"string", "concatenated string", "sliced string", "object", "closure", "array", "number", "symbol", "regexp"}


def held(snapshot: str) -> int:
    """Bytes of objects, closures, arrays and strings in a snapshot."""
    parsed = json.loads(snapshot)
    meta, nodes = parsed["snapshot"]["meta"], parsed["nodes"]
    fields, types = meta["node_fields"], meta["node_types"][0]
    step, kind, size = len(fields), fields.index("type"), fields.index("self_size")
    return sum(nodes[at + size] for at in range(0, len(nodes), step) if types[nodes[at + kind]] in DATA)


class Heaps:
    """The heaps of a page and of its one worker. Make it with `await Heaps.of(page)` once the worker runs."""

    def __init__(self, page: Page, session: CDPSession, worker: str) -> None:
        self._page, self._session, self._worker, self._calls = page, session, worker, 0

    @classmethod
    async def of(cls, page: Page) -> Heaps:
        """Attach to the page and to its worker."""
        session = await page.context.new_cdp_session(page)
        attached: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def on_attached(event: dict[str, Any]) -> None:
            if event["targetInfo"]["type"] == "worker" and not attached.done():
                attached.set_result(event["sessionId"])

        session.on("Target.attachedToTarget", on_attached)
        await session.send("Target.setAutoAttach", {"autoAttach": True, "waitForDebuggerOnStart": False})
        return cls(page, session, await asyncio.wait_for(attached, 10))

    async def page(self) -> int:
        """Bytes that the page's own data takes, after a collection of garbage."""
        chunks: list[str] = []

        def on_chunk(event: dict[str, Any]) -> None:
            chunks.append(event["chunk"])

        self._session.on("HeapProfiler.addHeapSnapshotChunk", on_chunk)
        for method in ("HeapProfiler.enable", "HeapProfiler.collectGarbage", "HeapProfiler.takeHeapSnapshot"):
            await self._session.send(method)
        self._session.remove_listener("HeapProfiler.addHeapSnapshotChunk", on_chunk)
        return held("".join(chunks))

    async def worker(self) -> int:
        """The same of the worker; its Python lies in WebAssembly's memory, which is not in it."""
        chunks: list[str] = []
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_message(event: dict[str, Any]) -> None:
            message = json.loads(event["message"])
            if message.get("method") == "HeapProfiler.addHeapSnapshotChunk":
                chunks.append(message["params"]["chunk"])
            elif message.get("id") == self._calls and not done.done():
                done.set_result(None)

        self._session.on("Target.receivedMessageFromTarget", on_message)
        for method in ("HeapProfiler.enable", "HeapProfiler.collectGarbage", "HeapProfiler.takeHeapSnapshot"):
            self._calls += 1
            message = json.dumps({"id": self._calls, "method": method})
            await self._session.send("Target.sendMessageToTarget", {"message": message, "sessionId": self._worker})
        await asyncio.wait_for(done, 60)
        self._session.remove_listener("Target.receivedMessageFromTarget", on_message)
        return held("".join(chunks))

    async def python(self) -> dict[str, int]:
        """Of the worker, in bytes: what Python and NumPy use, how far they ever reached, what WebAssembly has taken.

        `python`, `top`, `wasm`. The last two never shrink, and WebAssembly takes a fifth more when `top` passes it.
        """
        found: dict[str, int] = await self._page.workers[0].evaluate(PYTHON)
        return found

    async def close(self) -> None:
        """Let go of both."""
        await self._session.detach()
