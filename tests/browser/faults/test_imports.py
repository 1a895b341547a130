"""Broken files of every kind that the page imports, through its own way in."""

from __future__ import annotations

from playwright.async_api import Page

from tests.browser.conftest import PageLog
from tests.browser.faults.imports import KINDS, attack

FILES = 12  # `make soak`: 5,000


async def test_ck8_broken_files_are_refused_by_the_page_and_change_no_record(page: Page, page_log: PageLog) -> None:
    await page.goto("/__test__/blank.html")
    for kind in KINDS:
        found = await attack(page, kind, FILES, seed=1)
        print(kind.name, found)
        assert not found["broken"], found["broken"][0]
        assert found["refused"] > 1
        assert kind.name == "another format" or found["accepted"] >= found["valid"]
    assert not page_log.problems
