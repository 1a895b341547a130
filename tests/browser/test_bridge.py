"""The JavaScript bridge in a browser: memory, promises, errors, loss of the device, life."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Page

from tests.browser.harness import PyodidePage

OPEN = """
import asyncio, numpy as np
from evermind_web import ops
from evermind_web.backend.request import request_backend
from evermind_web.backend.device import Kernel
from evermind_web.backend.kernels import Dispatch, Plan
from evermind_web.errors import BackendError, DeviceLostError

def put(b, values):
    array = np.asarray(values)
    buf = b.alloc(array.shape, "int32" if array.dtype.kind == "i" else "float32")
    b.write(buf, array)
    return buf

async def raised(awaitable):
    try:
        await awaitable
    except Exception as error:
        return f"{type(error).__name__}: {error}"

b = await request_backend("webgpu", check=False)
"""


async def run(page: PyodidePage, code: str) -> Any:
    """Run `code` with a fresh backend `b`; its list `found` comes back."""
    return await page.run_python(f"{OPEN}\nfound = []\ntry:\n" + _indented(code) + "\nfinally:\n    b.dispose()\nfound")


def _indented(code: str) -> str:
    return "\n".join("    " + line for line in code.strip("\n").splitlines())


async def test_py1_uploads_survive_growth_of_the_heap(pyodide_page: PyodidePage) -> None:
    code = """
import pyodide_js
small, large = np.arange(100, dtype="<f4"), np.arange(50_000, dtype="<f4") + 0.5
one, two = put(b, small), put(b, large)
await b.read(one)
before = pyodide_js._module.HEAPU8.length
held = np.ones(before // 8 + 16 * 2**20)  # grows the heap: every view on it is dead now
b.write(one, small + 1)
b.write(two, large)
b.flush()
x, y = await b.read(one, two)
found.append(pyodide_js._module.HEAPU8.length > before)
found.append(x.tobytes() == (small + 1).tobytes() and y.tobytes() == large.tobytes())
"""
    assert await run(pyodide_page, code) == [True, True]


async def test_py2_steps_leave_no_proxies(pyodide_page: PyodidePage) -> None:
    code = """
import pyodide_js
module = pyodide_js._module
module.enable_pyproxy_allocation_tracing()
x, g, y, r = put(b, np.ones((4, 8))), put(b, np.ones(8)), b.alloc((4, 8)), b.alloc((4,))
async def step(i):
    b.write(x, np.full((4, 8), float(i)))
    ops.rmsnorm_fwd(b, [x, g], [y, r])
    await b.read(r)
for i in range(1, 301):
    await step(i)
    if i in (100, 300):
        await asyncio.sleep(0.01)
        found.append([module.pyproxy_alloc_map.size, module.HEAPU8.length, b.stats()["buffer_bytes"]])
"""
    early, late = await run(pyodide_page, code)
    assert early == late


async def test_writes_and_reads_keep_their_order(pyodide_page: PyodidePage) -> None:
    code = """
for size in (8, 40_000):  # staged with the records; straight to the queue
    source, copy = put(b, np.full(size, 1.0)), b.alloc((size,))
    b.copy(source, 0, copy, 0, size)
    b.write(source, np.full(size, 2.0))
    first = asyncio.ensure_future(b.read(copy, source))
    await asyncio.sleep(0)
    b.write(source, np.full(size, 3.0))
    second = asyncio.ensure_future(b.read(source))
    await asyncio.sleep(0)
    (x, y), (z,) = await first, await second
    found.append([x.min(), x.max(), y.min(), y.max(), z.min(), z.max()])
whole = put(b, np.zeros(256))
part = b.view(b.view(whole, 64, (2, 64)), 64, (3,))
b.write(part, np.array([1.0, 2.0, 3.0]))
b.copy(whole, 128, whole, 129, 3)
found.append((await b.read(whole))[0][127:133].tolist())
"""
    assert await run(pyodide_page, code) == [[1, 1, 2, 2, 3, 3], [1, 1, 2, 2, 3, 3], [0, 1, 1, 2, 3, 0]]


async def test_work_waits_for_pipelines_in_order(pyodide_page: PyodidePage) -> None:
    # Everything is queued before the first pipeline can be ready; later writes must not overtake it.
    code = """
x, g, y, r = put(b, np.full((2, 4), 3.0)), put(b, np.ones(4)), b.alloc((2, 4)), b.alloc((2,))
big, kept = put(b, np.zeros(40_000)), b.alloc((40_000,))
ops.rmsnorm_fwd(b, [x, g], [y, r])
b.copy(big, 0, kept, 0, 40_000)
first = asyncio.ensure_future(b.read(r))
await asyncio.sleep(0)
b.write(big, np.ones(40_000))
b.write(x, np.full((2, 4), 5.0))
ops.rmsnorm_fwd(b, [x, g], [y, r])
b.free(x)
second = asyncio.ensure_future(b.read(r, big, kept))
await asyncio.sleep(0)
(one,), (two, ones, zeros) = await first, await second
found += [abs(one[0] * 3 - 1) < 1e-5, abs(two[0] * 5 - 1) < 1e-5, bool((ones == 1).all()), bool((zeros == 0).all())]
"""
    assert await run(pyodide_page, code) == [True, True, True, True]


async def test_a_read_that_is_given_up_leaves_nothing(pyodide_page: PyodidePage) -> None:
    code = """
x = put(b, np.arange(4.0))
for _ in range(10):
    task = asyncio.ensure_future(b.read(x))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0.005)
    found.append(task.cancelled())
found.append((await b.read(x))[0].tolist())
found.append(b.stats()["open_reads"])
"""
    *cancelled, values, left = await run(pyodide_page, code)
    assert all(cancelled)
    assert left == 0
    assert values == [0, 1, 2, 3]


async def test_gp7_faults_are_raised_with_names(pyodide_page: PyodidePage) -> None:
    code = """
BODY = '''@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(1) fn main() { y[0] = FACTOR * x[0]; }'''
def define(number, name, factor, operands, grid):
    b.device.define_kernel(Kernel(name, BODY.replace("FACTOR", factor), ("read", "read_write")))
    b.device.define_plan(number, Plan((Dispatch(name, operands, grid),)).to_json())
x, y = put(b, np.ones(4)), b.alloc((4,))

define(9001, "typo", "no_such_thing", (0, 1), (1, 1, 1))
b._records.extend((1, 9001, 2, x.id, y.id))
found.append(await raised(b.read(y)))

define(9002, "wide", "2.0", (0, 1), (70_000, 1, 1))
b._records.extend((1, 9002, 2, x.id, y.id))
found.append(await raised(b.read(y)))

define(9003, "twice", "2.0", (0, 1), (1, 1, 1))
b._records.extend((1, 9003, 2, x.id, x.id))
b.flush()
found.append(await raised(b.read(y)))

try:
    define(9004, "short", "2.0", (0,), (1, 1, 1))
except BackendError as error:
    found.append(str(error))
try:
    b.device.define_plan(9005, Plan((Dispatch("twice", (0, 1), (1, 1, 1)),)).to_json().replace('"grid"', '"grill"'))
except BackendError as error:
    found.append(str(error))
b.device.create_buffer(9006, b.device.limits["maxBufferSize"] + 4)
found.append(await raised(b.read(y)))

b.write(x, np.ones(4))  # what was in a submit that failed is lost; the device goes on
b._records.extend((1, 9003, 2, x.id, y.id))
found.append((await b.read(y))[0].tolist())
"""
    typo, wide, twice, short, missing, huge, after = await run(pyodide_page, code)
    assert typo.startswith("BackendError: kernel typo, line 3: ")
    assert "no_such_thing" in typo
    assert wide.startswith("BackendError: submit of wide: ")
    assert "70000" in wide
    assert twice.startswith("BackendError: submit of twice: ")
    assert short == "kernel short has 2 bindings, its plan gives 1"
    assert missing == "descriptor field 'grid' is missing"
    assert huge.startswith("BackendError: buffer 9006 of ")
    assert after == [2, 0, 0, 0]


async def test_gp1_buffer_over_the_limit(pyodide_page: PyodidePage) -> None:
    code = """
found.append(b.max_buffer_bytes)
rows = b.max_buffer_bytes // 2052 + 1
try:
    b.alloc((rows, 513))
except BackendError as error:
    found.append(f"({rows}, 513) float32 needs {rows * 2052} bytes, limit {b.max_buffer_bytes}" in str(error))
found.append(b.stats()["buffer_bytes"])
"""
    limit, said, held = await run(pyodide_page, code)
    assert limit >= 134_217_728
    assert said is True
    assert held == 0


async def test_gp6_lost_device_ends_waiting_reads(pyodide_page: PyodidePage) -> None:
    code = """
import time
reasons = []
b.on_lost(reasons.append)
x = put(b, np.ones(4))
await b.read(x)
waiting = asyncio.ensure_future(raised(b.read(x)))
await asyncio.sleep(0)
y, g, r = b.alloc((1, 4)), put(b, np.ones(4)), b.alloc((1,))
ops.rmsnorm_fwd(b, [b.view(x, 0, (1, 4)), g], [y, r])  # its pipeline is being compiled: the next read has not begun
later = asyncio.ensure_future(raised(b.read(y)))
await asyncio.sleep(0)
start = time.monotonic()
b.device._bridge.device.destroy()
for read in (waiting, later):
    found.append((await asyncio.wait_for(read, 1)).split(" (")[0])
found.append(time.monotonic() - start < 1)
await asyncio.sleep(0.05)
found.append(len(reasons))
for call in (lambda: b.alloc((1,)), b.flush, lambda: b.write(x, np.ones(4))):
    try:
        call()
        found.append("nothing")
    except DeviceLostError:
        found.append("lost")
    except Exception as error:
        found.append(repr(error))
found.append(b.lost)
b.dispose()
b.dispose()
c = await request_backend("webgpu", check=False)
found.append((await c.read(put(c, np.arange(3.0))))[0].tolist())
c.dispose()
"""
    first, second, soon, handlers, alloc, flush, write, lost, again = await run(pyodide_page, code)
    assert first == second == "DeviceLostError: the GPU device was lost"
    assert soon is True
    assert handlers == 1
    assert [alloc, flush, write] == ["lost", "lost", "lost"]
    assert lost is True
    assert again == [0, 1, 2]


async def test_gp13_device_is_checked_against_numpy(pyodide_page: PyodidePage) -> None:
    code = """
c = await request_backend("webgpu")
found += [c.name, c.adapter_name, c.stats()["buffer_bytes"]]
c.dispose()
"""
    name, adapter, held = await run(pyodide_page, code)
    assert name == "webgpu"
    assert adapter
    assert held == 0


async def test_gp14_live_bytes_and_calls_of_a_replayed_step(pyodide_page: PyodidePage) -> None:
    code = """
g = put(b, np.ones(8))
for i in range(20):
    x, y, r = put(b, np.ones((4, 8))), b.alloc((4, 8)), b.alloc((4,))
    ops.rmsnorm_fwd(b, [x, g], [y, r])
    for buf in (x, y, r):
        b.free(buf)
    await b.read(g)
    found.append(b.stats()["buffer_bytes"])
x, y, r = put(b, np.ones((4, 8))), b.alloc((4, 8)), b.alloc((4,))
ops.rmsnorm_fwd(b, [x, g], [y, r])
b.flush()
before = b.stats()
for _ in range(50):
    ops.rmsnorm_fwd(b, [x, g], [y, r])
b.flush()
after = b.stats()
found.append([after[key] - before[key] for key in ("crossings", "submits", "dispatches", "bind_groups", "pipelines")])
"""
    *live, grown = await run(pyodide_page, code)
    assert set(live) == {32}
    assert grown == [1, 1, 50, 0, 0]


@pytest.mark.parametrize(
    "stub",
    [
        "Object.defineProperty(navigator, 'gpu', { value: undefined, configurable: true })",
        "navigator.gpu.requestAdapter = async () => null",
        "navigator.gpu.requestAdapter = async () => { throw new Error('blocked') }",
    ],
)
async def test_gp11_no_adapter(page: Page, stub: str) -> None:
    await page.goto("/__test__/blank.html")
    found = await page.evaluate(
        """async () => {
            STUB;
            const { requestBridge } = await import("/bridge.mjs");
            try {
                await requestBridge({ HEAPU8: new Uint8Array(8) }, '{"limits": []}');
            } catch (error) {
                return [error.name, error.message];
            }
        }""".replace("STUB", stub)
    )
    assert found == ["WebGPUUnavailableError", "WebGPU not available: no adapter (or page not secure)"]
