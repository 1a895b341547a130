"""Somebody new has a list of tasks: make it write like this letter, compare, back up, restore in a clean profile.

They know only what they see: regions, buttons and labels. Nothing may move under their hands meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, expect

from tests.browser.conftest import PageLog, check, open_context
from tests.browser.fit import MAX_SHIFT, WATCH_SHIFTS, look, shifts
from tools.browser import config

LETTER = """My dearest Nell, the plums are in at last, and the kitchen is all steam and sugar. Your uncle has mended
the gate, so he says, and the goat has been through it twice since. Do write, my dear, and tell us how the lodgings
are, and whether you are warm. The cat sends her love, or would, my dear, if she were not asleep in the flour. """
Visit = Callable[[], Coroutine[Any, Any, Page]]


@pytest_asyncio.fixture(loop_scope="session")
async def visit(browser: Browser, server: str) -> AsyncIterator[Visit]:
    """Open the page in a clean profile, and wait until it is ready."""
    opened: list[tuple[Page, PageLog]] = []

    async def open_page() -> Page:
        context = await open_context(browser, server)
        page = await context.new_page()
        opened.append((page, PageLog(page, server)))
        await page.goto("/?backend=numpy")
        await page.evaluate(WATCH_SHIFTS)
        await ready(page)
        return page

    yield open_page
    for page, log in opened:
        check(log)
        await page.context.close()


def step(page: Page, title: str) -> Locator:
    """One card of the page, by its heading."""
    return page.get_by_role("region", name=title, exact=True)


async def ready(page: Page) -> None:
    await expect(page.get_by_text(re.compile(r"^Ready\."))).to_be_visible(timeout=config.STORY_TIMEOUT_MS)


async def compared(page: Page, picture: str) -> list[str]:
    """Ask for both texts, side by side."""
    card = step(page, "Personalise")
    await card.get_by_role("button", name="Compare side by side").click()
    await expect(page.get_by_text("Writing twice…")).to_be_visible()
    await ready(page)
    await look(page, picture)
    return [await card.get_by_role("region", name=name).inner_text() for name in ("The model alone", "With “Nell”")]


async def test_the_task_list_of_somebody_new(visit: Visit, tmp_path: Path) -> None:
    page = await visit()
    await look(page, "new-1-first-visit")
    await page.get_by_role("button", name="Start from the shipped model").click()
    await expect(page.get_by_text("It can write at once.")).to_be_visible(timeout=config.STORY_TIMEOUT_MS)
    await look(page, "new-2-has-a-model")

    card = step(page, "Personalise")
    await card.get_by_label("Text in the other voice").fill(LETTER * 2)
    await card.get_by_label("Name").fill("Nell")
    await card.get_by_role("button", name="Start").click()
    await expect(card.get_by_text(re.compile(r"step [1-9]\d* of"))).to_be_visible(timeout=config.STORY_TIMEOUT_MS)
    await look(page, "new-3-learning")
    await expect(card.get_by_text(re.compile("step ([89]|[1-9][0-9]) of"))).to_be_visible(
        timeout=config.STORY_TIMEOUT_MS
    )
    await card.get_by_role("button", name="Stop").first.click()
    await expect(card.get_by_text("Stopped and kept")).to_be_visible(timeout=config.STORY_TIMEOUT_MS)
    await look(page, "new-4-learned")

    await step(page, "Write").get_by_label("Tokens to write").fill("24")
    alone, like_the_letter = await compared(page, "new-5-compared")
    assert alone != like_the_letter

    storage = step(page, "Storage and privacy")
    async with page.expect_download() as download:
        await storage.get_by_role("button", name="Back up everything").click()
    path = tmp_path / (await download.value).suggested_filename
    await (await download.value).save_as(path)
    await expect(page.get_by_text("Backed up")).to_be_visible()
    await look(page, "new-6-backed-up")
    moved = await shifts(page)
    assert sum(value for value, _ in moved) <= MAX_SHIFT, moved

    page = await visit()
    async with page.expect_file_chooser() as chooser:
        await step(page, "Storage and privacy").get_by_text("Restore a backup").click()
    await (await chooser.value).set_files(path)
    await expect(page.get_by_text("Load what you want to use.")).to_be_visible()
    await look(page, "new-7-restored")
    await page.get_by_text("Load Nell", exact=True).click()
    await expect(page.get_by_text("Loaded Nell.")).to_be_visible(timeout=config.STORY_TIMEOUT_MS)
    await look(page, "new-8-loaded")
    await step(page, "Write").get_by_label("Your text").fill("It was a dark night, and")
    await step(page, "Write").get_by_label("Tokens to write").fill("24")
    assert await compared(page, "new-9-the-same") == [alone, like_the_letter]
