"""`make bench`: the benchmark page in the browser of this machine, in small, as a table.

Without a GPU this proves that everything runs and agrees with NumPy; the times of WebGPU are then those of a CPU
emulation and say nothing. `bench/run_gpu.sh` prepares the run that the published tables come from.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, async_playwright

from bench import site
from tools.browser import launch
from tools.common import DIST, ToolError, fail
from tools.serve import Server, in_background, open_server

SHAPES = "[{m: 64, k: 32, n: 48}, {m: 32, k: 64, n: 48, transposed: true}]"
SMALL = '{size: "tiny", batch: 4, seqLen: 16, steps: 12}'
ROWS = (  # what is printed, expression, the most seconds it should take on two cores
    ("start, WebGPU", 'start({size: "tiny"})', 30),
    ("train, WebGPU", f"bench({SMALL})", 60),
    ("train, WebGPU, adapter", f'bench({{...{SMALL}, mode: "lora"}})', 60),
    ("train, NumPy S", 'bench({size: "S", steps: 12, backend: "numpy"})', 30),
    ("train, reference S", 'peer({name: "reference", size: "S", steps: 5})', 30),
    ("train, jax-js", f'peer({{name: "jaxjs", ...{SMALL}}})', 120),
    ("train, TensorFlow.js", f'peer({{name: "tfjs", ...{SMALL}, steps: 3}})', 120),
    ("decode, WebGPU", 'decode({size: "tiny", tokens: 32, repeats: 1})', 60),
    ("decode, NumPy S at 500", 'decode({size: "S", tokens: 64, context: 500, backend: "numpy", repeats: 1})', 30),
    ("decode, reference S at 500", 'peer({name: "reference", task: "decode", size: "S", context: 500, tokens: 2})', 60),
    ("operations, WebGPU", 'kernels({size: "tiny", rows: [64], repeats: 1, rounds: 1})', 60),
    ("products, jax-js", f'peer({{name: "jaxjs", task: "products", shapes: {SHAPES}}})', 60),
    ("products, TensorFlow.js", f'peer({{name: "tfjs", task: "products", shapes: {SHAPES}}})', 60),
    ("curve of layers, WebGPU", f"curves({{...{SMALL}, warm: 1, only: {{layers: [1, 2]}}}})", 60),
)
READY_S = 5.0  # what the demo page may take when it was visited before, on two cores
COLUMNS = ("tok_s", "ms_per_step", "dispatches", "crossings", "submits", "python_us", "gpu_bytes", "max_diff_numpy")


def cell(value: Any) -> str:
    """A number for people."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


async def measure(page: Page, expression: str) -> dict[str, Any]:
    """The row of one expression, or its error. Lists of rows are put under "rows"."""
    try:
        found = await page.evaluate(f"async () => await {expression}")
    except Exception as error:
        return {"error": str(error).splitlines()[0][:160], "rows": []}
    if isinstance(found, list):
        return {"rows": found}
    return dict(found) | {"rows": [row for value in found.values() if is_rows(value) for row in value]}


def fails(row: dict[str, Any], own: bool) -> bool:
    """Whether a result is not NumPy's, or there is none although it is `own` work."""
    return (own and "error" in row) or any(one.get("wrong", False) for one in (row, *row["rows"]))


def is_rows(value: Any) -> bool:
    """Whether it is a list of rows."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def inner(row: dict[str, Any]) -> str:
    """One of several rows that an expression gave, for people."""
    named = ("op", "kernel", "shape", "m", "k", "n", "x", "ms", "tflops", "max_diff_numpy", "max_diff", "wrong")
    return "    " + "  ".join(f"{name} {cell(row[name])}" for name in named if name in row)


async def demo_ready(browser: Browser) -> tuple[float, float]:
    """Seconds until the demo page in dist/ is ready: for a new visitor, and for one that comes again."""
    server = open_server(DIST, 0)
    in_background(server)
    context, taken = await browser.new_context(), list[float]()
    for _ in range(2):
        page = await context.new_page()
        started = time.perf_counter()
        await page.goto(server.url)
        await page.get_by_test_id("status").filter(has_text=re.compile("^Ready")).wait_for(timeout=120_000)
        taken.append(time.perf_counter() - started)
        await page.close()
    await context.close()
    server.shutdown()
    server.server_close()
    return taken[0], taken[1]


async def run(folder: Path) -> int:
    """Print the table; the number of rows that failed, or that lost sight of NumPy."""
    server = Server(0, {"/": folder}, "")
    in_background(server)
    failed = 0
    async with async_playwright() as driver:
        browser = await launch(driver)
        first, again = await demo_ready(browser)
        print(f"demo page ready: first visit {first:.1f} s, second {again:.1f} s (limit {READY_S} s)", flush=True)
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
            starts = [f"{name} {row[name]:,}" for name in row if name.endswith(("_ms", "_before"))]
            for line in [*([f"    {', '.join(starts)}"] if starts else []), *map(inner, row["rows"])]:
                print(line, flush=True)
            failed += fails(row, own="peer(" not in expression)
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
