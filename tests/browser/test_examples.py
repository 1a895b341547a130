"""The pages of examples/, from dist/: what a reader copies has to run."""

from __future__ import annotations

import re

from playwright.async_api import Page, Route, expect

from tools.common import ROOT

SAMPLES = ROOT / "web" / "samples"
EXAMPLES = ROOT / "examples"
WAIT = 120_000  # ms


async def test_a_text_box_learns_how_its_user_writes(page: Page) -> None:
    """Two steps instead of 40 show that it works; the script is the served one otherwise."""

    async def quicken(route: Route) -> None:
        response = await route.fetch()
        body = await response.text()
        assert body.count('length: "quick"') == 2
        await route.fulfill(response=response, body=body.replace('length: "quick"', "steps: 2"))

    await page.route("**/examples/embed.mjs", quicken)
    await page.goto("/examples/embed.html")
    says, box = page.locator("#says"), page.locator("#box")
    await expect(says).to_have_text("Ready to learn", timeout=WAIT)
    await page.click("#learn")
    await expect(says).to_have_text(re.compile("There is no text yet"))
    text = (SAMPLES / "time-machine.txt").read_text(encoding="utf-8")
    await box.fill(text)
    await page.click("#learn")
    await expect(says).to_have_text(re.compile(r"Learned: .* \d\.\d\d before, \d\.\d\d after"), timeout=WAIT)
    await box.fill("The Time Traveller")
    await page.click("#go")
    await expect(page.locator("#go")).to_be_enabled(timeout=WAIT)
    written = await box.input_value()
    assert written.startswith("The Time Traveller")
    assert len(written) > len("The Time Traveller")
    await page.reload()
    await expect(says).to_have_text("It remembers how you write", timeout=WAIT)


def test_the_example_is_short() -> None:
    script = (EXAMPLES / "embed.mjs").read_text().splitlines()
    assert len(script) <= 30
    assert len((EXAMPLES / "embed.html").read_text().splitlines()) <= 15
