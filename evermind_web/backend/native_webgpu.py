"""A WebGPU device in CPython, through wgpu-py: the same kernels, plans and records as in a browser.

Optional: `pip install wgpu`. For training without a browser, and for tests: its compiler (naga) is Firefox's.
Everything here is synchronous; a `read` waits where it is started.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evermind_web.backend.base import Array, Reading
from evermind_web.backend.device import (
    CLEAR,
    COPY,
    DESTROY,
    DISPATCHES_PER_SUBMIT,
    DROP,
    REPLAY,
    RUN,
    UPLOAD,
    WANTED_LIMITS,
    Kernel,
    Records,
    buffers_of,
)
from evermind_web.errors import BackendError, DeviceLostError, WebGPUUnavailableError

_STORAGE = 0x80 | 0x08 | 0x04  # STORAGE | COPY_DST | COPY_SRC
_UNIFORM = 0x40 | 0x08
_COMPUTE = 0x4
_ALIGN = 256


@dataclass
class _Window:
    """Part of a GPU buffer."""

    buffer: Any
    offset: int
    nbytes: int
    owns: bool
    groups: set[tuple[int, tuple[int, ...]]] = field(default_factory=set)  # bind groups that refer to it
    programs: set[int] = field(default_factory=set)  # stored programs that use it


@dataclass
class _Step:
    """One dispatch of a plan, with all that does not depend on the buffers."""

    kernel: str
    operands: list[int]
    grid: list[int]
    pipeline: Any
    layout: Any
    uniform: tuple[int, int] | None  # offset and size in the plan's uniform buffer


@dataclass
class _Plan:
    steps: list[_Step]
    uniforms: Any
    scratch: int
    groups: dict[tuple[int, ...], list[Any]] = field(default_factory=dict)


class NativeDevice:
    """See `device.Device`. Raises WebGPUUnavailableError if wgpu is not installed or finds no adapter."""

    def __init__(self) -> None:
        try:
            import wgpu
        except ImportError as error:
            raise WebGPUUnavailableError("the wgpu backend needs the package wgpu: pip install wgpu") from error
        try:
            adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
            wanted = {_dashed(name): adapter.limits[_dashed(name)] for name in WANTED_LIMITS}
            self._device = adapter.request_device_sync(label="evermind_web", required_limits=wanted)
        except Exception as error:  # wgpu raises RuntimeError and its own classes
            raise WebGPUUnavailableError(f"WebGPU not available: no native adapter ({error})") from error
        self._errors: tuple[type[Exception], ...] = (wgpu.GPUError, ValueError, RuntimeError, TypeError)
        self._queue = self._device.queue
        self.limits: Mapping[str, int] = {name: int(self._device.limits[_dashed(name)]) for name in WANTED_LIMITS}
        info = adapter.info
        self.adapter_name = " ".join(str(info[key]) for key in ("vendor", "device", "description") if info[key])
        self.lost = ""
        self._kernels: dict[str, Kernel] = {}
        self._modules: dict[str, Any] = {}
        self._layouts: dict[tuple[str, ...], Any] = {}
        self._pipelines: dict[tuple[str, tuple[tuple[str, float], ...]], Any] = {}
        self._plans: dict[int, _Plan] = {}
        self._programs: dict[int, list[int]] = {}
        self._windows: dict[int, _Window] = {}
        self._scratch: list[Any] = []
        self._upload: Any = None
        self._counts = dict.fromkeys(("crossings", "submits", "dispatches", "bind_groups", "uploads"), 0)

    # ---- kernels and plans --------------------------------------------------------------------------------------

    def define_kernel(self, kernel: Kernel) -> None:
        self._begin()
        self._kernels[kernel.name] = kernel
        with self._named(f"kernel {kernel.name}"):
            self._modules[kernel.name] = self._device.create_shader_module(label=kernel.name, code=kernel.code)

    def define_plan(self, plan: int, text: str) -> None:
        self._begin()
        spec = json.loads(text)
        self._grow_scratch(spec["scratch"])
        steps, words = [], bytearray()
        for item in spec["dispatches"]:
            uniform = None
            if item["uniform"]:
                data = np.array(item["uniform"], "<u4").tobytes()
                data += bytes(-len(data) % 16)
                uniform = (len(words), len(data))
                words += data + bytes(-len(data) % _ALIGN)
            kernel = item["kernel"]
            layout, pipeline = self._pipeline(kernel, item["constants"])
            wanted, given = len(self._kernels[kernel].bindings), len(item["operands"]) + bool(uniform)
            if wanted != given:
                raise BackendError(f"kernel {kernel} has {wanted} bindings, its plan gives {given}")
            steps.append(_Step(kernel, item["operands"], item["grid"], pipeline, layout, uniform))
        uniforms = None
        if words:
            uniforms = self._device.create_buffer(label="uniforms", size=len(words), usage=_UNIFORM)
            self._queue.write_buffer(uniforms, 0, words)
        self._plans[plan] = _Plan(steps, uniforms, len(spec["scratch"]))

    def define_program(self, program: int, records: Records[int]) -> None:
        self._begin()
        self._programs[program] = records.tolist()
        for buffer in buffers_of(records):
            self._window(buffer).programs.add(program)

    def _pipeline(self, name: str, constants: dict[str, float]) -> tuple[Any, Any]:
        bindings = self._kernels[name].bindings
        if bindings not in self._layouts:
            kinds = {"read": "read-only-storage", "read_write": "storage", "uniform": "uniform"}
            parts = enumerate({"type": kinds[kind]} for kind in bindings)
            entries = [{"binding": i, "visibility": _COMPUTE, "buffer": part} for i, part in parts]
            self._layouts[bindings] = self._device.create_bind_group_layout(entries=entries)
        layout = self._layouts[bindings]
        key = (name, tuple(sorted(constants.items())))
        if key not in self._pipelines:
            with self._named(f"kernel {name}"):
                self._pipelines[key] = self._device.create_compute_pipeline(
                    label=name,
                    layout=self._device.create_pipeline_layout(bind_group_layouts=[layout]),
                    compute={"module": self._modules[name], "entry_point": "main", "constants": constants},
                )
        return layout, self._pipelines[key]

    def _grow_scratch(self, sizes: Sequence[int]) -> None:
        for index, nbytes in enumerate(sizes):
            have = self._scratch[index].size if index < len(self._scratch) else 0
            if nbytes <= have:
                continue
            buffer = self._new_buffer(max(nbytes, 4), f"scratch {index}")
            if have:
                self._scratch[index].destroy()
                self._scratch[index] = buffer
                for plan in self._plans.values():
                    if plan.scratch > index:
                        plan.groups.clear()
            else:
                self._scratch.append(buffer)

    # ---- buffers ------------------------------------------------------------------------------------------------

    def create_buffer(self, buffer: int, nbytes: int) -> None:
        self._begin()
        self._windows[buffer] = _Window(self._new_buffer(nbytes, f"buffer {buffer}"), 0, nbytes, True)

    def create_view(self, view: int, parent: int, offset: int, nbytes: int) -> None:
        self._begin()
        base = self._window(parent)
        self._windows[view] = _Window(base.buffer, base.offset + offset, nbytes, False)

    def write(self, buffer: int, data: Array) -> None:
        self._begin()
        window = self._window(buffer)
        self._queue.write_buffer(window.buffer, window.offset, data)

    def _new_buffer(self, nbytes: int, label: str) -> Any:
        with self._named(f"{label} of {nbytes} bytes"):
            return self._device.create_buffer(label=label, size=nbytes, usage=_STORAGE)

    def _window(self, buffer: int) -> _Window:
        window = self._windows.get(buffer)
        if window is None:
            raise BackendError(f"buffer {buffer} was freed or never made")
        return window

    def _destroy(self, buffer: int) -> None:
        window = self._windows.pop(buffer)
        for plan, key in window.groups:
            self._plans[plan].groups.pop(key, None)
            for other in key:
                if other in self._windows:
                    self._windows[other].groups.discard((plan, key))
        for program in window.programs:
            self._programs.pop(program, None)
        if window.owns:
            window.buffer.destroy()

    # ---- work ---------------------------------------------------------------------------------------------------

    def submit(self, records: Records[int], staging: NDArray[np.uint8]) -> None:
        self._begin()
        if staging.size:
            self._stage(staging)
        work, doomed = _Encoder(self), list[int]()
        self._encode(records.tolist(), work, doomed)
        work.submit()
        for buffer in doomed:
            self._destroy(buffer)

    def _encode(self, words: list[int], work: _Encoder, doomed: list[int]) -> None:
        at = 0
        while at < len(words):
            code = words[at]
            if code == RUN:
                plan, count = words[at + 1], words[at + 2]
                work.run(plan, tuple(words[at + 3 : at + 3 + count]))
                at += 3 + count
            elif code == UPLOAD:
                dst = self._window(words[at + 1])
                work.copy(self._upload, words[at + 2], dst.buffer, dst.offset, words[at + 3])
                at += 4
            elif code == CLEAR:
                work.clear(self._window(words[at + 1]))
                at += 2
            elif code == COPY:
                src, dst = self._window(words[at + 1]), self._window(words[at + 3])
                work.copy(src.buffer, src.offset + words[at + 2], dst.buffer, dst.offset + words[at + 4], words[at + 5])
                at += 6
            elif code == DESTROY:
                doomed.append(words[at + 1])
                at += 2
            elif code == REPLAY:
                program = self._programs.get(words[at + 1])
                if program is None:
                    raise BackendError(f"program {words[at + 1]} was dropped or never made")
                self._encode(program, work, doomed)
                at += 2
            elif code == DROP:
                self._programs.pop(words[at + 1], None)
                at += 2
            else:
                raise BackendError(f"record {code} at word {at} is unknown")

    def _stage(self, staging: NDArray[np.uint8]) -> None:
        if self._upload is None or self._upload.size < staging.size:
            if self._upload is not None:
                self._upload.destroy()
            self._upload = self._new_buffer(1 << (int(staging.size) - 1).bit_length(), "upload")
        self._counts["uploads"] += 1
        self._queue.write_buffer(self._upload, 0, staging)

    def _groups(self, number: int, ids: tuple[int, ...]) -> list[Any]:
        plan = self._plans[number]
        groups = plan.groups.get(ids)
        if groups is None:
            windows = [self._window(buffer) for buffer in ids]
            groups = plan.groups[ids] = [self._bind(plan, step, windows) for step in plan.steps]
            for window in windows:
                window.groups.add((number, ids))
        return groups

    def _bind(self, plan: _Plan, step: _Step, windows: list[_Window]) -> Any:
        given = [(window.buffer, window.offset, window.nbytes) for window in windows]
        scratch = [(buffer, 0, buffer.size) for buffer in self._scratch]
        bound = [given[operand] if operand >= 0 else scratch[-1 - operand] for operand in step.operands]
        bound += [(plan.uniforms, *step.uniform)] if step.uniform else []
        self._counts["bind_groups"] += 1
        names = ("buffer", "offset", "size")
        entries = [{"binding": i, "resource": dict(zip(names, part, strict=True))} for i, part in enumerate(bound)]
        with self._named(f"kernel {step.kernel}"):
            return self._device.create_bind_group(label=step.kernel, layout=step.layout, entries=entries)

    def read(self, buffers: Sequence[int], sizes: Sequence[int]) -> Reading[list[NDArray[np.uint8]]]:
        self._begin()
        out = []
        for buffer, nbytes in zip(buffers, sizes, strict=True):
            window = self._window(buffer)
            with self._named("read"), _without_event_loop():
                data = self._queue.read_buffer(window.buffer, window.offset, nbytes)
            out.append(np.frombuffer(data, np.uint8).copy())

        async def finish() -> list[NDArray[np.uint8]]:
            return out

        return Reading(finish)

    # ---- life ---------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, int]:
        owned = [window.nbytes for window in self._windows.values() if window.owns]
        return {
            **self._counts,
            "pipelines": len(self._pipelines),
            "buffers": len(owned),
            "buffer_bytes": sum(owned),
            "scratch_bytes": sum(int(buffer.size) for buffer in self._scratch),
            "open_reads": 0,
        }

    def on_lost(self, handler: Callable[[str], None]) -> None:
        """wgpu-py reports no loss by itself; the handler is never called."""

    def dispose(self) -> None:
        if self.lost:
            return
        self.lost = "disposed"
        for buffer in (*(window.buffer for window in self._windows.values() if window.owns), *self._scratch):
            buffer.destroy()
        self._windows.clear()
        self._plans.clear()
        self._scratch.clear()
        self._device.destroy()

    def _begin(self) -> None:
        if self.lost:
            raise DeviceLostError(f"the GPU device was lost ({self.lost}); request a new backend")
        self._counts["crossings"] += 1

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            if isinstance(error, BackendError):
                raise
            raise BackendError(f"{what}: {error}") from error


class _Encoder:
    """The commands of one submit; consecutive dispatches share a compute pass."""

    def __init__(self, device: NativeDevice) -> None:
        self._device = device
        self._encoder: Any = None
        self._pass: Any = None
        self._dispatches = 0
        self._last = "copy"

    def _outside(self) -> Any:
        """The encoder, outside a compute pass."""
        if self._pass is not None:
            self._pass.end()
            self._pass = None
        if self._encoder is None:
            self._encoder = self._device._device.create_command_encoder()
        return self._encoder

    def run(self, number: int, ids: tuple[int, ...]) -> None:
        plan = self._device._plans[number]
        for step, group in zip(plan.steps, self._device._groups(number, ids), strict=True):
            self._last = step.kernel
            if self._pass is None:
                self._pass = self._outside().begin_compute_pass()
            with self._device._named(f"kernel {step.kernel}"):
                self._pass.set_pipeline(step.pipeline)
                self._pass.set_bind_group(0, group)
                self._pass.dispatch_workgroups(*step.grid)
            self._dispatches += 1
            if self._dispatches >= DISPATCHES_PER_SUBMIT:
                self.submit()

    def copy(self, src: Any, src_byte: int, dst: Any, dst_byte: int, count: int) -> None:
        with self._device._named("copy"):
            self._outside().copy_buffer_to_buffer(src, src_byte, dst, dst_byte, count)

    def clear(self, window: _Window) -> None:
        with self._device._named("clear"):
            self._outside().clear_buffer(window.buffer, window.offset, window.nbytes)

    def submit(self) -> None:
        if self._encoder is None:
            return
        with self._device._named(f"submit ending with {self._last}"):
            self._device._queue.submit([self._outside().finish()])
        self._encoder = None
        self._device._counts["submits"] += 1
        self._device._counts["dispatches"] += self._dispatches
        self._dispatches = 0


def _dashed(name: str) -> str:
    """ "maxBufferSize" as wgpu-py spells it: "max-buffer-size"."""
    return "".join("-" + letter.lower() if letter.isupper() else letter for letter in name)


@contextmanager
def _without_event_loop() -> Iterator[None]:
    """Around what waits at once: wgpu-py's thread would tell a running event loop too, which may be closed by then."""
    hooks = sys.get_asyncgen_hooks()  # what wgpu-py knows a running loop by
    sys.set_asyncgen_hooks(None, None)
    try:
        yield
    finally:
        sys.set_asyncgen_hooks(*hooks)
