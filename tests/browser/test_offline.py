"""The page without a network, and two versions of it: what is served always comes from one of them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.browser.conftest import PageLog, check, open_context
from tests.browser.story_page import StoryPage
from tests.browser.test_story_faults import change_worker
from tools.build_dist import VERSION_PLACE
from tools.serve import in_background, open_server

CACHES = "async () => (await caches.keys()).filter((name) => name.startsWith('evermind-'))"
ACTIVE = "async () => (await navigator.serviceWorker.ready).active.state"
COLOUR = "getComputedStyle(document.documentElement).getPropertyValue('--paper')"


@pytest_asyncio.fixture(loop_scope="session")
async def own(browser: Browser, dist: Path, tmp_path: Path) -> AsyncIterator[tuple[Page, Path, PageLog]]:
    """A page with service workers, and the folder that it is served from, which a test may change."""
    folder = tmp_path / "site"
    shutil.copytree(dist, folder, copy_function=os.link, ignore=shutil.ignore_patterns("models"))
    served = open_server(folder, port=0)
    in_background(served)
    context = await open_context(browser, served.url, offline=True)
    page = await context.new_page()
    log = PageLog(page, served.url)
    yield page, folder, log
    check(log)
    await context.close()
    served.shutdown()
    served.server_close()


async def keep_offline(page: Page) -> None:
    """Wait until the service worker has everything."""
    assert await page.evaluate(ACTIVE) in ("activating", "activated")
    assert len(await page.evaluate(CACHES)) == 1


async def test_flight_mode(own: tuple[Page, Path, PageLog]) -> None:
    page, _, log = own
    story = StoryPage(page)
    await story.open("/?backend=numpy")
    await keep_offline(page)
    await page.context.set_offline(True)
    await page.reload()
    await story.ready()
    await story.part("sample-text").click()
    await story.learn("train", 1)
    await story.part("max-tokens").fill("8")
    await story.write()
    assert len(await story.part("output").inner_text()) > 8
    log.problems[:] = [p for p in log.problems if "service-worker.js" not in p]  # it cannot look for a new version


def publish(folder: Path, colour: str) -> None:
    """Put a new version of the site into the folder: another style sheet, and what belongs to it."""

    def put(name: str, data: bytes) -> None:
        (folder / name).unlink()  # a hard link to the other tests' copy
        (folder / name).write_bytes(data)

    before = (folder / "evermind.json").read_bytes()
    manifest = json.loads(before)
    style = re.sub(rb"--paper: #\w+", f"--paper: {colour}".encode(), (folder / "style.css").read_bytes())
    put("style.css", style)
    manifest["files"]["style.css"] = hashlib.sha256(style).hexdigest()
    put("evermind.json", json.dumps(manifest).encode())
    versions = [hashlib.sha256(data).hexdigest().encode() for data in (before, (folder / "evermind.json").read_bytes())]
    worker = (folder / "service-worker.js").read_bytes()
    assert worker.count(versions[0]) == 1
    put("service-worker.js", worker.replace(*versions))


async def test_a_new_version_waits_and_then_comes_whole(own: tuple[Page, Path, PageLog]) -> None:
    page, folder, _ = own
    story = StoryPage(page)
    await story.open("/?backend=numpy")
    await keep_offline(page)
    await page.reload()
    await story.ready()
    old = await page.evaluate(COLOUR)
    publish(folder, "#123456")
    await page.evaluate("async () => void (await navigator.serviceWorker.ready).update()")
    await expect(story.part("notice")).to_contain_text("A new version", timeout=60_000)
    assert "#123456" not in await page.evaluate("async () => (await fetch('style.css')).text()")
    assert await page.evaluate(COLOUR) == old
    await story.part("undo").click()
    await expect(story.part("status")).not_to_have_text(re.compile("^Ready"), timeout=30_000)
    await story.ready()
    assert await page.evaluate(COLOUR) == "#123456"
    assert len(await page.evaluate(CACHES)) == 1


async def test_half_a_new_version_changes_nothing(own: tuple[Page, Path, PageLog]) -> None:
    page, folder, log = own
    story = StoryPage(page)
    await story.open("/?backend=numpy")
    await keep_offline(page)
    publish(folder, "#654321")
    (folder / "style.css").write_bytes(b"/* the server has not got this far */")
    await page.evaluate("async () => (await navigator.serviceWorker.ready).update().then(() => {}, () => {})")
    await page.wait_for_timeout(3000)
    assert len(await page.evaluate(CACHES)) == 1
    await page.reload()
    await story.ready()
    assert await page.evaluate(COLOUR) != "#654321"
    log.problems.clear()  # the browser reports the refused installation


BARE = """
    delete Object.getPrototypeOf(navigator).serviceWorker;
    delete Object.getPrototypeOf(navigator).gpu;
    delete WebAssembly.Suspending;
    delete WebAssembly.promising;
    delete globalThis.SharedArrayBuffer;
    const refuse = () => { throw new DOMException("The operation is insecure.", "SecurityError"); };
    Object.defineProperty(globalThis, "caches", { get: refuse });
"""
HAS = """() => ["serviceWorker" in navigator, "gpu" in navigator, "Suspending" in WebAssembly,
    "SharedArrayBuffer" in globalThis]"""


async def test_a_bare_browser_is_enough(page: Page) -> None:
    # Of the page and of its worker: no service worker, no WebGPU, no JSPI, no shared memory; the caches are forbidden.
    await page.add_init_script(BARE)
    await change_worker(page.context, BARE)
    story = StoryPage(page)
    await story.open()
    for realm in (page, page.workers[0]):
        assert not any(await realm.evaluate(HAS))
    await expect(story.part("backend")).to_contain_text("NumPy")
    await expect(story.part("storage-list")).to_contain_text("This page with Python, to work without a network0 bytes")
    await expect(story.part("error")).to_be_hidden()
    await story.part("train-text").fill("It was the best of times, it was the worst of times. " * 20)
    await story.learn("train", 1)
    await story.part("max-tokens").fill("8")
    await story.write()
    await story.save("Times")
    await page.reload()
    await story.ready()
    await story.load("Times")


def test_the_worker_names_its_version(dist: Path) -> None:
    version = hashlib.sha256((dist / "evermind.json").read_bytes()).hexdigest()
    worker = (dist / "service-worker.js").read_bytes()
    assert version.encode() in worker
    assert VERSION_PLACE not in worker
    files = json.loads((dist / "evermind.json").read_text())["files"]
    assert {"index.html", "app.mjs", "worker.mjs", "pyodide/pyodide.asm.wasm", "views/write.mjs"} <= set(files)
    for name, digest in files.items():
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest
