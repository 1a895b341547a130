"""Many steps and many texts in one page: nothing grows, and the losses are those of a fresh run.

`make soak` runs 10,000 steps and 2,000 texts; the counts come in the environment.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.browser.harness import PyodidePage
from tests.browser.heaps import Heaps

STEPS = int(os.environ.get("EVERMIND_LONG_STEPS") or 100)
TEXTS = int(os.environ.get("EVERMIND_LONG_TEXTS") or 20)
FIGURES = os.environ.get("EVERMIND_LONG_FIGURES")
PIECE = 500  # steps of one call into the page
BYTES_A_STEP = 1000  # that a heap may grow: WebAssembly memory grows by a fifth at once, which 12,000 steps must hide

SETUP = """
import sys, asyncio, gc
import numpy as np
import pyodide_js
from evermind_web.backend.request import request_backend
from evermind_web.model import EvermindLM
from evermind_web.training import EvermindLMTrainer, Example

class Long:
    def __init__(self, backend):
        self.backend = backend
        self.model = EvermindLM(40, 16, 2, 3, 24, 4, 2, seed=1, backend=backend)
        self.trainer = EvermindLMTrainer(self.model, accum_steps=2, lr=1e-4)
        rng = np.random.default_rng(1)
        self.sequences = [rng.integers(0, 40, 17).tolist() for _ in range(2)]
        self.losses = []

    async def steps(self, count):
        await self.trainer.fit_async(self.sequences * count, on_step=lambda info: self.losses.append(info.loss))

    async def texts(self, count):
        for i in range(count):
            await self.model.generate_async([1, 2, 3], max_new_tokens=8, temperature=0.8, seed=i)

    def used(self):
        gc.collect()
        self.backend.flush()
        module, stats = pyodide_js._module, self.backend.stats()
        return {"heap": module.HEAPU8.length, "proxies": module.pyproxy_alloc_map.size,
                **{key: stats[key] for key in ("buffer_bytes", "scratch_bytes", "buffers", "pipelines", "open_reads")}}

pyodide_js._module.enable_pyproxy_allocation_tracing()
sys.long_run = Long(await request_backend("webgpu", check=False))
"""


async def piece(page: PyodidePage, heaps: Heaps, call: str, count: int) -> dict[str, Any]:
    found: dict[str, Any] = await page.run_python(
        f"import sys\nawait sys.long_run.{call}({count})\nsys.long_run.used()"
    )
    return found | {"js_heap": await heaps.worker()}


def write_figures(figures: dict[str, Any]) -> None:
    """For `make soak`."""
    if FIGURES:
        Path(FIGURES).write_text(json.dumps(figures))


async def test_gp14_py2_a_long_run_takes_no_more_than_a_short_one(pyodide_page: PyodidePage) -> None:
    heaps = await Heaps.of(pyodide_page.page)
    await pyodide_page.run_python(SETUP)
    try:
        await piece(pyodide_page, heaps, "steps", 10)
        first = await piece(pyodide_page, heaps, "texts", 3)
        last = first
        for call, wanted, size in (("steps", STEPS, PIECE), ("texts", TEXTS, PIECE // 5)):
            for done in range(0, wanted, size):
                last = await piece(pyodide_page, heaps, call, min(size, wanted - done))
        write_figures({"steps": STEPS, "texts": TEXTS, "first": first, "last": last})
        growing = ("heap", "js_heap")
        assert {n: last[n] for n in last if n not in growing} == {n: first[n] for n in first if n not in growing}
        # Both heaps grow in blocks, and V8 keeps what it learned of the code: a little is no slope.
        for name, slack in (("heap", 2**20), ("js_heap", 2**16)):
            grown = last[name] - first[name]
            assert grown <= max(slack, BYTES_A_STEP * (STEPS + TEXTS)), f"{name} grew by {grown} bytes"
        again = await pyodide_page.run_python(
            "import sys\nbegan = sys.long_run\nfresh = type(began)(began.backend)\n"
            "await fresh.steps(10)\nfresh.model.dispose()\n[fresh.losses, began.losses[:10]]"
        )
        assert again[0] == again[1], "the first steps of a fresh run, in the same page, bit for bit"
    finally:
        await pyodide_page.run_python("import sys\nsys.long_run.backend.dispose()\ndel sys.long_run")
        await heaps.close()
