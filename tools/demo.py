"""`make demo`: serve the page; headless, also drive it through the whole story and print its numbers.

Each stage uses the page as a person would, by its `data-testid`s, prints one line and raises on anything that is
not as it should be. The picture `demo.png` shows what the model alone and the persona write, or the page on which the
story failed.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

from playwright.async_api import Browser, Error, Locator, Page, async_playwright

from tools.browser import config, launch
from tools.common import DIST, ROOT, ToolError, fail, megabytes, say
from tools.serve import Server, in_background, open_server, port_from_environment

PICTURE = ROOT / "demo.png"
STEPS = 40  # of training before Stop is pressed
PROMPT = "Alice was"
MODEL, VOICE = "Wonderland", "Wells"
LOSSES = re.compile(r"([\d.]+) → ([\d.]+) \(guessing by frequency: ([\d.]+)\)")

# How long the page's own thread was ever held up, in milliseconds: the worker should leave it free.
WATCH_FREEZES = """() => {
    let last = performance.now();
    globalThis.longestFreeze = 0;
    setInterval(() => {
        const now = performance.now();
        globalThis.longestFreeze = Math.max(globalThis.longestFreeze, now - last - 20);
        last = now;
    }, 20);
}"""

# How often the written text changed: it should come piece by piece.
COUNT_PIECES = """() => {
    globalThis.pieces = 0;
    new MutationObserver(() => globalThis.pieces++)
        .observe(document.querySelector("[data-testid=output]"), { subtree: true, characterData: true });
}"""


class Story:
    """The page and what the stages learn from one another."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.problems: list[str] = []
        self.written = ""
        page.on("console", lambda message: self._hear(message.type == "error", f"console: {message.text}"))
        page.on("pageerror", lambda error: self._hear(True, f"uncaught: {error}"))
        page.context.on("request", lambda request: self._hear(self._is_foreign(request.url), f"asked {request.url}"))

    def _hear(self, bad: bool, text: str) -> None:
        if bad:
            self.problems.append(text)

    def _is_foreign(self, url: str) -> bool:
        parts = urlsplit(url)
        return parts.scheme not in ("blob", "data") and parts.hostname != "127.0.0.1"

    def part(self, name: str) -> Locator:
        """Return the element with that `data-testid`."""
        return self.page.get_by_test_id(name)

    async def text(self, name: str) -> str:
        """Return an element's text in one line."""
        return " ".join((await self.part(name).inner_text()).split())

    async def expect(self, good: bool, text: str) -> None:
        """Raise ToolError with `text`, and with what the page's own message says, unless `good`."""
        if not good:
            said = await self.text("error") if await self.part("error").is_visible() else ""
            raise ToolError(f"{text}{f' (the page says: {said})' if said else ''}")

    async def wait(self, done: Callable[[], Awaitable[bool]], text: str, seconds: float) -> None:
        """Ask `done` until it is true; an error box on the page or the time limit ends the stage."""
        deadline = time.monotonic() + seconds
        while not await done():
            await self.expect(not await self.part("error").is_visible(), f"{text}: failed")
            await self.expect(time.monotonic() < deadline, f"{text}: not within {seconds:.0f} s")
            await asyncio.sleep(0.1)

    async def sample(self, box: str) -> None:
        """Wait until a built-in text is in a text box."""
        # Playwright's wait_for_function is refused by the page's policy: it evaluates strings.

        async def filled() -> bool:
            return len(await self.part(box).input_value()) > 1000

        await self.wait(filled, "the sample text", 20)

    async def idle(self, text: str, seconds: float = 60) -> None:
        """Wait until the page is ready and works on nothing."""

        async def ready() -> bool:
            return (await self.text("status")).startswith("Ready.")

        await self.wait(ready, text, seconds)


async def open_page(story: Story) -> str:
    """Load the page until it is ready."""
    started = time.monotonic()
    await story.page.goto("/")
    await story.page.evaluate(WATCH_FREEZES)
    await story.idle("start", config.READY_TIMEOUT_MS / 1000)
    return f"ready in {time.monotonic() - started:.1f} s, backend: {await story.text('backend')}"


async def run_training(story: Story, job: str, stop_after: int = 0) -> str:
    """Press Start of `train` or `personalize` and follow it to its end, or press Stop after so many steps."""
    await story.part(f"{job}-start").click()
    stop = story.part(f"{job}-stop")
    shown = time.monotonic()
    speed = ""

    async def finished() -> bool:
        nonlocal shown, speed
        current = await story.text(f"{job}-speed")
        speed = current if "tokens/s" in current else speed
        status = await story.text(f"{job}-status")
        step = re.search(r"step (\d+) of", status)
        if stop_after and step and int(step.group(1)) >= stop_after and await stop.is_enabled():
            await stop.click()
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            say("demo", f"  {status} loss {await story.text(f'{job}-loss')}, {speed or 'no speed yet'}")
        return status.startswith("Stopped and kept" if stop_after else "Done")

    await story.wait(finished, job, config.STORY_TIMEOUT_MS / 1000)
    await story.idle(job)
    summary = await story.text(f"{job}-status")
    losses = LOSSES.search(summary)
    await story.expect(losses is not None, f"no losses in {summary!r}")
    assert losses is not None
    before, after, _ = map(float, losses.groups())
    await story.expect(after < before, f"the loss did not fall: {summary}")
    return f"{summary} {speed}"


async def train(story: Story) -> str:
    """Teach it the built-in sample for a while, then press Stop: what was learned is kept."""
    await story.part("sample-text").click()
    await story.sample("train-text")
    await story.part("train-length").select_option("normal")
    return await run_training(story, "train", stop_after=STEPS)


async def write(story: Story) -> str:
    """Continue the prompt and see that the text comes piece by piece."""
    await story.part("prompt").fill(PROMPT)
    started = time.monotonic()
    await story.page.evaluate(COUNT_PIECES)
    await story.part("generate").click()

    async def finished() -> bool:
        return await story.part("generate").is_enabled()

    await asyncio.sleep(0.05)
    await story.wait(finished, "write", 120)
    await story.expect(await story.page.evaluate("pieces") > 10, "the text came in one piece")
    story.written = await story.part("output").inner_text()
    await story.expect(story.written.startswith(PROMPT) and len(story.written) > len(PROMPT) + 20, "too little written")
    tokens = await story.part("max-tokens").input_value()
    return f"{tokens} tokens in {time.monotonic() - started:.1f} s: {story.written.rstrip()!r}"


async def personalize(story: Story) -> str:
    """Teach an adapter the second sample."""
    await story.part("personalize-sample").click()
    await story.sample("personalize-text")
    await story.part("adapter-name").fill(VOICE)
    return await run_training(story, "personalize")


async def compare(story: Story) -> str:
    """Write with and without the adapter, side by side and by the switch."""
    await story.part("compare").click()
    await story.idle("compare", 120)
    base = await story.part("compare-base").inner_text()
    adapted = await story.part("compare-adapter").inner_text()
    await story.expect(base == story.written, f"the model alone writes something else than before: {base!r}")
    await story.expect(adapted not in ("", base), "the adapter makes no difference")
    await story.part("adapter-toggle").uncheck()
    await story.part("generate").click()
    await story.idle("write without the adapter", 120)
    await story.expect(await story.part("output").inner_text() == base, "switched off, it does not write as the base")
    await story.part("adapter-toggle").check()
    await story.part("generate").click()
    await story.idle("write with the adapter", 120)
    await story.expect(await story.part("output").inner_text() == adapted, "switched on, it does not write as compared")
    return f"with {VOICE!r}: {adapted.rstrip()!r}"


async def saved_names(story: Story) -> list[str]:
    """Return the names in the list of saved things, sorted."""
    # In one go: the list may be made anew between two questions.
    names = await story.part("saved-item").evaluate_all("rows => rows.map((row) => row.dataset.name)")
    return sorted(map(str, names))


async def wait_for_saved(story: Story, names: list[str]) -> None:
    """Wait until the list of saved things holds exactly `names`."""

    async def there() -> bool:
        return await saved_names(story) == sorted(names)

    await story.wait(there, f"the saved list should hold {names}", 30)


def saved_item(story: Story, name: str) -> Locator:
    """Return the row of one saved thing."""
    return story.page.locator(f'[data-testid="saved-item"][data-name="{name}"]')


async def save_and_reload(story: Story) -> str:
    """Save model and adapter, reload the page, load the model and write the same again."""
    await story.part("save-name").fill(MODEL)
    await story.part("save").click()
    await wait_for_saved(story, [MODEL, VOICE])
    await story.page.reload()
    await story.page.evaluate(WATCH_FREEZES)
    await story.idle("start after the reload", config.READY_TIMEOUT_MS / 1000)
    await wait_for_saved(story, [MODEL, VOICE])
    await saved_item(story, MODEL).get_by_test_id("load").click()
    await expect_same_writing(story)
    return f"{MODEL} and {VOICE} survived the reload; the model writes the same. {await story.text('storage')}"


async def expect_same_writing(story: Story) -> None:
    """Generate with the model alone; it must write what it wrote after its training."""
    await asyncio.sleep(0.1)
    await story.idle("load")
    if await story.part("adapter-toggle").is_checked():
        await story.part("adapter-toggle").uncheck()
    await story.part("prompt").fill(PROMPT)
    await story.part("generate").click()
    await asyncio.sleep(0.1)
    await story.idle("write", 120)
    again = await story.part("output").inner_text()
    await story.expect(again == story.written, f"it writes something else than before: {again!r}")


async def export_and_import(story: Story) -> str:
    """Rename, export, delete and import the model."""
    await saved_item(story, MODEL).get_by_test_id("rename").click()
    await story.part("rename-name").fill("Looking glass")
    await story.part("rename-ok").click()
    await wait_for_saved(story, ["Looking glass", VOICE])
    async with story.page.expect_download() as download:
        await saved_item(story, "Looking glass").get_by_test_id("export").click()
    file = await download.value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file.suggested_filename
        await file.save_as(path)
        size = path.stat().st_size
        await saved_item(story, "Looking glass").get_by_test_id("delete").click()
        await wait_for_saved(story, [VOICE])
        await story.part("import-file").set_input_files(path)
        await wait_for_saved(story, ["Looking glass", VOICE])
    await saved_item(story, "Looking glass").get_by_test_id("load").click()
    await expect_same_writing(story)
    return f"{file.suggested_filename} ({megabytes(size)}) exported, deleted, imported; it writes the same"


RESULT = "compare"  # the stage after which the page shows what it can do
STAGES: tuple[tuple[str, Callable[[Story], Awaitable[str]]], ...] = (
    ("open", open_page),
    ("train", train),
    ("write", write),
    ("personalize", personalize),
    ("compare", compare),
    ("save", save_and_reload),
    ("files", export_and_import),
)


async def tell(browser: Browser, url: str) -> int:
    """Run all stages; return how many failed (0 or 1: the first failure ends the story)."""
    context = await browser.new_context(base_url=url, viewport=config.VIEWPORT, accept_downloads=True)
    context.set_default_timeout(config.ACTION_TIMEOUT_MS)
    page = await context.new_page()
    story = Story(page)
    started = time.monotonic()
    failed = 0
    for number, (name, stage) in enumerate(STAGES, 1):
        stage_started = time.monotonic()
        try:
            text = await stage(story)
            await story.expect(not story.problems, "; ".join(story.problems))
            if name == RESULT:
                await page.screenshot(path=PICTURE, full_page=True)
        except (ToolError, Error) as error:
            # without Playwright's log of attempts
            reason = " ".join(re.split(r"\n(?:  |Call log)", str(error))[0].split())
            say("demo", f"{number}/{len(STAGES)} {name}: FAILED: {reason}")
            failed = 1
            await page.screenshot(path=PICTURE, full_page=True)
            break
        say("demo", f"{number}/{len(STAGES)} {name} ({time.monotonic() - stage_started:.0f} s): {text}")
    freeze = await page.evaluate("globalThis.longestFreeze ?? NaN")
    say("demo", f"{time.monotonic() - started:.0f} s in all; the page's thread was never held up over {freeze:.0f} ms")
    say("demo", f"picture: {PICTURE}")
    await context.close()
    return failed


async def drive(server: Server) -> int:
    """Start the browser, tell the story, and close it."""
    async with async_playwright() as playwright:
        browser = await launch(playwright)
        try:
            return await tell(browser, server.url)
        finally:
            await browser.close()


def headless() -> bool:
    """Say whether to drive the page: `HEADLESS=1`, or no display to look at it on."""
    wanted = os.environ.get("HEADLESS")
    if wanted is not None:
        return wanted == "1"
    return sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def main() -> int:
    """Serve, and drive or wait."""
    try:
        server = open_server(DIST, port_from_environment())
        thread = in_background(server)
        say("demo", f"the page is at {server.url}")
        try:
            if headless():
                return asyncio.run(drive(server))
            say("demo", "open it in a browser with WebGPU (Ctrl+C stops; HEADLESS=1 drives it by itself)")
            thread.join()
        except KeyboardInterrupt:
            say("demo", "stopped")
        finally:
            server.shutdown()
            server.server_close()
    except (ToolError, Error) as error:
        return fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
