"""Programs: what was queued once is replayed, in order, with the same numbers, until one of its buffers is freed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from evermind_web import ops
from evermind_web.backend.base import Backend, Buf
from evermind_web.backend.native_webgpu import NativeDevice
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.backend.webgpu_backend import WebGPUBackend
from evermind_web.errors import InvalidArgumentError

N, D = 4, 8
GROWN = ("bind_groups", "pipelines", "buffers", "buffer_bytes", "scratch_bytes")


@pytest.fixture(params=["numpy", "wgpu"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    opened: Backend = NumpyBackend() if request.param == "numpy" else WebGPUBackend(NativeDevice(), "wgpu")
    yield opened
    opened.dispose()


@pytest.fixture
def gpu_backend() -> Iterator[WebGPUBackend]:
    opened = WebGPUBackend(NativeDevice(), "wgpu")
    yield opened
    opened.dispose()


def put(backend: Backend, values: object) -> Buf:
    """A new float32 buffer holding `values`."""
    array = np.asarray(values, np.float32)
    buf = backend.alloc(array.shape)
    backend.write(buf, array)
    return buf


class Norms:
    """y = rmsnorm(x), kept = a copy of y, total cleared: all three kinds of records."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.built = backend, 0
        self.x, self.gain = put(backend, np.ones((N, D))), put(backend, np.ones(D))
        self.y, self.kept, self.total, self.rstd = (backend.alloc(shape) for shape in ((N, D), (N, D), (D,), (N,)))

    def build(self) -> None:
        """Queue them."""
        self.built += 1
        ops.rmsnorm_fwd(self.backend, (self.x, self.gain), (self.y, self.rstd))
        self.backend.copy(self.y, 0, self.kept, 0, N * D)
        self.backend.zero(self.total)


async def test_a_replay_takes_what_is_in_its_buffers(backend: Backend) -> None:
    norms = Norms(backend)
    for step in range(1, 5):
        gain = np.arange(D, dtype=np.float32) + step
        backend.write(norms.gain, gain)
        backend.write(norms.total, gain)
        backend.replay("norms", norms.build)
        kept, total = await backend.read(norms.kept, norms.total)
        assert kept[N - 1] == pytest.approx(gain, rel=1e-4)
        assert not total.any()
    assert norms.built == (4 if backend.name == "numpy" else 1)


async def test_replays_keep_their_place_in_the_queue(backend: Backend) -> None:
    norms, seen = Norms(backend), [backend.alloc((N, D)) for _ in range(3)]
    for step, out in enumerate(seen):
        backend.write(norms.gain, np.full(D, step + 1.0))
        backend.replay("norms", norms.build)
        backend.copy(norms.kept, 0, out, 0, N * D)
    found = await backend.read(*seen)
    assert [round(float(array[0, 0])) for array in found] == [1, 2, 3]


async def test_a_program_inside_a_program_is_part_of_it(gpu_backend: WebGPUBackend) -> None:
    norms, outer = Norms(gpu_backend), gpu_backend.alloc((N, D))

    def build() -> None:
        gpu_backend.replay("inner", norms.build)
        gpu_backend.copy(norms.kept, 0, outer, 0, N * D)

    for gain in (2.0, 3.0):
        gpu_backend.write(norms.gain, np.full(D, gain))
        gpu_backend.replay("outer", build)
        assert (await gpu_backend.read(outer))[0] == pytest.approx(gain, rel=1e-4)
    assert norms.built == 1


async def test_a_replay_is_one_call_and_makes_nothing(gpu_backend: WebGPUBackend) -> None:
    norms = Norms(gpu_backend)
    gpu_backend.replay("norms", norms.build)
    await gpu_backend.read(norms.y)
    before = gpu_backend.stats()
    for _ in range(3):
        gpu_backend.write(norms.gain, np.ones(D))
        gpu_backend.replay("norms", norms.build)
        gpu_backend.flush()
    after = gpu_backend.stats()
    assert [after[name] - before[name] for name in ("crossings", "submits", "dispatches")] == [3, 3, 3]
    assert {name: after[name] for name in GROWN} == {name: before[name] for name in GROWN}


async def test_freeing_a_buffer_forgets_its_programs(gpu_backend: WebGPUBackend) -> None:
    norms = Norms(gpu_backend)
    gpu_backend.replay("norms", norms.build)
    gpu_backend.free(norms.kept)  # after the program ran
    norms.kept = gpu_backend.alloc((N, D))
    gpu_backend.write(norms.gain, np.full(D, 5.0))
    gpu_backend.replay("norms", norms.build)
    assert (await gpu_backend.read(norms.kept))[0] == pytest.approx(5.0, rel=1e-4)
    assert norms.built == 2
    assert len(gpu_backend.device._programs) == 1  # type: ignore[attr-defined]


async def test_a_buffer_freed_while_recording_is_used_once(gpu_backend: WebGPUBackend) -> None:
    buf = put(gpu_backend, np.arange(8.0))
    built = []

    def build() -> None:  # a copy within one buffer takes a buffer between, and gives it back
        built.append(1)
        gpu_backend.copy(buf, 0, buf, 1, 4)

    for _ in range(2):
        gpu_backend.replay("shift", build)
    assert (await gpu_backend.read(buf))[0].tolist() == [0, 0, 0, 1, 2, 5, 6, 7]
    assert len(built) == 2
    assert gpu_backend.stats()["buffers"] == 1


@pytest.mark.parametrize("wrong", ["write", "flush", "read"])
def test_a_program_may_not_wait_or_upload(gpu_backend: WebGPUBackend, wrong: str) -> None:
    norms = Norms(gpu_backend)
    calls: dict[str, Callable[[], object]] = {
        "write": lambda: gpu_backend.write(norms.gain, np.ones(D)),
        "flush": gpu_backend.flush,
        "read": lambda: gpu_backend.start_read(norms.gain),
    }

    def build() -> None:
        norms.build()
        calls[wrong]()

    with pytest.raises(InvalidArgumentError, match="may only zero, copy and run"):
        gpu_backend.replay("norms", build)
    gpu_backend.replay("norms", norms.build)  # nothing of the failed one is left
    gpu_backend.flush()
    assert gpu_backend.stats()["dispatches"] == 1


async def test_only_the_latest_programs_are_kept(gpu_backend: WebGPUBackend) -> None:
    norms = Norms(gpu_backend)
    for key in range(80):
        gpu_backend.replay(key, norms.build)
        gpu_backend.replay(0, norms.build)
    await gpu_backend.read(norms.y)
    assert norms.built == 80  # number 0 was in use all the time
    assert len(gpu_backend.device._programs) == 64  # type: ignore[attr-defined]
    gpu_backend.replay(1, norms.build)
    assert norms.built == 81


async def test_a_read_holds_what_was_there_when_it_was_started(backend: Backend) -> None:
    buf = put(backend, np.full(8, 1.0))
    first = backend.start_read(buf)
    backend.write(buf, np.full(8, 2.0))
    second = backend.start_read(buf)
    backend.start_read(buf).cancel()
    (one,), (two,) = await first, await second
    assert (one[0], two[0]) == (1, 2)


async def test_in_sync_mode_every_operation_is_queued_anew() -> None:
    backend = WebGPUBackend(NativeDevice(), "wgpu", sync=True)
    norms = Norms(backend)
    for _ in range(2):
        backend.replay("norms", norms.build)
    assert norms.built == 2
    backend.dispose()
