"""A backend that counts what it is asked for, around any other one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from evermind_web.backend.base import Array, Backend, Buf, Reading


class CountingBackend:
    """`counts`: operations by name, and "read", "write", "copy", "zero", "flush"; `live`: buffers not given back."""

    def __init__(self, inner: Backend, steps_per_read: int | None = None, row_multiple: int | None = None) -> None:
        self.inner, self.name, self.adapter_name = inner, inner.name, inner.adapter_name
        self.max_buffer_bytes = inner.max_buffer_bytes
        self.row_multiple = row_multiple or inner.row_multiple
        self.steps_per_read = steps_per_read or inner.steps_per_read
        self.counts: Counter[str] = Counter()
        self.live: set[int] = set()

    def alloc(self, shape: Sequence[int], dtype: str = "float32") -> Buf:
        buf = self.inner.alloc(shape, dtype)
        self.live.add(buf.id)
        return buf

    def view(self, buf: Buf, offset: int, shape: Sequence[int]) -> Buf:
        window = self.inner.view(buf, offset, shape)
        self.live.add(window.id)
        return window

    def free(self, buf: Buf) -> None:
        self.live.remove(buf.id)  # a second time is an error
        self.inner.free(buf)

    def write(self, buf: Buf, array: Array) -> None:
        self.counts["write"] += 1
        self.inner.write(buf, array)

    def zero(self, buf: Buf) -> None:
        self.counts["zero"] += 1
        self.inner.zero(buf)

    def copy(self, src: Buf, src_offset: int, dst: Buf, dst_offset: int, count: int) -> None:
        self.counts["copy"] += 1
        self.inner.copy(src, src_offset, dst, dst_offset, count)

    def run(self, op: str, ins: Sequence[Buf], outs: Sequence[Buf], scalars: Sequence[int]) -> None:
        self.counts[op] += 1
        self.inner.run(op, ins, outs, scalars)

    def replay(self, key: Hashable, build: Callable[[], None]) -> None:
        build()  # so that its operations are counted

    def flush(self) -> None:
        self.counts["flush"] += 1
        self.inner.flush()

    async def read(self, *bufs: Buf) -> list[Array]:
        self.counts["read"] += 1
        return await self.inner.read(*bufs)

    def start_read(self, *bufs: Buf) -> Reading[list[Array]]:
        self.counts["read"] += 1
        return self.inner.start_read(*bufs)

    def dispose(self) -> None:
        self.inner.dispose()
