"""What a backend is: buffers behind integer ids, and a queue of operations on them.

A backend knows nothing of models, gradients or files. It runs the operations listed in `evermind_web.ops`, in
the order in which they are given; `read` is the only call that waits. Shapes and dtypes were checked by `ops`
before `run` is called, so a backend does not check them again.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from numpy.typing import NDArray

Array = NDArray[Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Buf:
    """A handle on device memory: `id` in its backend, `shape`, and `dtype` ("float32" or "int32").

    A backend made for float64 checks stores "float32" buffers as float64.
    """

    id: int
    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def size(self) -> int:
        """Number of elements, a Python int."""
        return math.prod(self.shape)


class Reading(Generic[T]):
    """Values on their way back: await it once, or `cancel` it. What is read was fixed when it was started."""

    def __init__(self, finish: Callable[[], Awaitable[T]], cancel: Callable[[], None] = lambda: None) -> None:
        self._finish, self._cancel = finish, cancel

    def __await__(self) -> Generator[Any, Any, T]:
        return self._finish().__await__()

    def cancel(self) -> None:
        """Nobody wants the values any more; after they were awaited this does nothing."""
        self._cancel()


@runtime_checkable
class Backend(Protocol):
    """See the module text. Methods raise `BackendError` (limits, failed kernels, out of memory)."""

    name: str  # "numpy", "webgpu" or "wgpu"
    adapter_name: str  # what the page shows: "NumPy 2.2.5", "nvidia ..."
    row_multiple: int  # batches are padded to this many rows, so that few shapes occur
    max_buffer_bytes: int  # the largest buffer that can be made and given to an operation
    steps_per_read: int  # how many steps are queued before their results are read: 1 where reading costs nothing

    def alloc(self, shape: Sequence[int], dtype: str = "float32") -> Buf:
        """A new buffer filled with zeros."""
        ...

    def view(self, buf: Buf, offset: int, shape: Sequence[int]) -> Buf:
        """A window of `buf` from element `offset` on, a multiple of `layout.ALIGN`. The memory stays with `buf`."""
        ...

    def free(self, buf: Buf) -> None:
        """Give the buffer (or view) back once all work queued so far has used it."""
        ...

    def write(self, buf: Buf, array: Array) -> None:
        """Queue an upload: `array` is copied now, converted to the buffer's dtype, and lands in queue order."""
        ...

    def zero(self, buf: Buf) -> None:
        """Queue filling with zeros."""
        ...

    def copy(self, src: Buf, src_offset: int, dst: Buf, dst_offset: int, count: int) -> None:
        """Queue `dst[dst_offset:][:count] = src[src_offset:][:count]`, in elements of the flattened buffers."""
        ...

    def run(self, op: str, ins: Sequence[Buf], outs: Sequence[Buf], scalars: Sequence[int]) -> None:
        """Queue one operation of `ops.OPS`. `scalars` are shape-like: they may be compiled in and cached."""
        ...

    def replay(self, key: Hashable, build: Callable[[], None]) -> None:
        """Queue what `build()` queues.

        The same key promises the same operations on the same buffers, so a device may record them the first time and
        replay them from then on. `build` may zero, copy, run, replay, alloc and free; it must not write, read or flush.
        Freeing one of the buffers forgets what was recorded.
        """
        ...

    def flush(self) -> None:
        """Hand the queue to the device. Does not wait."""
        ...

    async def read(self, *bufs: Buf) -> list[Array]:
        """Flush, wait, and return fresh arrays."""
        ...

    def start_read(self, *bufs: Buf) -> Reading[list[Array]]:
        """`read` in two parts: flush and copy now, wait where the result is awaited. Work may be queued in between."""
        ...

    def dispose(self) -> None:
        """Free everything; a second call does nothing."""
        ...
