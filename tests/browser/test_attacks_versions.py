"""A page of two versions, a page without its scripts: what an attack on deployment found."""

from __future__ import annotations

import json
import re
from pathlib import Path

from playwright.async_api import Page, Route, expect

from tests.browser.conftest import PageLog
from tests.browser.story_page import NUMPY, StoryPage

STAMP = re.compile(r'<meta name="build" content="(\w+)">')


async def old_page(route: Route) -> None:
    """The page as the server answers, but of an older build."""
    response = await route.fetch()
    await route.fulfill(response=response, body=STAMP.sub('<meta name="build" content="old">', await response.text()))


def test_the_page_and_the_manifest_name_the_same_build(dist: Path) -> None:
    (build,) = STAMP.findall((dist / "index.html").read_text())
    assert json.loads((dist / "evermind.json").read_text())["build"] == build


async def test_a_page_that_a_new_version_overtook_is_loaded_anew(page: Page) -> None:
    # It ran the old page on the new worker: a tab that loads while another one takes the new version.
    story, documents = StoryPage(page), 0

    async def first_old(route: Route) -> None:
        nonlocal documents
        documents += 1
        await (old_page(route) if documents == 1 else route.continue_())

    await page.route(re.compile(r"/\?backend=numpy$"), first_old)
    await story.open(NUMPY)
    assert documents == 2
    await expect(story.part("error")).to_be_hidden()


async def test_a_server_that_stays_between_two_versions_is_told_from_a_page(page: Page, page_log: PageLog) -> None:
    await page.route(re.compile(r"/\?backend=numpy$"), old_page)
    await page.goto(NUMPY)
    await StoryPage(page).expect_error("files of two versions", within=60_000)
    await expect(page.get_by_test_id("status")).to_have_text("It could not start.")
    assert not page_log.problems


async def test_a_page_without_its_scripts_says_so(page: Page, page_log: PageLog) -> None:
    await page.route("**/app.mjs", lambda route: route.abort())
    await page.goto("/", wait_until="load")
    late = page.get_by_text("opened from a web server")
    assert await late.evaluate("element => getComputedStyle(element).visibility") == "hidden"  # not yet
    await late.evaluate("element => element.getAnimations()[0].finish()")
    await expect(late).to_be_visible()
    page_log.problems.clear()  # the browser says that it was refused
