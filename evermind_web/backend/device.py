"""What a WebGPU device must do for the backend, and how a kernel's text becomes a kernel.

Two devices follow this protocol: `bridge_device` (a browser's `navigator.gpu`, through `web/bridge.mjs`) and
`native_webgpu` (wgpu-py in CPython). They know buffers, kernels and plans behind integer ids; they know no
operation and no shape. All work reaches them as one flat list of int32 records per flush:

    RUN, plan, n, id * n                       run a plan with these buffers
    UPLOAD, dst, staging_byte, count           copy `count` bytes of the staging area to the start of dst
    CLEAR, id                                  fill with zeros
    COPY, src, src_byte, dst, dst_byte, count  copy between two buffers
    DESTROY, id                                drop a buffer or view, once everything before has used it
    REPLAY, program                            the records of a stored program
    DROP, program                              forget a program; one whose buffer is dropped is forgotten by itself
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from evermind_web.backend.base import Array, Reading
from evermind_web.errors import BackendError, InvalidArgumentError

RUN: Final = 1
UPLOAD: Final = 2
CLEAR: Final = 3
COPY: Final = 4
DESTROY: Final = 5
REPLAY: Final = 6
DROP: Final = 7

# Limits that both devices ask of the adapter, in full. Kernels keep to WebGPU's guaranteed values; buffers need more.
WANTED_LIMITS: Final = ("maxStorageBufferBindingSize", "maxBufferSize")

# A submit with more dispatches than this is cut, so that no single piece of GPU work runs into a driver's time limit.
DISPATCHES_PER_SUBMIT: Final = 512

Records = array  # of typecode "i"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One WGSL file: its name, its text with includes resolved, and the kind of each binding, in binding order."""

    name: str
    code: str
    bindings: tuple[str, ...]  # "read", "read_write" or "uniform"


class Device(Protocol):
    """See the module text. Ids are chosen by the caller and never used twice."""

    adapter_name: str
    limits: Mapping[str, int]  # at least WANTED_LIMITS
    lost: str  # why the device was lost; "" while it lives

    def define_kernel(self, kernel: Kernel) -> None:
        """Make a kernel known. It may be compiled later: an error in it is raised by the next `read` at the latest."""
        ...

    def define_plan(self, plan: int, text: str) -> None:
        """Make a plan known: the JSON of `kernels.Plan.to_json`. Its kernels are known."""
        ...

    def define_program(self, program: int, records: Records[int]) -> None:
        """Store RUN, CLEAR and COPY records for REPLAY. Their buffers exist; the device may decode them later, once."""
        ...

    def create_buffer(self, buffer: int, nbytes: int) -> None:
        """A buffer of zeros; `nbytes` is a multiple of 4."""
        ...

    def create_view(self, view: int, parent: int, offset: int, nbytes: int) -> None:
        """A window of a buffer (or of a view); `offset` in bytes, a multiple of 256."""
        ...

    def write(self, buffer: int, data: Array) -> None:
        """Upload a C-contiguous array now, after all that was submitted before."""
        ...

    def submit(self, records: Records[int], staging: NDArray[np.uint8]) -> None:
        """Run the records in order. `records` and `staging` may be reused when this returns."""
        ...

    def read(self, buffers: Sequence[int], sizes: Sequence[int]) -> Reading[list[NDArray[np.uint8]]]:
        """Fresh bytes of each buffer after all that was submitted before; raises what went wrong until then."""
        ...

    def stats(self) -> dict[str, int]:
        """Counters, for tests and benchmarks.

        Since the start: crossings, submits, dispatches, uploads, bind_groups. Now: pipelines, buffers, buffer_bytes,
        scratch_bytes, open_reads.
        """
        ...

    def on_lost(self, handler: Callable[[str], None]) -> None:
        """Call `handler(reason)` once if the device is lost by itself (not by `dispose`)."""
        ...

    def dispose(self) -> None:
        """Destroy the device and all buffers; a second call does nothing."""
        ...


def buffers_of(records: Sequence[int]) -> set[int]:
    """The ids of the buffers that the records of a program use. Raises InvalidArgumentError for what none may hold."""
    used: set[int] = set()
    at = 0
    while at < len(records):
        code = records[at]
        if code == RUN:
            used.update(records[at + 3 : at + 3 + records[at + 2]])
            at += 3 + records[at + 2]
        elif code == CLEAR:
            used.add(records[at + 1])
            at += 2
        elif code == COPY:
            used.update((records[at + 1], records[at + 3]))
            at += 6
        else:
            raise InvalidArgumentError(f"a replayed program may only zero, copy and run, got record {code}")
    return used


_BINDING = re.compile(r"@group\(0\)\s*@binding\((\d+)\)\s*var<\s*(storage|uniform)\s*(?:,\s*(read|read_write)\s*)?>")
_INCLUDE = re.compile(r"^//#include (\w+)$", re.MULTILINE)


def parse_bindings(name: str, code: str) -> tuple[str, ...]:
    """The kinds of the bindings that `code` declares. Raises BackendError if their numbers have a gap."""
    found = {
        int(number): access or ("uniform" if space == "uniform" else "read")
        for number, space, access in _BINDING.findall(code)
    }
    if sorted(found) != list(range(len(found))):
        raise BackendError(f"kernel {name}: bindings must be numbered 0, 1, ... without a gap, got {sorted(found)}")
    return tuple(found[number] for number in sorted(found))


def resolve_includes(code: str) -> str:
    """`code` with every line `//#include name` replaced by the text of `wgsl/common/name.wgsl`."""
    return _INCLUDE.sub(lambda match: _text(f"common/{match[1]}.wgsl"), code)


@cache
def load_kernel(name: str) -> Kernel:
    """The kernel in `wgsl/<name>.wgsl`."""
    code = resolve_includes(_text(f"{name}.wgsl"))
    return Kernel(name, code, parse_bindings(name, code))


def _text(path: str) -> str:
    from evermind_web import resources  # late: only devices need the files

    return resources.read_text("wgsl", path)
