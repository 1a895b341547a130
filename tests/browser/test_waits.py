"""Whatever takes over 300 ms shows that it goes on, from then until its end, where people can see it.

The worker answers late here, so that every action takes that long; each frame is looked at, so that no time counts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from playwright.async_api import Page

from tests.browser.story_page import NUMPY, TEXT, StoryPage
from tests.browser.test_story_faults import change_worker

SLOW = """
    const settled = settle;
    settle = (coroutine) => new Promise((resolve) => setTimeout(resolve, 350)).then(() => settled(coroutine));
"""
# From the first click on, note for each frame whether something says that work goes on; until `done` is on the page.
# A frame right after a long task is passed over: the bar's own timer has had no chance before it.
WATCH = """([selector, text]) => {
    const seen = (element) => {
        const { top, bottom } = element.getBoundingClientRect();
        return element.checkVisibility() && bottom > 0 && top < innerHeight;
    };
    const done = () => [...document.querySelectorAll(selector)].some(
        (element) => element.checkVisibility() && element.textContent.includes(text));
    const busy = () => [...document.querySelectorAll("progress:indeterminate, #boot-bar, [aria-busy=true]")].some(seen);
    globalThis.watched = new Promise((resolve, reject) => {
        if (done()) reject(new Error(`${selector} says "${text}" already`));
        setTimeout(() => reject(new Error(`${selector} never says "${text}"`)), 60_000);
        let started = 0, last = 0;
        const idle = [];
        addEventListener("click", () => (started ||= performance.now()), { capture: true, once: true });
        addEventListener("change", () => (started ||= performance.now()), { capture: true, once: true });
        const frame = () => {
            const now = performance.now(); // not when the frame was due, which may be long ago on a busy machine
            if (started && done()) return resolve({ took: now - started, idle });
            if (started && now - started > 300 && now - last < 100 && !busy()) idle.push(Math.round(now - started));
            last = now;
            requestAnimationFrame(frame);
        };
        requestAnimationFrame(frame);
    });
    watched.catch(() => {});
}"""


async def watch(page: Page, act: Callable[[], Awaitable[Any]], done: tuple[str, str]) -> None:
    """Do something and assert that it was seen to go on until `done`, (selector, text), is there.

    Raises:
        AssertionError: frames, in ms after the start, in which nothing said so; or it was too quick to tell.
    """
    await page.evaluate("document.querySelectorAll('.toast').forEach((toast) => (toast.hidden = true))")
    await page.evaluate(WATCH, list(done))
    await act()
    found = await page.evaluate("watched")
    assert found["took"] > 300, done
    assert not found["idle"], (done, found)


def notice(text: str) -> tuple[str, str]:
    return "[data-testid=notice]", text


async def test_every_wait_shows_that_it_goes_on(page: Page, tmp_path: Path) -> None:
    await change_worker(page.context, SLOW)
    story = StoryPage(page)
    press = story.press
    await page.goto(NUMPY, wait_until="domcontentloaded")
    await watch(page, lambda: page.get_by_role("heading", name="Evermind").click(), ("[data-testid=status]", "Ready"))
    await watch(page, lambda: press(story.part("shipped-start")), notice("It can write at once"))
    await story.ready()
    await story.part("train-text").fill(TEXT)
    await watch(page, lambda: press(story.part("train-start")), ("[data-testid=train-status]", "Done"))
    await story.ready()
    await watch(page, lambda: press(story.part("save")), notice("Saved My model"))  # not the shipped one's name
    await story.ready()
    (tmp_path / "one.txt").write_text(TEXT.upper())
    files = story.part("personalize-file")
    await watch(page, lambda: files.set_input_files(tmp_path / "one.txt"), ("#personalize-count", "one.txt"))
    await story.learn("personalize", 1)
    await story.ready()
    await story.part("max-tokens").fill("4")
    written = "[data-testid=compare-adapter]:not([aria-busy])"
    await watch(page, lambda: press(story.part("compare")), (written, "It was"))
    await story.ready()
    await watch(page, lambda: press(story.part("show-tokens")), ("[data-testid=tokens] button", ""))
    await story.ready()
    await watch(page, lambda: press(story.part("mood-toggle")), ("[data-testid=mood-effect]", "temperature"))
    await story.ready()
    await press(story.persona("My voice", "more"))
    await watch(page, lambda: press(story.persona("My voice", "duplicate")), notice("is a copy"))
    await story.ready()
    await watch(page, lambda: press(story.persona("My voice", "texts")), ("#texts-dialog[open]", ""))
    await page.keyboard.press("Escape")
    await press(story.persona("My voice 2", "more"))
    await watch(page, lambda: press(story.persona("My voice 2", "delete")), notice("Deleted"))
    await story.ready()
    async with page.expect_download() as download:
        await watch(page, lambda: press(story.part("backup")), notice("Backed up"))
    await (await download.value).save_as(tmp_path / "backup.zip")
    await story.ready()
    exported = await story.export("My voice", tmp_path)
    await story.ready()
    await watch(page, lambda: story.part("restore").set_input_files(tmp_path / "backup.zip"), notice("Restored"))
    await story.ready()
    await watch(page, lambda: story.part("import-file").set_input_files(exported), notice("Imported"))
    await story.ready()
    await watch(page, lambda: press(story.item("My voice").get_by_test_id("load")), notice("Loaded"))
    await story.ready()
