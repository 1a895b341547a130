"""Rows of the list of known faults that need a page with something taken away from it."""

from __future__ import annotations

import re

from playwright.async_api import Page, expect

from tests.browser.harness import PyodidePage
from tests.browser.story_page import StoryPage
from tests.browser.test_story_faults import NUMPY, TEXT, change_worker


async def test_py12_stop_works_without_shared_array_buffer(page: Page) -> None:
    await change_worker(page.context, "delete self.SharedArrayBuffer;")
    story = StoryPage(page)
    await story.open(NUMPY)
    assert await page.evaluate("crossOriginIsolated") is False
    assert await page.workers[0].evaluate("[typeof SharedArrayBuffer, crossOriginIsolated]") == ["undefined", False]
    await story.part("train-text").fill(TEXT)
    await story.learn("train", 1)  # presses Stop after a step
    await expect(story.part("train-status")).to_have_text(re.compile("Stopped and kept"))


GP12 = """
import js
from pyodide.ffi import to_js
from evermind_web import EvermindLM
from evermind_web.backend.request import request_backend
from evermind_web.training import EvermindLMTrainer

Adapter = js.GPUAdapter.prototype
real = js.Object.getOwnPropertyDescriptor(Adapter, "features")
js.Object.defineProperty(Adapter, "features", to_js(
    {"value": js.Set.new(), "configurable": True}, dict_converter=js.Object.fromEntries))
try:
    backend = await request_backend("webgpu", check=False)
    losses = []
    for one in (backend, None):
        model = EvermindLM(40, d_model=12, hidden_dim=8, seed=1, backend=one)
        small = await model.export_weights_async(fp16=True)
        model.load_weights(small)
        trainer = EvermindLMTrainer(model, mixed_precision=True, epochs=3)
        losses.append(await trainer.fit_async([[1, 2, 3, 4, 5], [9, 8, 7]]))
    backend.dispose()
finally:
    js.Object.defineProperty(Adapter, "features", real)
losses
"""


async def test_gp12_mixed_precision_and_fp16_files_need_no_shader_f16(pyodide_page: PyodidePage) -> None:
    gpu, cpu = await pyodide_page.run_python(GP12)
    assert len(gpu) == 3
    assert max(abs(a - b) for a, b in zip(gpu, cpu, strict=True)) < 1e-4
