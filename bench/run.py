"""`make bench`: the benchmark page in the browser of this machine, in small, as a table.

Without a GPU this proves that everything runs and agrees with NumPy; the times of WebGPU are then those of a CPU
emulation and say nothing. `bench/run_gpu.sh` prepares the run that the published tables come from.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.async_api import Page, async_playwright

from bench import site
from tools.browser import launch
from tools.common import ToolError, fail
from tools.serve import Server, in_background

SMALL = '{size: "tiny", batch: 4, seqLen: 16, steps: 12}'
ROWS = (  # what is printed, expression, the most seconds it should take on two cores
    ("train, WebGPU", f"bench({SMALL})", 60),
    ("train, WebGPU, adapter", f'bench({{...{SMALL}, mode: "lora"}})', 60),
    ("train, NumPy S", 'bench({size: "S", steps: 12, backend: "numpy"})', 30),
    ("train, reference S", 'peer({name: "reference", size: "S", steps: 5})', 30),
    ("train, jax-js", f'peer({{name: "jaxjs", ...{SMALL}}})', 120),
    ("train, TensorFlow.js", f'peer({{name: "tfjs", ...{SMALL}, steps: 3}})', 120),
    ("decode, WebGPU", 'decode({size: "tiny", tokens: 32, repeats: 1})', 60),
    ("decode, NumPy S at 500", 'decode({size: "S", tokens: 64, context: 500, backend: "numpy", repeats: 1})', 30),
    ("decode, reference S at 500", 'peer({name: "reference", task: "decode", size: "S", context: 500, tokens: 2})', 60),
)
COLUMNS = ("tok_s", "ms_per_step", "dispatches", "crossings", "submits", "python_us", "gpu_bytes", "max_diff_numpy")


def cell(value: Any) -> str:
    """A number for people."""
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


async def measure(page: Page, expression: str) -> dict[str, Any]:
    """The row of one expression, or its error."""
    try:
        return dict(await page.evaluate(f"async () => await {expression}"))
    except Exception as error:
        return {"error": str(error).splitlines()[0][:160]}


async def run(folder: Path) -> int:
    """Print the table; the number of rows that failed, or that lost sight of NumPy."""
    server = Server(0, {"/": folder}, "")
    in_background(server)
    failed = 0
    async with async_playwright() as driver:
        browser = await launch(driver)
        page = await browser.new_page()
        await page.goto(f"{server.url}bench.html")
        await page.wait_for_function("ready", timeout=120_000)
        print(f"{'':28}" + "".join(f"{name:>15}" for name in COLUMNS))
        for title, expression, limit in ROWS:
            started = asyncio.get_running_loop().time()
            row = await measure(page, expression)
            seconds = asyncio.get_running_loop().time() - started
            note = row.get("error", "") or ("" if seconds <= limit else f"took {seconds:.0f} s, expected {limit}")
            print(f"{title:28}" + "".join(f"{cell(row.get(name)):>15}" for name in COLUMNS) + f"  {note}", flush=True)
            own = "peer(" not in expression
            failed += own and (bool(row.get("error")) or row.get("max_diff_numpy", 0) > 1e-4)
            if os.environ.get("JSON"):
                print(json.dumps(row))
        await browser.close()
    server.shutdown()
    server.server_close()
    return failed


def main() -> int:
    """Make the page, measure, print."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            site.make(Path(folder) / "site")
            return asyncio.run(run(Path(folder) / "site"))
    except ToolError as error:
        return fail(error)


if __name__ == "__main__":
    sys.exit(main())
