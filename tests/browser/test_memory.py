"""What stays in memory of work that is over: of personas that were made and deleted."""

from __future__ import annotations

from playwright.async_api import Page, expect

from tests.browser.heaps import Heaps
from tests.browser.story_page import StoryPage
from tests.browser.test_story_faults import change_worker

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 12
CYCLES = 10


async def test_ten_personas_made_and_deleted_leave_no_memory_behind(page: Page) -> None:
    """After the tenth the page, its worker and WebAssembly each hold at most 3 % more than after the second."""
    # The worker's own module can see the runtime: WebAssembly's memory only ever grows.
    await change_worker(page.context, "self.heap = () => running.py._module.HEAPU8.length;")
    story = StoryPage(page)
    await story.open("/?backend=numpy")
    await story.part("train-text").fill(TEXT)
    await story.learn("train", 1)
    await story.save("Times")
    await story.part("personalize-text").fill(TEXT.upper())
    heaps = await Heaps.of(page)
    used: dict[int, dict[str, int]] = {}
    for cycle in range(1, CYCLES + 1):
        await story.learn("personalize", 1)
        await story.ready()
        await story.part("persona-delete").click()
        await expect(story.part("persona")).to_have_count(0)
        if cycle in (2, CYCLES):
            python = await page.workers[0].evaluate("heap()")
            used[cycle] = {"page": await heaps.page(), "worker": await heaps.worker(), "wasm": python}
    print(used)
    for name, second in used[2].items():
        bound = 1.21 if name == "wasm" else 1.03  # WebAssembly memory grows by a fifth at once, if at all
        assert used[CYCLES][name] <= second * bound, (name, used)
