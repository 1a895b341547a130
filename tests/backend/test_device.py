"""The GPU backend below the operations: order of the queue, views, errors, limits, life. Runs on native WebGPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from evermind_web import ops
from evermind_web.backend import webgpu_backend
from evermind_web.backend.base import Buf
from evermind_web.backend.device import Kernel, load_kernel, parse_bindings, resolve_includes
from evermind_web.backend.kernels import MAX_GRID, Dispatch, Plan, ceil_div, grid_of, plan_for
from evermind_web.backend.native_webgpu import NativeDevice
from evermind_web.backend.request import request_backend
from evermind_web.backend.webgpu_backend import WebGPUBackend
from evermind_web.errors import BackendError, DeviceLostError, InvalidArgumentError, WebGPUUnavailableError
from evermind_web.resources import list_names

DOUBLE = """
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(1) fn main(@builtin(workgroup_id) id: vec3<u32>) { y[id.x] = 2.0 * x[id.x]; }
"""


@pytest.fixture(scope="module")
def backend() -> Iterator[WebGPUBackend]:
    opened = WebGPUBackend(NativeDevice(), "wgpu")
    yield opened
    opened.dispose()


def put(backend: WebGPUBackend, values: object) -> Buf:
    """A new buffer holding `values`."""
    array = np.asarray(values)
    buf = backend.alloc(array.shape, "int32" if array.dtype.kind == "i" else "float32")
    backend.write(buf, array)
    return buf


def define(backend: WebGPUBackend, number: int, name: str, code: str, plan: Plan) -> None:
    """Give the device a kernel of the test's own."""
    backend.device.define_kernel(Kernel(name, code, parse_bindings(name, code)))
    backend.device.define_plan(number, plan.to_json())


# ---- order ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, 20_000])  # staged with the records; straight to the queue
async def test_write_lands_in_queue_order(backend: WebGPUBackend, size: int) -> None:
    source, copy = put(backend, np.full(size, 1.0)), backend.alloc((size,))
    backend.copy(source, 0, copy, 0, size)
    backend.write(source, np.full(size, 2.0))
    first, second = await backend.read(copy, source)
    assert (first == 1).all()
    assert (second == 2).all()


async def test_array_may_change_after_write(backend: WebGPUBackend) -> None:
    array = np.ones(8, "<f4")
    buf = backend.alloc((8,))
    backend.write(buf, array)
    array[:] = 7
    assert ((await backend.read(buf))[0] == 1).all()


async def test_more_small_writes_than_the_staging_area_holds(backend: WebGPUBackend) -> None:
    bufs = [put(backend, np.full(15_000, i, "<i4")) for i in range(8)]
    assert [int(array[-1]) for array in await backend.read(*bufs)] == list(range(8))


async def test_zero_and_copy_of_parts(backend: WebGPUBackend) -> None:
    a, b = put(backend, np.arange(8.0)), put(backend, np.full(8, 9.0))
    backend.copy(a, 2, b, 5, 3)
    backend.zero(a)
    found_a, found_b = await backend.read(a, b)
    assert found_b.tolist() == [9, 9, 9, 9, 9, 2, 3, 4]
    assert not found_a.any()


async def test_copy_within_one_buffer_may_overlap(backend: WebGPUBackend) -> None:
    buf = put(backend, np.arange(8.0))
    backend.copy(buf, 0, buf, 2, 6)
    assert (await backend.read(buf))[0].tolist() == [0, 1, 0, 1, 2, 3, 4, 5]


# ---- views ----------------------------------------------------------------------------------------------------------


async def test_views_are_windows_on_one_memory(backend: WebGPUBackend) -> None:
    whole = put(backend, np.zeros(256))
    part = backend.view(whole, 64, (2, 64))
    inner = backend.view(part, 64, (3,))
    backend.write(inner, np.array([1.0, 2.0, 3.0]))
    found_whole, found_part = await backend.read(whole, part)
    assert found_whole[128:131].tolist() == [1, 2, 3]
    assert found_part.shape == (2, 64)
    assert found_part[1, :3].tolist() == [1, 2, 3]
    backend.zero(part)
    backend.free(inner)
    backend.free(part)
    assert not (await backend.read(whole))[0].any()


async def test_kernel_sees_only_its_view(backend: WebGPUBackend) -> None:
    x = np.arange(192, dtype="<f4")
    whole, out, rstd = put(backend, x), backend.alloc((1, 32)), backend.alloc((1,))
    row, gain = backend.view(whole, 128, (1, 32)), put(backend, np.ones(32))
    ops.rmsnorm_fwd(backend, [row, gain], [out, rstd])
    (found,) = await backend.read(out)
    np.testing.assert_allclose(found[0], x[128:160] / np.sqrt(np.mean(x[128:160] ** 2) + 1e-5), rtol=1e-5)


@pytest.mark.parametrize(("offset", "shape"), [(32, (4,)), (-64, (4,)), (192, (128,))])
def test_view_must_be_aligned_and_inside(backend: WebGPUBackend, offset: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match="multiple of 64"):
        backend.view(backend.alloc((256,)), offset, shape)


# ---- values ---------------------------------------------------------------------------------------------------------


async def test_py7_integers_are_cast_or_refused(backend: WebGPUBackend) -> None:
    buf = backend.alloc((np.int64(3),), "int32")  # type: ignore[arg-type]
    backend.write(buf, np.array([1, -2, 2**31 - 1], np.int64))
    (found,) = await backend.read(buf)
    assert found.dtype == np.dtype("<i4")
    assert found.tolist() == [1, -2, 2**31 - 1]
    with pytest.raises(InvalidArgumentError, match=r"0\.\.2147483648 \(int64\) do not fit int32"):
        backend.write(buf, np.array([0, 1, 2**31], np.int64))
    with pytest.raises(InvalidArgumentError, match="takes integers, got float64"):
        backend.write(buf, np.zeros(3))
    with pytest.raises(InvalidArgumentError, match=r"shape \(4,\) to a buffer of shape \(3,\)"):
        backend.write(buf, np.zeros(4, "<i4"))


async def test_float64_and_strided_arrays_are_converted(backend: WebGPUBackend) -> None:
    buf = backend.alloc((2, 3))
    values = np.arange(12.0).reshape(3, 4)[:, ::2].T
    backend.write(buf, values)
    (found,) = await backend.read(buf)
    assert found.dtype == np.dtype("<f4")
    assert found.tolist() == values.tolist()


# ---- grids ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, MAX_GRID, MAX_GRID + 1, 16_776_961])
def test_gp2_grid_is_split_and_covers(groups: int) -> None:
    x, y, z = grid_of(groups)
    assert max(x, y, z) <= MAX_GRID
    assert groups <= x * y * z < groups + y


async def test_gp2_more_rows_than_one_dimension_holds(backend: WebGPUBackend) -> None:
    n = MAX_GRID + 3
    x, gain = put(backend, np.arange(n, dtype="<f4")[:, None]), put(backend, np.ones(1))
    y, rstd = backend.alloc((n, 1)), backend.alloc((n,))
    ops.rmsnorm_fwd(backend, [x, gain], [y, rstd])
    (found,) = await backend.read(rstd)
    np.testing.assert_allclose(found, 1 / np.sqrt(np.arange(n, dtype=float) ** 2 + 1e-5), rtol=1e-5)


# ---- kernels and errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in list_names("wgsl", ".wgsl") if "/" not in name])
def test_every_kernel_compiles_in_naga(backend: WebGPUBackend, name: str) -> None:
    kernel = load_kernel(name.removesuffix(".wgsl"))
    backend.device.define_kernel(kernel)
    dispatch = Dispatch(kernel.name, tuple(range(len(kernel.bindings) - 1)), (1, 1, 1), (0,))
    backend.device.define_plan(10_000 + hash(name) % 10_000, Plan((dispatch,)).to_json())


def test_gp7_broken_kernel_is_named(backend: WebGPUBackend) -> None:
    with pytest.raises(BackendError, match=r"kernel broken[\s\S]*no_such_thing"):
        define(backend, 5000, "broken", DOUBLE.replace("2.0", "no_such_thing"), Plan(()))


def test_gp7_plan_with_too_few_buffers(backend: WebGPUBackend) -> None:
    with pytest.raises(BackendError, match="kernel double has 2 bindings, its plan gives 1"):
        define(backend, 5001, "double", DOUBLE, Plan((Dispatch("double", (0,), (1, 1, 1)),)))


def test_gp7_grid_over_the_limit_names_the_kernel(backend: WebGPUBackend) -> None:
    define(backend, 5002, "double", DOUBLE, Plan((Dispatch("double", (0, 1), (MAX_GRID + 1, 1, 1)),)))
    x, y = backend.alloc((4,)), backend.alloc((4,))
    backend._records.extend((1, 5002, 2, x.id, y.id))
    with pytest.raises(BackendError, match="double"):
        backend.flush()


def test_sync_names_the_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERMIND_SYNC", "1")
    backend = WebGPUBackend(NativeDevice(), "wgpu")
    x, gain, y, rstd = (backend.alloc(shape) for shape in ((2, 4), (4,), (2, 4), (2,)))
    before = backend.stats()["submits"]
    ops.rmsnorm_fwd(backend, [x, gain], [y, rstd])
    ops.rmsnorm_fwd(backend, [x, gain], [y, rstd])
    assert backend.stats()["submits"] == before + 2
    with pytest.raises(BackendError, match="rmsnorm_fwd"):  # the same memory read and written
        ops.rmsnorm_fwd(backend, [x, gain], [x, rstd])
    backend.dispose()


def test_gp1_buffer_over_the_limit(backend: WebGPUBackend) -> None:
    limit = backend.max_buffer_bytes
    rows = limit // (513 * 4) + 1
    before = backend.stats()["buffer_bytes"]
    with pytest.raises(BackendError, match=rf"\({rows}, 513\) float32 needs {rows * 513 * 4} bytes, limit {limit}"):
        backend.alloc((rows, 513))
    assert backend.stats()["buffer_bytes"] == before
    exact = backend.alloc((limit // 4,))
    backend.zero(exact)
    backend.free(exact)
    backend.flush()
    assert backend.stats()["buffer_bytes"] == before


def test_bindings_are_read_from_the_text() -> None:
    assert parse_bindings("double", DOUBLE) == ("read", "read_write")
    assert load_kernel("rmsnorm_fwd").bindings == ("read", "read", "read_write", "read_write", "uniform")
    with pytest.raises(BackendError, match="without a gap"):
        parse_bindings("gap", DOUBLE.replace("binding(1)", "binding(2)"))
    assert "fn round_to_half" in resolve_includes("// x\n//#include half\n")


def test_unknown_operation_is_named() -> None:
    with pytest.raises(BackendError, match="no GPU kernel for operation 'gelu'"):
        plan_for("gelu", (), ())
    assert ceil_div(65, 64) == 2


# ---- opening --------------------------------------------------------------------------------------------------------


async def test_gp13_device_that_computes_wrong_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = await request_backend("wgpu", check=True)
    assert backend.stats()["buffer_bytes"] == 0  # type: ignore[attr-defined]
    backend.dispose()

    def spoiled(name: str) -> Kernel:
        kernel = load_kernel(name)
        return Kernel(name, kernel.code.replace("1e-5", "0.1"), kernel.bindings)

    monkeypatch.setattr(webgpu_backend, "load_kernel", spoiled)
    patched = await request_backend("wgpu", check=True)
    assert patched.adapter_name.endswith("(rmsnorm_fwd, conv_norm_fwd, layer_step on NumPy)")
    patched.dispose()


async def test_backends_are_opened_by_name() -> None:
    assert (await request_backend("numpy")).name == "numpy"
    with pytest.raises(InvalidArgumentError, match="one of numpy, webgpu, wgpu, got 'cuda'"):
        await request_backend("cuda")
    with pytest.raises(WebGPUUnavailableError, match='in CPython use "wgpu"'):
        await request_backend("webgpu")


# ---- life -----------------------------------------------------------------------------------------------------------


async def test_gp14_live_bytes_and_bind_groups_stay(backend: WebGPUBackend) -> None:
    gain = put(backend, np.ones(4))
    seen = []
    for _ in range(20):
        x, y, rstd = put(backend, np.ones((2, 4))), backend.alloc((2, 4)), backend.alloc((2,))
        ops.rmsnorm_fwd(backend, [x, gain], [y, rstd])
        for buf in (x, y, rstd):
            backend.free(buf)
        backend.flush()
        seen.append((backend.stats()["buffer_bytes"], len(backend.device._windows[gain.id].groups)))  # type: ignore[attr-defined]
    assert len(set(seen)) == 1
    assert seen[0][1] == 0


async def test_replay_makes_nothing_new(backend: WebGPUBackend) -> None:
    x, gain, y, rstd = (
        put(backend, np.ones((3, 4))),
        put(backend, np.ones(4)),
        backend.alloc((3, 4)),
        backend.alloc((3,)),
    )
    ops.rmsnorm_fwd(backend, [x, gain], [y, rstd])
    await backend.read(y)
    before = backend.stats()
    for _ in range(3):
        ops.rmsnorm_fwd(backend, [x, gain], [y, rstd])
    backend.flush()
    after = backend.stats()
    assert after["crossings"] == before["crossings"] + 1
    assert after["dispatches"] == before["dispatches"] + 3
    assert [after[name] for name in ("bind_groups", "pipelines")] == [
        before[name] for name in ("bind_groups", "pipelines")
    ]


async def test_no_event_loop_hears_of_a_read(backend: WebGPUBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of wgpu-py may be so late that the loop is closed."""
    from wgpu import _async

    loops, detect = [], _async.detect_current_call_soon_threadsafe

    def detected() -> object:
        loops.append(detect())
        return loops[-1]

    monkeypatch.setattr(_async, "detect_current_call_soon_threadsafe", detected)
    await backend.read(put(backend, [1.0]))
    assert loops
    assert set(loops) == {None}
    assert detect() is not None  # everything else finds the loop that runs here


async def test_use_after_free_is_refused(backend: WebGPUBackend) -> None:
    buf = put(backend, np.ones(4))
    backend.free(buf)
    with pytest.raises(BackendError, match="was freed"):
        await backend.read(buf)


async def test_gp14_dispose_twice_then_a_new_device() -> None:
    for _ in range(2):
        backend = WebGPUBackend(NativeDevice(), "wgpu")
        buf = put(backend, np.ones(4))
        assert (await backend.read(buf))[0].tolist() == [1, 1, 1, 1]
        backend.dispose()
        backend.dispose()
        backend.free(buf)
        with pytest.raises(DeviceLostError, match="disposed"):
            backend.alloc((1,))
        with pytest.raises(DeviceLostError, match="disposed"):
            await backend.read(buf)
