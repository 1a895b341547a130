"""The runtime is compared with the hashes that the build wrote down before any of it runs, at the first visit too."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Page, Route, expect

from tests.browser.conftest import PageLog
from tests.browser.story_page import StoryPage
from tests.browser.test_story_faults import change_worker

NUMPY = "/?backend=numpy"
FILES = ["pyodide.mjs", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json", "numpy-.*whl"]
NO_SUBTLE = "Object.defineProperty(crypto, 'subtle', { value: undefined });"


@pytest.mark.parametrize("file", FILES)
async def test_a_changed_byte_in_the_runtime_is_refused_by_name(page: Page, page_log: PageLog, file: str) -> None:
    async def changed(route: Route) -> None:
        response = await route.fetch()
        body = bytearray(await response.body())
        body[len(body) // 2] ^= 1
        await route.fulfill(response=response, body=bytes(body))

    await page.context.route(re.compile(rf"/pyodide/{file}$"), changed)
    await change_worker(page.context, NO_SUBTLE)  # as on a plain http address, where the check has to hold as well
    await page.goto(NUMPY)
    name = file.replace(".*", r"\S+")
    await expect(page.get_by_test_id("error")).to_contain_text(
        re.compile(rf"{name} at http\S+ is not the file that this page was built with.*SHA-256.*Reload"), timeout=60_000
    )
    await expect(page.get_by_test_id("status")).to_have_text("It could not start.")
    page_log.problems.clear()  # the browser reports the refusal on the console


async def test_every_file_of_the_runtime_is_fetched_with_its_hash(page: Page) -> None:
    note = """
        const original = fetch;
        self.asked = [];
        self.fetch = (input, init) => {
            asked.push([String(input.url ?? input), init?.integrity ?? ""]);
            return original(input, init);
        };
    """
    await change_worker(page.context, note)
    await StoryPage(page).open(NUMPY)
    asked = await page.workers[0].evaluate("asked")
    unchecked = [url for url, integrity in asked if "/pyodide/" in url and not integrity.startswith("sha256-")]
    assert not unchecked
    assert sum("/pyodide/" in url for url, _ in asked) >= len(FILES)
