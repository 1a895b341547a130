"""Fixtures of the browser tests. Nothing here skips: without a browser or an adapter the run fails.

dist          dist/, built once and frozen for the session
server        its address on loopback, with the page's Content-Security-Policy; tests/browser/ at /__test__/
browser       headless Chromium with WebGPU, as playwright.config.py says
browser_without_webgpu
context       a fresh profile of it (its own IndexedDB)
page          a page of that profile; see PageLog
page_log      what went wrong on `page`; a test that provokes an error takes it out of `page_log.problems`
pyodide_page  Python in Pyodide in a worker, with the wheel; one for the session (see harness.py)
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Literal

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright, Request, async_playwright

from tests.browser.harness import PyodidePage
from tools.browser import adapter_name, config, launch
from tools.build_dist import build
from tools.common import DIST, ToolError
from tools.serve import in_background, open_server

HERE = Path(__file__).parent


class PageLog:
    """What a page did that a test should hear of: console errors, uncaught ones, requests to other origins."""

    def __init__(self, page: Page, origin: str) -> None:
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._origin = origin
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.problems.append(f"uncaught: {error}"))
        page.on("crash", lambda _: self.problems.append("the page crashed"))
        # The context sees the workers' requests too.
        page.context.on("request", self._on_request)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            place = message.location
            self.problems.append(f"console: {message.text} ({place['url']}:{place['lineNumber']})")

    def _on_request(self, request: Request) -> None:
        self.requests.append(request.url)
        if not request.url.startswith((self._origin, "blob:", "data:")):
            self.problems.append(f"request outside the page's origin: {request.url}")


def check(log: PageLog) -> None:
    """Fail the test that left problems behind."""
    assert not log.problems, "the page reported problems:\n" + "\n".join(log.problems)


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dist/, brought up to date; a frozen copy by hard links, so that a build meanwhile changes nothing."""
    build(cdn=False, folder=DIST)
    frozen = tmp_path_factory.mktemp("frozen") / "dist"
    try:
        shutil.copytree(DIST, frozen, copy_function=os.link)
    except OSError:  # another file system
        shutil.copytree(DIST, frozen, dirs_exist_ok=True)
    return frozen


@pytest.fixture(scope="session")
def server(dist: Path) -> Iterator[str]:
    """The address of the served dist/, ending in a slash."""
    served = open_server(dist, port=0, extra={"/__test__/": HERE})
    in_background(served)
    yield served.url
    served.shutdown()
    served.server_close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def playwright() -> AsyncIterator[Playwright]:
    """Playwright's driver."""
    async with async_playwright() as driver:
        yield driver


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(playwright: Playwright, server: str) -> AsyncIterator[Browser]:
    """Chromium with a WebGPU adapter, or the end of the run."""
    try:
        opened = await launch(playwright)
        name = await adapter_name(opened, f"{server}__test__/harness.html")
    except ToolError as error:
        pytest.exit(f"the browser tests cannot run: {error}", returncode=1)
    print(f"\nChromium {opened.version}, WebGPU adapter: {name}")
    yield opened
    await opened.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser_without_webgpu(playwright: Playwright) -> AsyncIterator[Browser]:
    """Chromium whose pages have no WebGPU adapter."""
    try:
        opened = await launch(playwright, webgpu=False)
    except ToolError as error:
        pytest.exit(f"the browser tests cannot run: {error}", returncode=1)
    yield opened
    await opened.close()


async def open_context(browser: Browser, server: str, offline: bool = False) -> BrowserContext:
    """Return a fresh profile with the configured viewport and time limits; relative addresses work in it.

    `offline`: with service workers, which hide requests from a test and take room in the store.
    """
    workers: Literal["allow", "block"] = "allow" if offline else "block"
    context = await browser.new_context(
        base_url=server, viewport=config.VIEWPORT, accept_downloads=True, service_workers=workers
    )
    context.set_default_timeout(config.ACTION_TIMEOUT_MS)
    return context


@pytest_asyncio.fixture(loop_scope="session")
async def context(browser: Browser, server: str) -> AsyncIterator[BrowserContext]:
    """A fresh profile: no stored data of another test."""
    opened = await open_context(browser, server)
    yield opened
    await opened.close()


@pytest_asyncio.fixture(loop_scope="session")
async def _page_and_log(context: BrowserContext, server: str) -> AsyncIterator[tuple[Page, PageLog]]:
    page = await context.new_page()
    log = PageLog(page, server)
    yield page, log
    check(log)


@pytest.fixture
def page(_page_and_log: tuple[Page, PageLog]) -> Page:
    """An empty page; `await page.goto("/")` opens the demo."""
    return _page_and_log[0]


@pytest.fixture
def page_log(_page_and_log: tuple[Page, PageLog]) -> PageLog:
    """The log of `page`."""
    return _page_and_log[1]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def _session_pyodide(browser: Browser, server: str) -> AsyncIterator[tuple[PyodidePage, PageLog]]:
    context = await open_context(browser, server)
    page = await context.new_page()
    log = PageLog(page, server)
    await page.goto("/__test__/harness.html")
    harness = PyodidePage(page)
    await harness.call("ready")
    yield harness, log
    await context.close()


@pytest.fixture
def pyodide_page(_session_pyodide: tuple[PyodidePage, PageLog]) -> Iterator[PyodidePage]:
    """Python in Pyodide; console errors and foreign requests during the test fail it."""
    harness, log = _session_pyodide
    log.problems.clear()
    yield harness
    check(log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the browser tests after all others, and mark them."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)
    items.sort(key=lambda item: HERE in item.path.parents)
