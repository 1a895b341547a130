"""The backend that runs everything at once, in NumPy: the reference, and what is used where there is no GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from evermind_web.backend import simd
from evermind_web.backend.base import Array, Buf, Reading
from evermind_web.backend.reference import REFERENCE, linalg
from evermind_web.errors import BackendError


class NumpyBackend:
    """`dtype` is float32 for use; float64 makes every "float32" buffer float64, for finite differences."""

    name = "numpy"
    row_multiple = 1
    max_buffer_bytes = sys.maxsize  # 2 GiB in 32-bit WebAssembly
    steps_per_read = 1

    def __init__(self, dtype: DTypeLike = np.float32) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        linalg.use(simd.faster())
        self.adapter_name = f"NumPy {np.__version__}" + (" + SIMD" if simd.kernels() else "")
        self._arrays: dict[int, Array] = {}
        self._next = 0

    def _store(self, array: Array, dtype: str) -> Buf:
        self._next += 1
        self._arrays[self._next] = array
        return Buf(self._next, array.shape, dtype)

    def alloc(self, shape: Sequence[int], dtype: str = "float32") -> Buf:
        """See `Backend.alloc`."""
        actual = self.dtype if dtype == "float32" else np.dtype(np.int32)
        try:
            return self._store(np.zeros(tuple(shape), actual), dtype)
        except MemoryError:
            raise BackendError(
                f"out of memory: a buffer of shape {tuple(shape)} does not fit; use a smaller model or batch"
            ) from None

    def view(self, buf: Buf, offset: int, shape: Sequence[int]) -> Buf:
        """See `Backend.view`."""
        count = int(np.prod(shape, dtype=np.int64))
        return self._store(self.array(buf).reshape(-1)[offset : offset + count].reshape(tuple(shape)), buf.dtype)

    def array(self, buf: Buf) -> Array:
        """The live array behind a buffer: only NumPy has one."""
        try:
            return self._arrays[buf.id]
        except KeyError:
            raise BackendError(
                f"the buffer of shape {buf.shape} was freed: the model or adapter was disposed; make a new one"
            ) from None

    def free(self, buf: Buf) -> None:
        """See `Backend.free`."""
        self._arrays.pop(buf.id, None)

    def write(self, buf: Buf, array: Array) -> None:
        """See `Backend.write`."""
        self.array(buf)[...] = np.asarray(array).reshape(buf.shape)

    def zero(self, buf: Buf) -> None:
        """See `Backend.zero`."""
        self.array(buf)[...] = 0

    def copy(self, src: Buf, src_offset: int, dst: Buf, dst_offset: int, count: int) -> None:
        """See `Backend.copy`."""
        self.array(dst).reshape(-1)[dst_offset : dst_offset + count] = self.array(src).reshape(-1)[
            src_offset : src_offset + count
        ]

    def run(self, op: str, ins: Sequence[Buf], outs: Sequence[Buf], scalars: Sequence[int]) -> None:
        """See `Backend.run`. NaN and infinity pass through silently, as on a GPU: they are found by isfinite."""
        with np.errstate(all="ignore"):
            REFERENCE[op](*(self.array(b) for b in ins), *(self.array(b) for b in outs), *scalars)

    def flush(self) -> None:
        """Nothing is ever pending."""

    def replay(self, key: Hashable, build: Callable[[], None]) -> None:
        """See `Backend.replay`."""
        build()

    async def read(self, *bufs: Buf) -> list[Array]:
        """See `Backend.read`."""
        return [self.array(b).copy() for b in bufs]

    def start_read(self, *bufs: Buf) -> Reading[list[Array]]:
        """See `Backend.start_read`."""
        arrays = [self.array(b).copy() for b in bufs]

        async def finish() -> list[Array]:
            return arrays

        return Reading(finish)

    def dispose(self) -> None:
        """See `Backend.dispose`."""
        self._arrays.clear()
