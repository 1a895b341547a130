"""Many steps and many texts in one page: nothing grows, and all losses are those of a fresh run.

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
PIECE, AGAIN = 200, 150  # steps of one call into the page; of the fresh run, whose calls so end at other steps
# Bytes that a heap may grow: NumPy and V8 keep what they learned of sizes and code. Else so many a step or text.
SLACK, A_STEP = {"python": 2**17, "js_heap": 2**16}, 20
WASM = 1.21  # one growth of WebAssembly's memory, by a fifth: it says nothing while no more is in use

SETUP = """
import gc, sys
import js, pyodide_js
import numpy as np
from evermind_web.backend.request import request_backend
from evermind_web.model import EvermindLM
from evermind_web.training import EvermindLMTrainer

class Run:
    def __init__(self, backend, steps):
        self.backend = backend
        self.model = EvermindLM(40, 16, 2, 3, 24, 4, 2, seed=1, backend=backend)
        self.trainer = EvermindLMTrainer(self.model, accum_steps=2, lr=1e-4)
        rng = np.random.default_rng(1)
        self.sequences = [rng.integers(0, 40, 17).tolist() for _ in range(2)]
        self.losses, self.done = np.full(steps, np.nan), 0

    def keep(self, info):
        self.losses[self.done] = info.loss
        self.done += 1

    async def steps(self, count):
        await self.trainer.fit_async(self.sequences * count, on_step=self.keep)

    async def texts(self, count):
        for i in range(count):
            await self.model.generate_async([1, 2, 3], max_new_tokens=8, temperature=0.8, seed=i)

    def used(self):
        gc.collect()
        self.backend.flush()
        stats = self.backend.stats()
        return {"proxies": js.python_module.pyproxy_alloc_map.size,
                **{key: stats[key] for key in ("buffer_bytes", "scratch_bytes", "buffers", "pipelines", "open_reads")}}

js.python_module = pyodide_js._module
js.python_module.enable_pyproxy_allocation_tracing()
sys.long_runs = [Run(await request_backend("webgpu", check=False), steps)]
"""
FRESH = """
import sys
from evermind_web.backend.request import request_backend
sys.long_runs += [type(sys.long_runs[0])(await request_backend("webgpu", check=False), steps)]
"""
COMPARE = """
import sys
import numpy as np
began, fresh = (run.losses for run in sys.long_runs)
{"compared": int(np.isfinite(began).sum()), "different": int((began != fresh).sum()), "losses": [began[0], began[-1]]}
"""
END = """
import sys
for run in sys.long_runs: run.backend.dispose()
del sys.long_runs
"""


async def use(page: PyodidePage, heaps: Heaps, call: str, count: int) -> dict[str, int]:
    """Let the first run do so many steps or texts; returns what is held after it."""
    code = f"import sys\nawait sys.long_runs[0].{call}({count})\nsys.long_runs[0].used()"
    found: dict[str, int] = await page.run_python(code)
    return found | await heaps.python() | {"js_heap": await heaps.worker()}


def pieces(total: int, size: int) -> list[int]:
    """`total` cut into pieces of `size` and a last one."""
    return [min(size, total - at) for at in range(0, total, size)]


def write_figures(figures: dict[str, Any]) -> None:
    """For `make soak`."""
    if FIGURES:
        Path(FIGURES).write_text(json.dumps(figures))


async def test_gp14_py2_a_long_run_takes_no_more_than_a_short_one(pyodide_page: PyodidePage) -> None:
    heaps = await Heaps.of(pyodide_page.page)
    await pyodide_page.run_python(SETUP, steps=STEPS)
    try:
        await use(pyodide_page, heaps, "steps", 10)
        first = last = await use(pyodide_page, heaps, "texts", 3)
        for count in pieces(STEPS - 10, PIECE):
            last = await use(pyodide_page, heaps, "steps", count)
        for count in pieces(TEXTS, PIECE // 5):
            last = await use(pyodide_page, heaps, "texts", count)
        await pyodide_page.run_python(FRESH, steps=STEPS)
        for count in pieces(STEPS, AGAIN):
            await pyodide_page.run_python(f"import sys\nawait sys.long_runs[1].steps({count})")
        curve = await pyodide_page.run_python(COMPARE)
    finally:
        await pyodide_page.run_python(END)
        await heaps.close()
    write_figures({"steps": STEPS, "texts": TEXTS, "first": first, "last": last, "curve": curve})
    assert (curve["compared"], curve["different"]) == (STEPS, 0), curve
    growing = (*SLACK, "top", "wasm")
    assert {n: last[n] for n in last if n not in growing} == {n: first[n] for n in first if n not in growing}
    for name, slack in SLACK.items():
        grown = last[name] - first[name]
        assert grown <= max(slack, A_STEP * (STEPS + TEXTS)), f"{name} grew by {grown} bytes"
    assert last["wasm"] <= first["wasm"] * WASM, (first, last)
