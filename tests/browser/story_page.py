"""The demo page as a person uses it, by its test ids; shared by the tests of the story and of bad input."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.async_api import Locator, Page, expect

from tools.browser import config

NUMPY = "/?backend=numpy"  # what the page says is the same on both, and NumPy starts faster
TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 12
OTHER = "We had everything before us, we had nothing before us, we were all going direct. " * 12
STORY_MS = config.STORY_TIMEOUT_MS
LOSSES = re.compile(r"Loss on text it has not seen: ([\d.]+) → ([\d.]+) \(guessing by frequency: ([\d.]+)\)")


# What this browser holds for the page: rows of each table of its databases, models in caches, drafts, settings.
HELD = """async () => {
    const held = { settings: localStorage.length, drafts: sessionStorage.length, cached: 0 };
    for (const { name } of await indexedDB.databases()) {
        const opening = indexedDB.open(name);
        await new Promise((done) => (opening.onsuccess = done));
        for (const table of opening.result.objectStoreNames) {
            const counting = opening.result.transaction(table).objectStore(table).count();
            await new Promise((done) => (counting.onsuccess = done));
            held[table] = counting.result;
        }
        opening.result.close();
    }
    for (const cache of await caches.keys())
        for (const { url } of await (await caches.open(cache)).keys()) held.cached += /models/.test(url);
    return held;
}"""


class StoryPage:
    """One tab of the demo page; `touch`: of a phone, where things are tapped."""

    def __init__(self, page: Page, touch: bool = False) -> None:
        self.page = page
        self.touch = touch

    def part(self, testid: str) -> Locator:
        return self.page.get_by_test_id(testid)

    async def press(self, target: Locator) -> None:
        """Click it, or tap it on a phone."""
        await (target.tap() if self.touch else target.click())

    async def open(self, address: str = "/") -> None:
        await self.page.goto(address)
        await self.ready()

    async def ready(self) -> None:
        await expect(self.part("status")).to_have_text(re.compile("^Ready"), timeout=config.READY_TIMEOUT_MS)

    async def learn(self, job: str, steps: int, answer: str = "") -> tuple[float, float]:
        """Start `train` or `personalize`, press Stop after `steps` (1 to 9); returns loss before and after.

        answer: the button to press where the page asks first, "ok" or "other".
        """
        await self.part(f"{job}-length").select_option("long")
        await self.press(self.part(f"{job}-start"))
        if answer:
            await self.press(self.part(f"confirm-{answer}"))
        status = self.part(f"{job}-status")
        await expect(status).to_have_text(re.compile(rf"step ([{steps}-9]|\d\d+) of \d+"), timeout=STORY_MS)
        await self.press(self.part(f"{job}-stop"))
        await expect(status).to_have_text(re.compile("Stopped and kept"), timeout=STORY_MS)
        found = LOSSES.search(await status.inner_text())
        assert found, await status.inner_text()
        before, after, unigram = map(float, found.groups())
        assert 1 < unigram < 7
        better = re.search(r"expects words like yours (\d+) % better", await status.inner_text())
        said = int(better.group(1)) if better else 0
        assert abs(said - max(0, 100 * (1 - after / before))) < 1.5  # the two losses are shown rounded
        return before, after

    async def write(self, button: str = "generate") -> None:
        """Press `generate` or `compare` and wait until it has ended."""
        await self.press(self.part(button))  # the status changes before this returns
        await expect(self.part("status")).to_have_text(re.compile("^Ready. Written"), timeout=STORY_MS)

    async def save(self, name: str) -> None:
        await self.part("save-name").fill(name)
        await self.press(self.part("save"))
        await expect(self.item(name)).to_be_visible()

    def item(self, name: str) -> Locator:
        """The row of one saved thing."""
        return self.page.locator(f'[data-testid="saved-item"][data-name="{name}"]')

    def persona(self, name: str, action: str = "") -> Locator:
        """The row of a persona in memory, or one of its buttons."""
        row = self.page.locator(f'[data-testid="persona"][data-name="{name}"]')
        return row.get_by_test_id(f"persona-{action}") if action else row

    async def do(self, name: str, action: str) -> None:
        """Press a button of a persona, also one behind More."""
        button = self.persona(name, action)
        await expect(self.persona(name)).to_be_visible()
        if not await button.is_visible():
            await self.press(self.persona(name, "more"))
        await self.press(button)

    async def load(self, name: str) -> None:
        await self.press(self.item(name).get_by_test_id("load"))
        await expect(self.part("notice")).to_contain_text(f"Loaded {name}")
        await self.ready()

    async def export(self, name: str, folder: Path) -> Path:
        async with self.page.expect_download() as download:
            await self.item(name).get_by_test_id("export").click()
        file = await download.value
        path = folder / file.suggested_filename
        await file.save_as(path)
        return path

    async def held(self) -> dict[str, int]:
        """How much this browser holds for the page, counted in its stores themselves."""
        found: dict[str, int] = await self.page.evaluate(HELD)
        return found

    async def expect_error(self, words: str, within: float = config.ACTION_TIMEOUT_MS) -> None:
        """The message box says this, in `within` ms; then it is closed."""
        await expect(self.part("error")).to_contain_text(re.compile(words), timeout=within)
        await self.part("error").get_by_label("Close").click()


async def begin(page: Page) -> StoryPage:
    """Open the page with a model of a few steps, saved as "Times", ready for short texts."""
    story = StoryPage(page)
    await story.open(NUMPY)
    await story.part("train-text").fill(TEXT)
    await story.learn("train", 2)
    await story.save("Times")
    await story.part("max-tokens").fill("12")
    return story


async def make_persona(story: StoryPage, name: str, text: str, steps: int = 1) -> None:
    """Let the model in memory learn `text` as the persona `name`, in at least so many steps."""
    await story.part("personalize-text").fill(text)
    await story.part("adapter-name").fill(name)
    await story.learn("personalize", steps)
    await story.ready()
