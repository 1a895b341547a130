"""The page's whole story in Chromium, from dist/: on WebGPU, and again in a browser without it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.browser.conftest import PageLog, check, open_context
from tests.browser.story_page import StoryPage

# How much of the time the page's own thread may be late for a 20 ms timer while the worker trains. Training in the
# page itself would make it nearly all of it; a single late timer only says that the machine is busy.
MAX_LATE = 0.3
WATCH_LATENESS = """() => {
    const started = performance.now();
    let last = started, late = 0;
    setInterval(() => {
        const now = performance.now();
        late += Math.max(0, now - last - 40);
        last = now;
        globalThis.lateness = late / (now - started);
    }, 20);
}"""


@pytest.mark.parametrize("backend", ["webgpu", "numpy"])
async def test_the_whole_story(
    backend: str, browser: Browser, browser_without_webgpu: Browser, server: str, tmp_path: Path
) -> None:
    context = await open_context(browser if backend == "webgpu" else browser_without_webgpu, server)
    try:
        page = await context.new_page()
        log = PageLog(page, server)
        story = StoryPage(page)
        # A software adapter is only used where it is asked for.
        await story.open("/?backend=webgpu" if backend == "webgpu" else "/")
        await expect_backend(story, backend)
        await teach(story)
        base = await write_twice_the_same(story)
        adapted = await personalize(story, base)
        await keep(story, base, adapted, tmp_path)
        check(log)
    finally:
        await context.close()


async def expect_backend(story: StoryPage, backend: str) -> None:
    shown = story.part("backend")
    if backend == "webgpu":
        await expect(shown).to_have_text(re.compile(r"WebGPU · \w+"))
        return
    await expect(shown).to_contain_text("NumPy")
    await expect(story.page.locator("#backend-reason")).to_contain_text(
        re.compile("WebGPU not available.* only slower")
    )


async def teach(story: StoryPage) -> None:
    """Stop keeps what was learned, and the page's thread stays free."""
    await expect(story.part("train-start")).to_be_enabled()
    await expect(story.part("generate")).to_be_disabled()
    await story.part("sample-text").click()
    await expect(story.page.locator("#train-count")).to_contain_text("Lewis Carroll")
    await expect(story.page.locator("#train-count")).not_to_contain_text("a few pages work best")
    await story.page.evaluate(WATCH_LATENESS)
    before, after = await story.learn("train", 8)
    assert await story.page.evaluate("lateness") < MAX_LATE
    assert after < before - 0.5
    assert float(await story.part("train-loss").inner_text()) < before
    await expect(story.part("train-speed")).to_have_text(re.compile(r"^[\d,]+ tokens/s$"))
    await expect(story.part("train-curve")).to_have_attribute("aria-label", re.compile(r"Loss curve: from 6\.\d\d to"))
    await expect(story.part("train-curve").locator("canvas")).to_be_visible()


async def write_twice_the_same(story: StoryPage) -> str:
    output = story.part("output")
    await story.part("prompt").fill("Alice was")
    await story.part("max-tokens").fill("30")
    await story.write()
    text = await output.inner_text()
    assert text.startswith("Alice was")
    assert len(text) > 30
    await story.write()
    assert await output.inner_text() == text
    await story.part("seed").fill("2")
    await story.write()
    assert await output.inner_text() != text
    await story.part("seed").fill("1")
    return text


async def personalize(story: StoryPage, base: str) -> str:
    """The adapter learns, writes otherwise, and can be switched off."""
    await expect(story.part("adapter-toggle")).to_be_disabled()
    await story.part("personalize-sample").click()
    await expect(story.page.locator("#personalize-count")).to_contain_text("H. G. Wells")
    await story.part("adapter-name").fill("Wells")
    # On text of the second author, the base's own loss is the one before.
    before, after = await story.learn("personalize", 8)
    assert after < before
    await expect(story.part("adapter-toggle")).to_be_checked()
    await story.write("compare")
    assert await story.part("compare-base").inner_text() == base
    adapted = await story.part("compare-adapter").inner_text()
    assert adapted != base
    await expect(story.page.locator("#compare-adapter-label")).to_have_text("With “Wells”")
    for switch, text in ((False, base), (True, adapted)):
        await story.part("adapter-toggle").set_checked(switch)
        await expect(story.part("writer")).to_have_text("Writes: Wells" if switch else "Writes: the model alone")
        await story.write()
        assert await story.part("output").inner_text() == text
    return adapted


async def keep(story: StoryPage, base: str, adapted: str, folder: Path) -> None:
    """Save, reload, rename, export, delete with undo, import: it writes the same each time."""
    await expect(story.part("saved-list")).to_have_text("Nothing saved yet.")
    await story.save("Alice")
    await expect(story.item("Alice")).to_contain_text("Model with its tokenizer")
    await expect(story.item("Wells")).to_contain_text("Adapter of Alice")

    await story.page.reload()
    await story.ready()
    await expect(story.part("generate")).to_be_disabled()
    await story.load("Wells")
    await set_prompt(story)
    await story.write()
    assert await story.part("output").inner_text() == adapted

    await story.item("Alice").get_by_test_id("rename").click()
    await story.part("rename-name").fill("Lewis")
    await story.part("rename-name").press("Enter")
    await expect(story.item("Wells")).to_contain_text("Adapter of Lewis")

    files = [await story.export(name, folder) for name in ("Lewis", "Wells")]
    assert [file.name for file in files] == ["Lewis.model.zip", "Wells.adapter.zip"]
    await story.item("Wells").get_by_test_id("delete").click()
    await expect(story.part("saved-item")).to_have_count(1)
    await story.part("undo").click()
    await expect(story.item("Wells")).to_be_visible()
    for name in ("Wells", "Lewis"):
        await story.item(name).get_by_test_id("delete").click()
        await expect(story.part("notice")).to_contain_text(f"Deleted {name}")
    await expect(story.part("saved-item")).to_have_count(0)

    await story.page.reload()
    await story.ready()
    await story.part("import-file").set_input_files(files[::-1])  # adapter first, as a file chooser may sort them
    await expect(story.part("saved-item")).to_have_count(2)
    await story.load("Lewis")
    await set_prompt(story)
    await story.write()
    assert await story.part("output").inner_text() == base


async def set_prompt(story: StoryPage) -> None:
    await story.part("prompt").fill("Alice was")
    await story.part("max-tokens").fill("30")
