"""Pages for the tests of the store: IndexedDB through both faces, with the faults that browsers bring."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import BrowserContext, Page


@pytest_asyncio.fixture(loop_scope="session")
async def blank(page: Page) -> Page:
    """An empty page of the served origin."""
    await page.goto("/__test__/blank.html")
    return page


@pytest_asyncio.fixture(loop_scope="session")
async def tabs(context: BrowserContext) -> AsyncIterator[list[Page]]:
    """Three tabs of one profile."""
    opened = [await context.new_page() for _ in range(3)]
    for tab in opened:
        await tab.goto("/__test__/blank.html")
    yield opened
