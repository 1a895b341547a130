"""A tab that the browser freezes, as it may one that is hidden, goes on with what it learns when it is shown again.

Headless Chromium hides no tab, but freezing is the stronger thing. EVERMIND_FROZEN_SECONDS=180 freezes it for minutes.
"""

from __future__ import annotations

import asyncio
import os
import re

from playwright.async_api import BrowserContext, expect

from tests.browser.story_page import NUMPY, STORY_MS, TEXT, StoryPage

SECONDS = float(os.environ.get("EVERMIND_FROZEN_SECONDS") or 1)
STEP = re.compile(r"step (\d+) of (\d+)")


async def test_a_frozen_tab_goes_on(context: BrowserContext) -> None:
    story = StoryPage(await context.new_page())
    await story.open(NUMPY)
    await story.part("train-text").fill(TEXT * 8)
    await story.part("train-length").select_option("long")
    await story.part("train-start").click()
    status = story.part("train-status")
    await expect(status).to_have_text(STEP, timeout=STORY_MS)

    before = await status.inner_text()
    session = await context.new_cdp_session(story.page)
    await session.send("Page.setWebLifecycleState", {"state": "frozen"})
    await asyncio.sleep(SECONDS)
    await session.send("Page.setWebLifecycleState", {"state": "active"})
    # The worker is not frozen: what it said arrives now, be it the next steps or the end.
    await expect(status).not_to_have_text(before, timeout=STORY_MS)
    shown = await status.inner_text()
    first, last = STEP.search(before), STEP.search(shown)
    assert first, before
    if last:
        assert int(last[1]) > int(first[1])
        await story.part("train-stop").click()
    await expect(status).to_contain_text(re.compile("Stopped and kept|Done"), timeout=STORY_MS)
    await story.ready()
