"""What a browser's GPU can do to us, with a stub where no real browser here does it."""

from __future__ import annotations

from tests.browser.harness import PyodidePage

CHECK = """
import time
from evermind_web import environment
from evermind_web.backend import selfcheck
from evermind_web.backend.request import request_backend
import js
await js.caches.delete("evermind_web notes")
times = []
ran = []
real = selfcheck.broken_operations
async def counted(backend):
    ran.append(backend.adapter_name)
    return await real(backend)
selfcheck.broken_operations = counted
try:
    for _ in range(2):
        started = time.perf_counter()
        backend = await request_backend("webgpu")
        times.append(time.perf_counter() - started)
        name = backend.adapter_name
        backend.dispose()
finally:
    selfcheck.broken_operations = real
[len(ran), name, times, await environment.recall("something else")]
"""


async def test_gp13_every_operation_is_checked_once_in_a_browser(pyodide_page: PyodidePage) -> None:
    ran, name, times, other = await pyodide_page.run_python(CHECK)
    assert ran == 1
    assert "NumPy" not in name, "the browser of the tests is sound"
    assert other is False
    print(
        f"opening a device: {times[0]:.2f} s with the check of all operations, {times[1]:.2f} s when it is remembered"
    )
