"""Run Python in Pyodide, in a module worker of headless Chromium, from a test.

`PyodidePage` is what the fixture `pyodide_page` hands out. It holds the wheel from dist/ and WebGPU.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from playwright.async_api import Error, Page

from tools.browser import config


class PythonError(Exception):
    """Python in the page raised; the text is its traceback."""


def _encode(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": base64.b64encode(bytes(value)).decode()}
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be handed to the page: use JSON values, bytes or NumPy")


def _decode(value: dict[str, Any]) -> Any:
    return base64.b64decode(value["base64"]) if set(value) == {"base64"} else value


class PyodidePage:
    """A page with Pyodide in a worker; one for the whole session, so names that a test defines do not stay."""

    def __init__(self, page: Page) -> None:
        self.page = page

    async def call(self, method: str, *args: str) -> str:
        """Call one method of the harness worker and return its string."""
        # A promise that never settles would hang the run: race it.
        timeout = int(config.PYTHON_TIMEOUT_S * 1000)
        script = """([method, args, timeout]) => Promise.race([
            harness.call(method, ...args),
            new Promise((_, reject) => setTimeout(
                () => reject(new Error(`no answer within ${timeout / 1000} s`)), timeout)),
        ])"""
        try:
            result: str = await self.page.evaluate(script, [method, list(args), timeout])
        except Error as error:
            raise PythonError(error.message) from None
        return result

    async def run_python(self, code: str, **values: Any) -> Any:
        """Run `code` (top-level await allowed) in a fresh namespace holding `values`; return its last expression.

        Values and result may be JSON values, bytes, and NumPy arrays (which arrive as lists). NaN and infinities
        travel too.

        Raises:
            PythonError: the code raised, or took longer than `PYTHON_TIMEOUT_S`.
        """
        return json.loads(
            await self.call("run", code, json.dumps(values, default=_encode)),
            object_hook=_decode,
        )

    async def write_files(self, files: dict[str, bytes | Path]) -> None:
        """Write files into Pyodide's working directory, which is on `sys.path`: test modules, golden data."""
        for name, content in files.items():
            data = content.read_bytes() if isinstance(content, Path) else content
            await self.call("write", name, base64.b64encode(data).decode())
