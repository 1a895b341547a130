"""The WebGPU device of a browser: addresses and integers, handed to `web/bridge.mjs`.

Only plain numbers and strings cross; the only JavaScript object ever made per call is the promise of a read.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evermind_web import environment
from evermind_web import errors as error_classes
from evermind_web.backend.base import Array, Reading
from evermind_web.backend.device import WANTED_LIMITS, Kernel, Records
from evermind_web.errors import BackendError, EvermindError


class BridgeDevice:
    """See `device.Device`. Made by `open`."""

    def __init__(self, bridge: Any) -> None:
        self._bridge = bridge
        self._submit = bridge.submit  # looked up once
        self._proxies = environment.Proxies()
        self.adapter_name = str(bridge.adapterName)
        self.limits: Mapping[str, int] = {name: int(value) for name, value in json.loads(bridge.limitsText).items()}
        self.lost = ""
        self._lost_handlers: list[Callable[[str], None]] = []
        self._ticket = 0
        self._crossings = 0
        self._disposed = False
        bridge.onLost(self._proxies.hold(self._on_lost))

    @classmethod
    async def open(cls, power_preference: str = "high-performance") -> BridgeDevice:
        """A device of this browser. Raises WebGPUUnavailableError where there is none."""
        module = await environment.load_js_module("bridge.mjs")
        options = json.dumps({"limits": list(WANTED_LIMITS), "powerPreference": power_preference})
        with _translated():
            return cls(await module.requestBridge(environment.wasm_module(), options))

    def define_kernel(self, kernel: Kernel) -> None:
        """See `Device.define_kernel`."""
        with self._crossing():
            self._bridge.defineKernel(kernel.name, kernel.code, json.dumps(kernel.bindings))

    def define_plan(self, plan: int, text: str) -> None:
        """See `Device.define_plan`."""
        with self._crossing():
            self._bridge.definePlan(plan, text)

    def define_program(self, program: int, records: Records[int]) -> None:
        """See `Device.define_program`."""
        address, words = records.buffer_info()
        with self._crossing():
            self._bridge.defineProgram(program, address, words)

    def create_buffer(self, buffer: int, nbytes: int) -> None:
        """See `Device.create_buffer`."""
        with self._crossing():
            self._bridge.createBuffer(buffer, nbytes)

    def create_view(self, view: int, parent: int, offset: int, nbytes: int) -> None:
        """See `Device.create_view`."""
        with self._crossing():
            self._bridge.createView(view, parent, offset, nbytes)

    def write(self, buffer: int, data: Array) -> None:
        """See `Device.write`."""
        with self._crossing():
            self._bridge.write(buffer, _address(data), data.nbytes)

    def submit(self, records: Records[int], staging: NDArray[np.uint8]) -> None:
        """See `Device.submit`."""
        address, words = records.buffer_info()
        self._crossings += 1
        try:  # as `_crossing`, without the cost of a context: this is called for every step
            self._submit(address, words, _address(staging), staging.nbytes)
        except Exception as error:
            ours = _as_ours(error)
            if ours is error:
                raise
            raise ours from error

    def read(self, buffers: Sequence[int], sizes: Sequence[int]) -> Reading[list[NDArray[np.uint8]]]:
        """See `Device.read`."""
        self._ticket += 1
        ticket, ids = self._ticket, array("i", buffers)
        with self._crossing():
            arrived = self._bridge.read(ticket, ids.buffer_info()[0], len(ids))
        return Reading(lambda: self._collect(ticket, arrived, sizes), lambda: self._bridge.release(ticket))

    async def _collect(self, ticket: int, arrived: Any, sizes: Sequence[int]) -> list[NDArray[np.uint8]]:
        try:
            with _translated():
                await arrived
            # Memory is taken only now: a read that is given up must leave nothing that JavaScript would write to.
            everything = np.empty(sum(sizes), np.uint8)
            with self._crossing():
                self._bridge.collect(ticket, _address(everything))
        except BaseException:
            self._bridge.release(ticket)
            raise
        return _split(everything, sizes)

    def stats(self) -> dict[str, int]:
        """See `Device.stats`."""
        return {"crossings": self._crossings, **json.loads(self._bridge.stats())}

    def on_lost(self, handler: Callable[[str], None]) -> None:
        """See `Device.on_lost`."""
        self._lost_handlers.append(handler)

    def _on_lost(self, reason: str) -> None:
        self.lost = str(reason)
        for handler in self._lost_handlers:
            handler(self.lost)

    def dispose(self) -> None:
        """See `Device.dispose`."""
        if self._disposed:
            return
        self._disposed = True
        self._lost_handlers.clear()
        self._bridge.dispose()
        self._proxies.dispose()
        self.lost = self.lost or "disposed"

    @contextmanager
    def _crossing(self) -> Iterator[None]:
        self._crossings += 1
        with _translated():
            yield


@contextmanager
def _translated() -> Iterator[None]:
    """An error that JavaScript throws under the name of one of our classes is raised as that class."""
    try:
        yield
    except Exception as error:
        ours = _as_ours(error)
        if ours is error:
            raise
        raise ours from error


def _as_ours(error: Exception) -> Exception:
    """`error` as the class that it names, if JavaScript threw it; else `error` itself."""
    name = environment.js_error_name(error)
    if isinstance(error, EvermindError) or not name:
        return error
    known = getattr(error_classes, name, None)
    if isinstance(known, type) and issubclass(known, EvermindError):
        return known(environment.js_error_message(error))
    return BackendError(f"{name}: {environment.js_error_message(error)}")


def _address(data: Array) -> int:
    return int(data.__array_interface__["data"][0])


def _split(everything: NDArray[np.uint8], sizes: Sequence[int]) -> list[NDArray[np.uint8]]:
    if len(sizes) == 1:
        return [everything]
    ends = np.cumsum(np.asarray(sizes, np.int64)).tolist()
    return [everything[end - size : end].copy() for end, size in zip(ends, sizes, strict=True)]
