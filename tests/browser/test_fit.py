"""The page fits everybody: axe on every screen, light and dark, 320 px, right-to-left text, a free thread."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.browser.story_page import StoryPage
from tools.common import NODE_MODULES

NUMPY = "/?backend=numpy"
TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 12
AXE = NODE_MODULES / "axe-core" / "axe.min.js"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
MAX_TASK_MS = 100
LONG_TASKS = """() => {
    globalThis.tasks = [];
    new PerformanceObserver((list) => tasks.push(...list.getEntries().map((entry) => entry.duration)))
        .observe({ type: "longtask" });
}"""
# How far any element moves that was there before, while something is shown.
SHIFT = """() => {
    globalThis.shift = 0;
    new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) if (!entry.hadRecentInput) globalThis.shift += entry.value;
    }).observe({ type: "layout-shift" });
}"""


async def violations(page: Page) -> list[str]:
    """What axe finds on what is shown now."""
    found: dict[str, Any] = await page.evaluate(
        "(tags) => axe.run(document, { runOnly: tags, resultTypes: ['violations'] })", TAGS
    )
    return [
        f"{v['id']}: {n['html'][:160]} {n['failureSummary'][:200]}" for v in found["violations"] for n in v["nodes"]
    ]


async def add_axe(page: Page) -> None:
    # The page's policy allows no inline script: the driver evaluates it instead.
    await page.evaluate(AXE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 320)])
async def test_axe_finds_nothing_on_any_screen(page: Page, scheme: Any, width: int) -> None:
    await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    await page.set_viewport_size({"width": width, "height": 800})
    story = StoryPage(page)
    await story.open(NUMPY)
    await add_axe(page)
    assert await violations(page) == []  # the first visit
    await story.part("train-text").fill(TEXT)
    await story.learn("train", 1)
    await story.save("Times")
    for name, text in (("One", TEXT.upper()), ("Two", TEXT[::-1])):
        await story.part("personalize-text").fill(text)
        await story.part("adapter-name").fill(name)
        await story.learn("personalize", 1)
        await story.ready()
    await story.part("max-tokens").fill("8")
    await story.write("compare")
    await story.write()
    await page.locator("#sampling summary").click()
    await story.part("show-tokens").click()
    await expect(story.part("tokens").get_by_role("button").first).to_be_visible()
    await story.part("mood-toggle").check()
    await expect(story.part("mood-bars").locator(".bar-row")).to_have_count(8)
    await story.ready()
    await story.part("train-text").fill("")
    await story.part("train-start").click()
    await expect(story.part("error")).to_be_visible()
    assert await violations(page) == []  # everything open at once, with an error
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    for button, dialog in (("persona-record", "record"), ("persona-texts", "texts"), ("persona-rename", "rename")):
        await story.part(button).first.click()
        await expect(page.locator(f"#{dialog}-dialog")).to_be_visible()
        if dialog == "record":
            await expect(story.part("experts").locator(".bar-row").first).to_be_visible()
        assert await violations(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        await page.keyboard.press("Escape")
        await expect(page.locator(f"#{dialog}-dialog")).to_be_hidden()


async def test_the_story_by_keyboard_alone(page: Page) -> None:
    story = StoryPage(page)
    await story.open(NUMPY)

    async def tab_to(testid: str) -> None:
        for _ in range(60):
            await page.keyboard.press("Tab")
            if await page.evaluate("document.activeElement?.dataset.testid") == testid:
                return
        raise AssertionError(f"{testid} cannot be reached with Tab")

    await tab_to("train-text")
    await page.keyboard.insert_text(TEXT)
    await tab_to("train-start")
    await page.keyboard.press("Enter")
    await expect(story.part("train-stop")).to_be_enabled()
    await expect(story.part("train-status")).to_contain_text("step", timeout=60_000)
    await tab_to("train-stop")
    await page.keyboard.press("Enter")
    await story.ready()
    await tab_to("prompt")
    await page.keyboard.insert_text("It was")
    await page.keyboard.press("Control+Enter")
    await expect(story.part("take-word")).to_be_enabled(timeout=30_000)
    await page.keyboard.press("ArrowRight")
    assert len(await story.part("prompt").input_value()) > len("It was")


async def test_right_to_left_text_and_long_words(page: Page) -> None:
    await page.set_viewport_size({"width": 320, "height": 640})
    story = StoryPage(page)
    await story.open(NUMPY)
    hebrew = "בראשית ברא אלהים את השמים ואת הארץ " * 12
    await story.part("train-text").fill(hebrew + "ש" * 300)
    assert await story.part("train-text").evaluate("(box) => getComputedStyle(box).direction") == "rtl"
    await story.learn("train", 1)
    await story.part("prompt").fill("בראשית " + "ש" * 200)
    await story.part("max-tokens").fill("8")
    await story.write()
    box, mirror = story.part("prompt"), story.part("output")
    assert await mirror.evaluate("(box) => getComputedStyle(box).direction") == "rtl"
    sizes = [await part.evaluate("(e) => e.getBoundingClientRect().height") for part in (box, mirror)]
    assert sizes[0] == sizes[1]  # the text area is as high as the mirror, which holds more
    assert await page.evaluate("document.documentElement.scrollWidth") == 320


async def test_the_thread_stays_free_and_nothing_jumps_while_it_learns(page: Page) -> None:
    story = StoryPage(page)
    await story.open(NUMPY)
    await story.part("train-text").fill(TEXT)
    await page.evaluate(LONG_TASKS)
    await page.evaluate(SHIFT)
    await story.learn("train", 9)
    tasks = await page.evaluate("tasks")
    # One late task only says that the machine is busy; training in the page would make every task one.
    assert sum(task > MAX_TASK_MS for task in tasks) <= 1, tasks
    assert await page.evaluate("shift") < 0.05
