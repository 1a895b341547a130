"""The backend on a WebGPU device, in a browser or native: it keeps the queue of records and nothing else.

Operations are looked up as plans by (operation, shapes, scalars) and appended as integers; a flush hands the whole
list to the device in one call. This file knows neither kernels nor JavaScript.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evermind_web.backend.base import Array, Buf, Reading
from evermind_web.backend.device import (
    CLEAR,
    COPY,
    DESTROY,
    DROP,
    REPLAY,
    RUN,
    UPLOAD,
    Device,
    buffers_of,
    load_kernel,
)
from evermind_web.backend.kernels import Shapes, plan_for, tiles
from evermind_web.errors import BackendError, DeviceLostError, InvalidArgumentError
from evermind_web.layout import ALIGN

_STAGED = 64 * 1024  # larger uploads go straight to the device, after a flush
_LARGEST = 2**31 - 4  # bytes are counted by int32 in records
_MAX_PROGRAMS = 64  # recorded programs that are kept; the least recently used goes first
_DTYPES = {"float32": np.dtype("<f4"), "int32": np.dtype("<i4")}


@dataclass(frozen=True, slots=True)
class _Program:
    number: int
    buffers: set[int]


class WebGPUBackend:
    """See `base.Backend`. `sync` (or EVERMIND_SYNC=1) submits every operation on its own, so that errors name it."""

    row_multiple = 64
    steps_per_read = 256

    def __init__(self, device: Device, name: str, sync: bool | None = None) -> None:
        self.name = name
        self.adapter_name = device.adapter_name
        self.device = device
        limits = device.limits["maxStorageBufferBindingSize"], device.limits["maxBufferSize"]
        self.max_buffer_bytes = min(*limits, _LARGEST)
        self._sync = os.environ.get("EVERMIND_SYNC", "") not in ("", "0") if sync is None else sync
        self._records = array("i")
        self._staging: NDArray[np.uint8] = np.zeros(2 * _STAGED, np.uint8)
        self._staging_bytes = self._staging.data
        self._staged = 0
        self._next_id = 1
        self._roots: dict[int, int] = {}  # id -> the buffer that owns its memory
        self._plans: dict[tuple[str, Shapes, tuple[int, ...]], int] = {}
        self._kernels: set[str] = set()
        self._programs: dict[Hashable, _Program] = {}  # the least recently used first
        self._programs_of: dict[int, set[Hashable]] = {}  # buffer id -> keys of the programs that use it
        self._programs_made = 0
        self._recording = False
        self._freed_in_recording: list[Buf] = []
        self._disposed = False

    # ---- buffers ------------------------------------------------------------------------------------------------

    def alloc(self, shape: Sequence[int], dtype: str = "float32") -> Buf:
        self._check_alive()
        if dtype not in _DTYPES:
            raise InvalidArgumentError(f"a buffer is float32 or int32, got {dtype!r}")
        buf = Buf(self._new_id(), tuple(int(extent) for extent in shape), dtype)
        nbytes = max(4, 4 * buf.size)
        if nbytes > self.max_buffer_bytes:
            raise BackendError(
                f"buffer {buf.shape} {dtype} needs {nbytes} bytes, limit {self.max_buffer_bytes} "
                f"of {self.adapter_name}; use a smaller model or split it by rows"
            )
        self.device.create_buffer(buf.id, nbytes)
        self._roots[buf.id] = buf.id
        return buf

    def view(self, buf: Buf, offset: int, shape: Sequence[int]) -> Buf:
        self._check_alive()
        window = Buf(self._new_id(), tuple(int(extent) for extent in shape), buf.dtype)
        if offset % ALIGN or offset < 0 or offset + window.size > buf.size:
            raise InvalidArgumentError(
                f"a view must start at a multiple of {ALIGN} and end inside its buffer of {buf.size} elements, "
                f"got offset {offset}, shape {window.shape}"
            )
        self.device.create_view(window.id, buf.id, 4 * int(offset), max(4, 4 * window.size))
        self._roots[window.id] = self._root(buf)
        return window

    def free(self, buf: Buf) -> None:
        if self._disposed or self.device.lost:
            return
        self._root(buf)
        if self._recording:  # what is being recorded may use it, once
            self._freed_in_recording.append(buf)
            return
        del self._roots[buf.id]
        for key in self._programs_of.pop(buf.id, ()):
            self._forget(key)
        self._records.extend((DESTROY, buf.id))

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _root(self, buf: Buf) -> int:
        root = self._roots.get(buf.id)
        if root is None:
            raise BackendError(f"buffer {buf.id} of shape {buf.shape} was freed or belongs to another backend")
        return root

    # ---- queue --------------------------------------------------------------------------------------------------

    def write(self, buf: Buf, array: Array) -> None:
        self._check_alive()
        self._root(buf)
        self._check_not_recording("write")
        data = _as_dtype(array, buf)
        if not data.size:
            return
        if data.nbytes > _STAGED:
            # Straight to the buffer; but a queue write overtakes what is not submitted yet.
            self.flush()
            self.device.write(buf.id, data)
            return
        if self._staged + data.nbytes > self._staging.size:
            self.flush()
        start, self._staged = self._staged, self._staged + data.nbytes
        self._staging_bytes[start : self._staged] = data.data.cast("B")
        self._records.extend((UPLOAD, buf.id, start, data.nbytes))

    def zero(self, buf: Buf) -> None:
        self._check_alive()
        self._root(buf)
        self._records.extend((CLEAR, buf.id))

    def copy(self, src: Buf, src_offset: int, dst: Buf, dst_offset: int, count: int) -> None:
        self._check_alive()
        if min(src_offset, dst_offset, count) < 0 or src_offset + count > src.size or dst_offset + count > dst.size:
            raise InvalidArgumentError(
                f"cannot copy {count} elements from {src_offset} of {src.size} to {dst_offset} of {dst.size}"
            )
        if self._root(src) == self._root(dst):  # WebGPU copies only between different buffers
            between = self.alloc((count,), src.dtype)
            self._copy(src, src_offset, between, 0, count)
            self._copy(between, 0, dst, dst_offset, count)
            self.free(between)
        else:
            self._copy(src, src_offset, dst, dst_offset, count)

    def _copy(self, src: Buf, src_offset: int, dst: Buf, dst_offset: int, count: int) -> None:
        if count:
            self._records.extend((COPY, src.id, 4 * int(src_offset), dst.id, 4 * int(dst_offset), 4 * int(count)))

    def run(self, op: str, ins: Sequence[Buf], outs: Sequence[Buf], scalars: Sequence[int]) -> None:
        self._check_alive()
        operands = (*ins, *outs)
        key = (op, tuple([buf.shape for buf in operands]), tuple(scalars))
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._define(*key)
        if self._sync:
            self.flush()
        self._records.extend((RUN, plan, len(operands), *[buf.id for buf in operands]))
        if self._sync:
            self._flush_naming(op)

    def _define(self, op: str, shapes: Shapes, scalars: tuple[int, ...]) -> int:
        tiles.choose(self.adapter_name)
        plan = plan_for(op, shapes, scalars)
        for nbytes in plan.scratch:
            if nbytes > self.max_buffer_bytes:
                raise BackendError(
                    f"{op}: scratch memory for shapes {shapes} needs {nbytes} bytes, limit {self.max_buffer_bytes} "
                    f"of {self.adapter_name}; use shorter sequences or smaller batches"
                )
        for dispatch in plan.dispatches:
            if dispatch.kernel not in self._kernels:
                self.device.define_kernel(load_kernel(dispatch.kernel))
                self._kernels.add(dispatch.kernel)
        number = len(self._plans) + 1
        self.device.define_plan(number, plan.to_json())
        return number

    def replay(self, key: Hashable, build: Callable[[], None]) -> None:
        self._check_alive()
        if self._recording or self._sync:
            build()
            return
        program = self._programs.pop(key, None) or self._record(key, build)
        self._programs[key] = program
        self._records.extend((REPLAY, program.number))
        while self._freed_in_recording:
            self.free(self._freed_in_recording.pop())

    def _record(self, key: Hashable, build: Callable[[], None]) -> _Program:
        before, self._records, self._recording = self._records, array("i"), True
        try:
            build()
            records = self._records
        finally:
            self._records, self._recording = before, False
        program = _Program(self._programs_made + 1, buffers_of(records))
        self._programs_made += 1
        self.device.define_program(program.number, records)
        for buffer in program.buffers:
            self._programs_of.setdefault(buffer, set()).add(key)
        if len(self._programs) >= _MAX_PROGRAMS:
            oldest = next(iter(self._programs))
            self._records.extend((DROP, self._programs[oldest].number))
            self._forget(oldest)
        return program

    def _forget(self, key: Hashable) -> None:
        for buffer in self._programs.pop(key).buffers:
            if keys := self._programs_of.get(buffer):
                keys.discard(key)

    def _check_not_recording(self, what: str) -> None:
        if self._recording:
            raise InvalidArgumentError(f"{what}: a replayed program may only zero, copy and run")

    def flush(self) -> None:
        self._check_alive()
        self._check_not_recording("flush")
        if not self._records:
            return
        records, self._records = self._records, array("i")
        staging, self._staged = self._staging[: self._staged], 0
        self.device.submit(records, staging)

    def _flush_naming(self, op: str) -> None:
        try:
            self.flush()
        except DeviceLostError:
            raise
        except BackendError as error:
            raise BackendError(f"{op}: {error}") from error

    async def read(self, *bufs: Buf) -> list[Array]:
        return await self.start_read(*bufs)

    def start_read(self, *bufs: Buf) -> Reading[list[Array]]:
        self._check_alive()
        for buf in bufs:
            self._root(buf)
        self.flush()
        raw = self.device.read([buf.id for buf in bufs], [max(4, 4 * buf.size) for buf in bufs])
        return Reading(lambda: self._arrays(raw, bufs), raw.cancel)

    async def _arrays(self, raw: Reading[list[NDArray[np.uint8]]], bufs: Sequence[Buf]) -> list[Array]:
        data = await raw
        return [
            raw[: 4 * buf.size].view(_DTYPES[buf.dtype]).reshape(buf.shape) for raw, buf in zip(data, bufs, strict=True)
        ]

    # ---- life ---------------------------------------------------------------------------------------------------

    @property
    def lost(self) -> bool:
        """Whether the device is gone; every call that needs it then raises DeviceLostError."""
        return bool(self.device.lost)

    def on_lost(self, handler: Callable[[str], None]) -> None:
        """Call `handler(reason)` once if the device is lost by itself."""
        self.device.on_lost(handler)

    def stats(self) -> dict[str, int]:
        """Counters of the device, for tests and benchmarks; see `device.Device.stats`."""
        return self.device.stats()

    def dispose(self) -> None:
        if not self._disposed:
            self._disposed = True
            self._records = array("i")
            self._roots.clear()
            self.device.dispose()

    def _check_alive(self) -> None:
        if self._disposed:
            raise DeviceLostError("this backend was disposed; request a new one")
        if self.device.lost:
            raise DeviceLostError(f"the GPU device was lost ({self.device.lost}); request a new backend")


def _as_dtype(array: Array, buf: Buf) -> Array:
    """`array` as contiguous little-endian values of `buf`'s dtype; integers are cast only where they fit."""
    values = np.asarray(array)
    if values.dtype is _DTYPES[buf.dtype] and values.flags.c_contiguous and values.size == buf.size:
        return values
    if values.size != buf.size:
        raise InvalidArgumentError(f"cannot write shape {values.shape} to a buffer of shape {buf.shape}")
    if buf.dtype == "int32":
        if values.dtype.kind not in "iub":
            raise InvalidArgumentError(f"an int32 buffer takes integers, got {values.dtype}")
        if values.dtype.itemsize >= 4 and values.dtype != _DTYPES["int32"] and values.size:
            low, high = int(values.min()), int(values.max())
            if low < -(2**31) or high >= 2**31:
                raise InvalidArgumentError(f"values {low}..{high} ({values.dtype}) do not fit int32")
    elif values.dtype.kind not in "fiub":
        raise InvalidArgumentError(f"a float32 buffer takes numbers, got {values.dtype}")
    return np.ascontiguousarray(values, dtype=_DTYPES[buf.dtype])
