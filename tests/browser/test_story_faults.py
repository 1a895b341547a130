"""What the page says and keeps when something goes wrong: bad texts and files, a full disk, a missing GPU or file."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, Route, expect

from tests.browser.conftest import PageLog, check, open_context
from tests.browser.story_page import StoryPage

NUMPY = "/?backend=numpy"  # what the page says is the same on both, and NumPy starts faster
TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 12


@pytest_asyncio.fixture(loop_scope="session")
async def story(page: Page) -> AsyncIterator[StoryPage]:
    """The page, ready, with a model that had a step or two."""
    story = StoryPage(page)
    await story.open(NUMPY)
    await story.part("train-text").fill(TEXT)
    await story.learn("train", 1)
    yield story


async def test_bad_texts_get_a_sentence_and_the_model_stays(story: StoryPage, tmp_path: Path) -> None:
    await story.part("prompt").fill("It was")
    await story.write()
    text = await story.part("output").inner_text()
    for pasted, words in (("", "no text yet.*Paste some"), ("Hello", "too short.*1 word"), ("  \n ", "no text yet")):
        for job in ("train", "personalize"):
            await story.part(f"{job}-text").fill(pasted)
            await story.part(f"{job}-start").click()
            await story.expect_error(words)
    photo = tmp_path / "photo.txt"
    photo.write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR")
    latin = tmp_path / "latin.txt"
    latin.write_bytes("café ".encode("latin-1") * 100)
    for file, words in ((photo, r"photo\.txt looks like a binary file"), (latin, r"latin\.txt is not UTF-8")):
        await story.part("train-file").set_input_files(file)
        await story.expect_error(words)
    await story.write()
    assert await story.part("output").inner_text() == text

    # A setting that is refused is called what it is called on the page.
    await story.part("reject").click()
    await story.page.locator("#sampling summary").click()
    await story.part("repetition-penalty").fill("-1")
    await story.part("generate").click()
    await story.expect_error("^Repetition must be above 0")
    await expect(story.part("output")).not_to_contain_text("(nothing more)")


async def test_ck1_ck8_bad_files_are_called_what_they_are_and_stop_no_other(story: StoryPage, tmp_path: Path) -> None:
    await story.part("personalize-text").fill(TEXT.upper())
    await story.part("adapter-name").fill("Loud")
    await story.learn("personalize", 1)
    await story.save("Times")
    good = [await story.export(name, tmp_path) for name in ("Loud", "Times")]
    damaged = {
        "404.model.zip": (b"<!DOCTYPE html><title>404 Not Found</title>", "web page.*404.*Download"),
        "cut.model.zip": (good[1].read_bytes()[:5000], "damaged or cut off"),
        "empty.lora": (b"", "is empty"),
        "noise.evl0": (bytes(range(256)), "not a model, adapter or tokenizer"),
    }
    for name, (data, words) in damaged.items():
        (tmp_path / name).write_bytes(data)
        await story.part("import-file").set_input_files(tmp_path / name)
        await story.expect_error(words)
    await expect(story.part("saved-item")).to_have_count(2)
    await story.item("Times").get_by_test_id("delete").click()
    await expect(story.part("notice")).to_contain_text("Deleted Times. Loud stays here, but needs this model")
    await expect(story.item("Loud")).to_contain_text("needs its model")
    await story.load("Loud")  # its model is still in memory
    await story.page.reload()
    await story.ready()
    await story.item("Loud").get_by_test_id("load").click()
    await story.expect_error("model that “Loud” was trained on is not in this browser. Import that model")
    bad = [tmp_path / "a.model.zip", tmp_path / "b.adapter.zip"]
    for path in bad:
        path.write_bytes(good[0].read_bytes()[:3000])
    await story.part("import-file").set_input_files([bad[0], bad[1], *good])
    await expect(story.part("notice")).to_contain_text(re.compile("the model Times.*the adapter Loud 2"))
    await story.expect_error(r"a\.model\.zip is damaged.*b\.adapter\.zip is damaged")
    await expect(story.item("Loud")).to_contain_text("Adapter of Times")
    await expect(story.item("Loud")).not_to_contain_text("needs its model")

    deep = tmp_path / "deep.json"
    deep.write_text('{"a": [' * 50_000 + '{"text": "at the very bottom"}' + "]}" * 50_000, encoding="utf-8")
    for name in ("bad.json", "worse.json"):
        (tmp_path / name).write_text("{", encoding="utf-8")
    files = [tmp_path / "bad.json", deep, tmp_path / "worse.json"]
    await story.part("personalize-file").set_input_files(files)
    await expect(story.part("personalize-text")).to_have_value("at the very bottom")
    await story.expect_error(r"bad\.json is not valid JSON.*worse\.json is not valid JSON")


async def test_tr13_an_adapter_of_another_base_is_refused(story: StoryPage, tmp_path: Path) -> None:
    await story.part("personalize-text").fill(TEXT.upper())
    await story.part("adapter-name").fill("Loud")
    await story.learn("personalize", 1)
    await story.save("Times")
    adapter = await story.export("Loud", tmp_path)
    for name in ("Loud", "Times"):
        await story.item(name).get_by_test_id("delete").click()
        await expect(story.part("notice")).to_contain_text(f"Deleted {name}")
    await story.part("train-text").fill(TEXT[::-1])
    await story.part("train-start").click()
    await expect(story.page.locator("#confirm-text")).to_contain_text("not saved yet")
    await story.part("confirm-ok").click()
    await expect(story.part("train-status")).to_have_text(re.compile("step [1-9]"), timeout=60_000)
    await story.part("train-stop").click()
    await story.ready()
    await story.part("import-file").set_input_files(adapter)
    await story.expect_error("belongs to another model")
    await expect(story.part("saved-item")).to_have_count(0)


async def test_db1_a_full_disk_says_so_and_what_was_saved_still_loads(story: StoryPage, server: str) -> None:
    session = await story.page.context.new_cdp_session(story.page)
    # Room for one model of 0.75 MB, set before the first save: Chromium remembers for a while how much there was.
    await session.send("Storage.overrideQuotaForOrigin", {"origin": server.rstrip("/"), "quotaSize": 2**20})
    await story.save("Times")
    await story.part("save-name").fill("Copy")
    await story.part("save").click()
    await story.expect_error(r"storage is full: need .* MiB, free .*; delete")
    await expect(story.part("saved-item")).to_have_count(1)
    await story.load("Times")
    await story.write()
    assert len(await story.part("output").inner_text()) > 20


async def test_db4_data_that_the_browser_dropped_is_missed_by_name(story: StoryPage, server: str) -> None:
    await story.save("Times")
    session = await story.page.context.new_cdp_session(story.page)
    await story.page.goto("/__test__/blank.html")
    await session.send("Storage.clearDataForOrigin", {"origin": server.rstrip("/"), "storageTypes": "indexeddb"})
    await story.open(NUMPY)
    await story.expect_error("Times is no longer in this browser")
    await expect(story.part("generate")).to_be_disabled()


async def test_py10_a_wheel_that_is_missing_on_the_server_is_named(page: Page, page_log: PageLog) -> None:
    async def gone(route: Route) -> None:
        await route.fulfill(status=404, content_type="text/html", body="<h1>Not found</h1>")

    await page.context.route(re.compile(r"/pyodide/regex-.*\.whl$"), gone)
    await page.goto(NUMPY)
    await expect(page.get_by_test_id("error")).to_contain_text(
        re.compile(r"regex-\S+\.whl not found at http\S+ \(HTTP 404\)"), timeout=60_000
    )
    await expect(page.get_by_test_id("status")).to_have_text("It could not start.")
    page_log.problems.clear()  # Pyodide reports the failed download on the console


async def change_worker(context: BrowserContext, code: str) -> None:
    """Run `code` in the page's worker before anything of its own: the way to take a browser's features away there."""

    async def changed(route: Route) -> None:
        response = await route.fetch()
        await route.fulfill(response=response, body=f"{await response.text()}\n{code}")

    # Imports run before a module's own code, but nothing of ours looks at these features until `boot` is called.
    await context.route(re.compile(r"/worker\.mjs$"), changed)


async def test_gp6_learning_survives_a_lost_gpu(page: Page) -> None:
    keep_device = """
        const request = GPUAdapter.prototype.requestDevice;
        GPUAdapter.prototype.requestDevice = async function (...options) {
            return (self.lastDevice = await request.apply(this, options));
        };"""
    await change_worker(page.context, keep_device)
    story = StoryPage(page)
    await story.open("/?backend=webgpu")
    await story.part("train-text").fill(TEXT)
    await story.learn("train", 1)
    await story.part("prompt").fill("It was")
    await story.part("max-tokens").fill("8")
    await story.write()
    text = await story.part("output").inner_text()

    await story.part("train-text").fill(TEXT.upper())
    await story.part("train-start").click()
    await story.part("confirm-ok").click()
    await expect(story.part("train-status")).to_have_text(re.compile("step [1-9]"), timeout=60_000)
    await page.workers[0].evaluate("lastDevice.destroy()")
    await expect(story.part("notice")).to_contain_text(
        re.compile(r"GPU lost at step \d+ \(destroyed.*last checkpoint: step \d+.*goes on from there with WebGPU"),
        timeout=60_000,
    )
    await expect(story.part("train-status")).to_have_text(re.compile("step [1-9]"), timeout=60_000)
    await story.part("train-stop").click()
    await expect(story.part("train-status")).to_have_text(re.compile("Stopped and kept"), timeout=60_000)
    await expect(story.part("backend")).to_have_text(re.compile(r"WebGPU · \w+"))
    await story.write()
    learned = await story.part("output").inner_text()
    assert learned != text

    # While it writes, the text is given up, and the model is brought back.
    await story.part("max-tokens").fill("200")
    await story.part("generate").click()
    await page.workers[0].evaluate("lastDevice.destroy()")
    await story.expect_error(r"GPU lost \(destroyed.*the model is as it was before.*Try again", within=60_000)
    await story.part("max-tokens").fill("8")
    await story.write()
    assert await story.part("output").inner_text() == learned


@pytest.mark.parametrize(("wish", "words"), [("cuda", "no backend called “cuda”"), ("webgpu", "WebGPU not available")])
async def test_a_backend_that_cannot_be_had_is_said_plainly(
    wish: str, words: str, browser_without_webgpu: Browser, server: str
) -> None:
    context = await open_context(browser_without_webgpu, server)
    try:
        page = await context.new_page()
        log = PageLog(page, server)
        story = StoryPage(page)
        await story.open(f"/?backend={wish}")
        await expect(story.part("backend")).to_contain_text("NumPy")
        await expect(page.locator("#backend-reason")).to_contain_text(
            re.compile(f"{words}.*only slower", re.IGNORECASE)
        )
        await expect(story.part("personalize-length")).to_have_value("quick")
        check(log)
    finally:
        await context.close()


async def test_py6_the_page_needs_no_jspi(page: Page) -> None:
    await change_worker(page.context, "delete WebAssembly.Suspending; delete WebAssembly.promising;")
    story = StoryPage(page)
    await story.open(NUMPY)
    assert not await page.workers[0].evaluate("'Suspending' in WebAssembly")
    await story.part("train-text").fill(TEXT)
    await story.learn("train", 1)
    await story.part("max-tokens").fill("8")
    await story.write()  # from an empty prompt
    assert await story.part("output").inner_text()
    await story.save("Times")


async def test_gp11_a_browser_with_webgpu_but_no_adapter_uses_numpy(browser: Browser, server: str) -> None:
    context = await open_context(browser, server)
    try:
        page = await context.new_page()
        await change_worker(context, "navigator.gpu.requestAdapter = async () => null;")
        story = StoryPage(page)
        await story.open()
        await expect(story.part("backend")).to_contain_text("NumPy")
        await expect(page.locator("#backend-reason")).to_contain_text(re.compile("WebGPU not available: .*adapter"))
    finally:
        await context.close()


def test_samples_name_author_and_title(dist: Path) -> None:
    for name, words in (("alice", ("ALICE", "Lewis Carroll")), ("time-machine", ("TIME MACHINE", "H. G. Wells"))):
        text = (dist / "samples" / f"{name}.txt").read_text(encoding="utf-8")
        assert all(word in text[:200] for word in words)
        assert len(text) < 16_000
