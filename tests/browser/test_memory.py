"""What stays in memory of work that is over: of personas that were made and deleted."""

from __future__ import annotations

from playwright.async_api import Page, expect

from tests.browser.heaps import Heaps
from tests.browser.story_page import StoryPage
from tests.browser.test_story_faults import change_worker

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 12
CYCLES = 10
# How much more there may be after the tenth than after the second. `top` is the most that was ever in use at once, with
# the gaps between; WebAssembly's own length says no more, as it grows by a fifth whenever `top` passes it.
BOUNDS = {"page": 1.03, "worker": 1.03, "python": 1.01, "top": 1.05}


async def test_ten_personas_made_and_deleted_leave_no_memory_behind(page: Page) -> None:
    await change_worker(
        page.context, 'Object.defineProperty(self, "python_module", { get: () => running.py._module });'
    )
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
        await story.part("persona-more").click()
        await story.part("persona-delete").click()
        await expect(story.part("persona")).to_have_count(0)
        if cycle in (2, CYCLES):
            used[cycle] = {"page": await heaps.page(), "worker": await heaps.worker()} | await heaps.python()
    print(used)
    for name, bound in BOUNDS.items():
        assert used[CYCLES][name] <= used[2][name] * bound, (name, used)
