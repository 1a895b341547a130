"""GP6 in a real browser: its GPU process crashes while the page learns and writes.

Chromium gives a page a new device after the first crash, and blocks it for good after the second: so there are two
crashes a browser, and the second one ends on NumPy.
"""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import suppress
from typing import Any

import pytest
from playwright.async_api import CDPSession, Error, Page, Playwright

from tests.browser.conftest import open_context
from tools.browser import launch

BROWSERS = int(os.environ.get("EVERMIND_CRASH_BROWSERS") or 1)  # `make soak`: 25, with two crashes each
SEED = int(os.environ.get("EVERMIND_CRASH_SEED") or 1)
STEPS = 16

PRELUDE = """
    const text = "It was the best of times, it was the worst of times, it was the age of wisdom. ".repeat(12);
    const { load } = await import("/evermind.mjs");
    const em = (globalThis.em ??= await load({ backend: "webgpu" }));
    globalThis.at = 0;
"""
LEARN = f"""async (steps) => {{
    {PRELUDE}
    const result = await em.train(text, {{ steps, seed: 1, onProgress: (p) => p.phase === "train" && (at = p.step) }});
    return {{ loss: result.lossAfter, notices: result.notices, backend: em.info.backend, seconds: result.seconds }};
}}"""
WRITE = f"""async (count) => {{
    {PRELUDE}
    let written = "", error = "";
    try {{
        for await (const piece of em.generate("It was", {{ maxNewTokens: count, temperature: 0.8 }})) {{
            written += piece;
            at++;
        }}
    }} catch (reason) {{ error = reason.message; }}
    return {{ written, error, backend: em.info.backend }};
}}"""


async def crash_during(page: Page, cdp: CDPSession, script: str, count: int, moment: int) -> dict[str, Any]:
    """Start `script`, wait until it has done `moment` steps or pieces, then let the GPU process crash."""
    await page.evaluate("globalThis.at = 0")
    work = asyncio.create_task(page.evaluate(script, count))
    while await page.evaluate("globalThis.at") < moment:  # noqa: ASYNC110 - the page has no other way to say it
        await asyncio.sleep(0.01)
    with suppress(Error, TimeoutError):  # the browser may not answer any more
        await asyncio.wait_for(cdp.send("Browser.crashGpuProcess"), 5)
    found: dict[str, Any] = await asyncio.wait_for(work, 120)
    return found


@pytest.mark.parametrize("number", range(BROWSERS))
async def test_gp6_a_crash_of_the_gpu_process_costs_no_bit_and_the_second_ends_on_numpy(
    playwright: Playwright, server: str, number: int
) -> None:
    source = random.Random(f"{SEED} {number}")
    browser = await launch(playwright)
    try:
        context = await open_context(browser, server)
        page, cdp = await context.new_page(), await browser.new_browser_cdp_session()
        await page.goto("/__test__/blank.html")
        expected = await page.evaluate(LEARN, STEPS)
        text = await page.evaluate(WRITE, 10)
        assert (expected["backend"], expected["notices"], text["error"]) == ("webgpu", [], "")

        moment = source.randrange(1, STEPS // 2)
        if number % 2 == 0:
            found = await crash_during(page, cdp, LEARN, STEPS, moment)
            assert found["loss"] == expected["loss"], "the same bits as without the crash"
            assert len(found["notices"]) == 1
            assert "Learning goes on from there with WebGPU" in found["notices"][0]
        else:
            found = await crash_during(page, cdp, WRITE, 2000, moment)
            assert "the model is as it was before" in found["error"]
        assert found["backend"] == "webgpu"
        assert await page.evaluate(WRITE, 10) == text

        # This browser gives no adapter any more, and the page says so and goes on.
        found = await crash_during(page, cdp, LEARN, STEPS, moment)
        assert await page.evaluate("navigator.gpu.requestAdapter()") is None
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-3)
        assert "Learning goes on from there with NumPy" in found["notices"][0]
        assert found["backend"] == "numpy"
        assert "WebGPU not available: no adapter" in await page.evaluate("em.info.fallbackReason")
        assert (await page.evaluate(WRITE, 10))["written"]
    finally:
        await browser.close()
