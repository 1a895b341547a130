"""A device on which some operations run on NumPy, because its own kernels compute them wrong.

Their operands have to be read, which waits, and only `read` may wait. So what is queued stays on the host until
something is read, and is then carried out in order. Slow, but right.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from evermind_web.backend.base import Array, Backend, Buf, Reading
from evermind_web.backend.reference import REFERENCE


class PatchedBackend:
    """See `base.Backend`. broken: what is wrong, by operation. Everything else about the device is `inner`'s."""

    steps_per_read = 1

    def __init__(self, inner: Backend, broken: Mapping[str, str]) -> None:
        self.inner, self.broken = inner, dict(broken)
        self.name, self.row_multiple, self.max_buffer_bytes = inner.name, inner.row_multiple, inner.max_buffer_bytes
        self.adapter_name = f"{inner.adapter_name} ({', '.join(broken)} on NumPy)"
        self._waiting: deque[Callable[[], Awaitable[None] | None]] = deque()
        self._turn = asyncio.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def alloc(self, shape: Sequence[int], dtype: str = "float32") -> Buf:
        return self.inner.alloc(shape, dtype)

    def view(self, buf: Buf, offset: int, shape: Sequence[int]) -> Buf:
        return self.inner.view(buf, offset, shape)

    def free(self, buf: Buf) -> None:
        self._waiting.append(partial(self.inner.free, buf))

    def write(self, buf: Buf, array: Array) -> None:
        self._waiting.append(partial(self.inner.write, buf, np.array(array)))

    def zero(self, buf: Buf) -> None:
        self._waiting.append(partial(self.inner.zero, buf))

    def copy(self, src: Buf, src_offset: int, dst: Buf, dst_offset: int, count: int) -> None:
        self._waiting.append(partial(self.inner.copy, src, src_offset, dst, dst_offset, count))

    def run(self, op: str, ins: Sequence[Buf], outs: Sequence[Buf], scalars: Sequence[int]) -> None:
        run = self._on_numpy if op in self.broken else self.inner.run
        self._waiting.append(partial(run, op, tuple(ins), tuple(outs), tuple(scalars)))

    async def _on_numpy(self, op: str, ins: Sequence[Buf], outs: Sequence[Buf], scalars: Sequence[int]) -> None:
        bufs = {buf.id: buf for buf in (*ins, *outs)}
        arrays = dict(zip(bufs, await self.inner.read(*bufs.values()), strict=True))
        with np.errstate(all="ignore"):
            REFERENCE[op](*(arrays[buf.id] for buf in (*ins, *outs)), *scalars)
        for buf in outs:
            self.inner.write(buf, arrays[buf.id])

    def replay(self, key: Hashable, build: Callable[[], None]) -> None:
        build()

    def flush(self) -> None:
        """Nothing can be handed over that does not wait."""

    async def read(self, *bufs: Buf) -> list[Array]:
        return await self.start_read(*bufs)

    def start_read(self, *bufs: Buf) -> Reading[list[Array]]:
        started: list[Reading[list[Array]]] = []
        cancelled = False

        def start() -> None:
            if not cancelled:
                started.append(self.inner.start_read(*bufs))

        async def finish() -> list[Array]:
            async with self._turn:
                while not started:
                    waiting = self._waiting.popleft()()
                    if waiting is not None:
                        await waiting
            return await started[0]

        def cancel() -> None:
            nonlocal cancelled
            cancelled = True
            for reading in started:
                reading.cancel()

        self._waiting.append(start)
        return Reading(finish, cancel)

    def dispose(self) -> None:
        self._waiting.clear()
        self.inner.dispose()
