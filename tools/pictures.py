"""Take the README's pictures of the page anew: `python -m tools.pictures`, after `make build`; some minutes.

The page is used as in `tools.demo`, on NumPy, with the shipped model.
"""

from __future__ import annotations

import asyncio
import sys

from playwright.async_api import Error, Page, async_playwright

from tools.browser import launch
from tools.common import DIST, ROOT, ToolError, fail, say
from tools.demo import Story, run_training
from tools.serve import in_background, open_server

FOLDER = ROOT / "docs" / "images"
MARGIN = 16  # pixels around what is shown
WIDTH = 820  # two columns, and still legible when a README shows it small


async def take(page: Page, name: str, first: str, last: str) -> None:
    """Save the strip of the page from the top of one element to the bottom of another, two CSS selectors."""
    boxes = [await page.locator(selector).bounding_box() for selector in (first, last)]
    if boxes[0] is None or boxes[1] is None:
        raise ToolError(f"{name}: {first} or {last} is not on the page")
    top, bottom = boxes[0]["y"] - MARGIN, boxes[1]["y"] + boxes[1]["height"] + MARGIN
    scrolled = await page.evaluate("scrollY")
    clip = {"x": 0, "y": top + scrolled, "width": WIDTH, "height": bottom - top}
    await page.screenshot(path=FOLDER / f"{name}.png", full_page=True, clip=clip)  # type: ignore[arg-type]
    say("pictures", f"{name}.png, {WIDTH} × {bottom - top:.0f}")


async def tell(page: Page) -> None:
    """Use the page, and take a picture after each of three steps."""
    story = Story(page)
    await page.goto("/?backend=numpy")
    await story.idle("start", 120)
    await story.part("shipped-start").click()
    await page.get_by_text("It can write at once.").wait_for(timeout=120_000)
    await story.idle("fetch the model", 120)
    await story.part("max-tokens").fill("24")
    await story.part("generate").click()
    await page.get_by_text("Ready. Written.").wait_for(timeout=120_000)
    for _ in range(3):
        await story.part("take-word").click()
    await story.part("show-tokens").click()
    await story.part("tokens").get_by_role("button").nth(3).click(timeout=120_000)
    await story.part("notice").get_by_label("Close").click()
    await take(page, "write", "#write", "#tokens")
    await story.part("personalize-sample").click()
    await story.sample("personalize-text")
    await story.part("adapter-name").fill("Time Traveller")
    say("pictures", await run_training(story, "personalize"))
    await story.part("compare").click()
    await page.get_by_text("Ready. Written twice.").wait_for(timeout=120_000)
    await take(page, "personas", '[data-testid="personas"]', ".sides")
    await story.part("mood-toggle").check()
    for feeling in ("surprise", "praise", "surprise"):
        await story.part(f"feel-{feeling}").click()
    await story.idle("mood", 60)
    await page.mouse.move(0, 0)
    await take(page, "mood", "#mood", "#mood")


async def run() -> None:
    """Serve dist/, start the browser, take the pictures."""
    server = open_server(DIST, 0)
    in_background(server)
    async with async_playwright() as playwright:
        browser = await launch(playwright)
        try:
            page = await browser.new_page(
                base_url=server.url, viewport={"width": WIDTH, "height": 900}, reduced_motion="reduce"
            )
            await tell(page)
        finally:
            await browser.close()
            server.shutdown()
            server.server_close()


def main() -> int:
    """Return the exit status."""
    try:
        asyncio.run(run())
    except (ToolError, Error) as error:
        return fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
