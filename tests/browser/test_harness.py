"""The harness itself: Pyodide, the wheel and WebGPU run in a worker under the page's policy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from playwright.async_api import Page

from tests.browser.conftest import PageLog
from tests.browser.harness import PyodidePage, PythonError
from tools.csp import policy


async def test_python_runs_the_wheel(pyodide_page: PyodidePage, dist: Path) -> None:
    found = await pyodide_page.run_python(
        "import sys, numpy, regex, micropip, evermind_web._version as v\n"
        "[sys.platform, numpy.__version__, v.__version__, v.__file__]"
    )
    manifest = json.loads((dist / "evermind.json").read_text())
    assert found[:3] == ["emscripten", np.__version__, manifest["version"]]
    assert "site-packages" in found[3]


async def test_values_travel_both_ways(pyodide_page: PyodidePage) -> None:
    code = "import numpy as np\n[bytes(data[::-1]), np.float32(x) / 2, np.arange(3), float('nan')]"
    found = await pyodide_page.run_python(code, data=b"\x00\xff\x80", x=3)
    assert found[:3] == [b"\x80\xff\x00", 1.5, [0, 1, 2]]
    assert np.isnan(found[3])


async def test_python_errors_are_raised_here(pyodide_page: PyodidePage) -> None:
    with pytest.raises(PythonError, match="ZeroDivisionError: division by zero"):
        await pyodide_page.run_python("1 / 0")


async def test_names_do_not_leak_between_calls(pyodide_page: PyodidePage) -> None:
    await pyodide_page.run_python("leak = 1\nNone")
    assert await pyodide_page.run_python("'leak' in globals()") is False


async def test_written_files_can_be_imported(pyodide_page: PyodidePage) -> None:
    await pyodide_page.write_files({"harness_probe/__init__.py": b"answer = 42\n"})
    assert await pyodide_page.run_python("import harness_probe\nharness_probe.answer") == 42


async def test_worker_has_webgpu(pyodide_page: PyodidePage) -> None:
    code = (
        "import js\nadapter = await js.navigator.gpu.requestAdapter()\nadapter.limits.maxStorageBuffersPerShaderStage"
    )
    assert await pyodide_page.run_python(code) >= 8


async def test_policy_forbids_eval_and_blob_scripts(pyodide_page: PyodidePage) -> None:
    code = """
from pyodide.code import run_js
try:
    run_js("1 + 1")
    allowed = True
except Exception as error:
    allowed = str(error)
allowed
"""
    assert "Evaluating a string as JavaScript violates" in await pyodide_page.run_python(code)


async def test_pages_carry_the_policy(page: Page) -> None:
    reply = await page.goto("/__test__/harness.html")
    assert reply is not None
    assert await reply.header_value("content-security-policy") == policy()


async def test_log_hears_errors_and_foreign_requests(page: Page, page_log: PageLog) -> None:
    await page.goto("/__test__/harness.html")
    await page.evaluate("() => { setTimeout(() => { throw new Error('on purpose') }); console.error('said') }")
    await page.evaluate("() => fetch('http://127.0.0.1:9/').catch(() => 0)")
    await page.wait_for_timeout(50)
    text = "\n".join(page_log.problems)
    assert "on purpose" in text
    assert "said" in text
    assert "127.0.0.1:9" in text
    page_log.problems.clear()
