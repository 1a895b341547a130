"""NumPy in Pyodide beside the reference engine and jax-js's wasm device, in headless Chromium without WebGPU.

    npm ci --prefix bench/peers && make dist && .venv/bin/python -m bench.simd [rounds]

Prints one JSON line for each measurement; see simd.mjs for what is measured. Takes about a minute.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from playwright.async_api import async_playwright

from tools.browser import launch
from tools.common import DIST, ROOT
from tools.serve import in_background, open_server

CALLS = {
    "train S": "train({size: 'S', rounds: %d})",
    "train M": "train({size: 'M', rounds: %d})",
    "decode S": "decode({size: 'S'})",
    "decode M": "decode({size: 'M'})",
    "products": "products()",
}


async def measure(rounds: int) -> dict[str, Any]:
    """All measurements by name, printed as they come."""
    server = open_server(DIST, port=0, extra={"/bench/": ROOT / "bench"})
    in_background(server)
    found: dict[str, Any] = {}
    async with async_playwright() as driver:
        browser = await launch(driver, webgpu=False)
        page = await browser.new_page()
        page.on("pageerror", lambda error: print("page:", error, file=sys.stderr))
        page.on("console", lambda message: print("page:", message.text[:500], file=sys.stderr))
        await page.goto(f"{server.url}bench/simd.html")
        await page.wait_for_function("() => globalThis.ready || globalThis.failed", timeout=120_000)
        if failed := await page.evaluate("globalThis.failed"):
            raise SystemExit(failed)
        for name, call in CALLS.items():
            found[name] = await page.evaluate(call % rounds if "%" in call else call)
            print(json.dumps({name: found[name]}), flush=True)
        await browser.close()
    server.shutdown()
    return found


if __name__ == "__main__":
    asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 4))
