"""What an hour of attack found: each of these once stopped the page for good, or showed what is not so."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path

from playwright.async_api import Page, expect

from tests.browser.story_page import NUMPY, OTHER, STORY_MS, TEXT, StoryPage

TWICE = """() => {
    const button = document.querySelector('[data-testid="train-start"]');
    button.click();
    button.click();
}"""
PASTE = """([id, text]) => {
    const box = document.querySelector(`[data-testid="${id}"]`);
    box.focus();
    const clipboardData = new DataTransfer();
    clipboardData.setData("text", text);
    box.dispatchEvent(new ClipboardEvent("paste", { clipboardData }));
    document.execCommand("insertText", false, text); // as the browser does next
    return box.value.length;
}"""


def claiming(exported: bytes, training: object) -> bytes:
    """The export under the name "Evil", with this said of its run."""
    with zipfile.ZipFile(io.BytesIO(exported)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members["manifest.json"]) | {"name": "Evil", "metadata": {"training": training}}
    members["manifest.json"] = json.dumps(manifest).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


async def test_start_pressed_twice_and_a_file_that_lies(page: Page, tmp_path: Path) -> None:
    story = StoryPage(page)
    await story.open(NUMPY)
    await story.part("train-text").fill(TEXT)
    await story.part("train-length").select_option("long")
    await page.evaluate(TWICE)
    status = story.part("train-status")
    await expect(status).to_have_text(re.compile(r"step \d+ of"), timeout=STORY_MS)
    await expect(story.part("train-stop")).to_be_enabled()  # the second press did not take it away
    await expect(story.part("error")).to_be_hidden()
    await story.part("train-stop").click()
    await story.ready()

    await story.save("Times")
    exported = (await story.export("Times", tmp_path)).read_bytes()
    lying = tmp_path / "lying.model.zip"
    lying.write_bytes(claiming(exported, {"loss_after": "x", "persona": {"texts": [None]}, "record": {"points": 5}}))
    await story.part("import-file").set_input_files(lying)
    await expect(story.item("Evil")).to_be_visible()
    await page.reload()  # it used to be for ever that the page did not start
    await story.ready()
    await story.load("Evil")

    # Each pressed twice: deleted once, and back once.
    await story.item("Evil").get_by_test_id("delete").dblclick()
    await expect(story.part("notice")).to_contain_text("Deleted Evil")
    await page.evaluate(TWICE.replace("train-start", "undo"))
    await expect(story.item("Evil")).to_be_visible()
    await expect(story.part("saved-item")).to_have_count(2)
    await expect(story.part("error")).to_be_hidden()


async def test_nothing_stands_under_the_name_of_somebody_else(page: Page) -> None:
    story = StoryPage(page)
    await story.open(NUMPY)
    await story.part("train-text").fill(TEXT)
    await story.learn("train", 1)
    for name in ("A", "B"):
        await story.part("personalize-text").fill(OTHER if name == "A" else OTHER.upper())
        await story.part("adapter-name").fill(name)
        await story.learn("personalize", 1)
        await story.ready()
    await story.part("max-tokens").fill("8")
    await story.part("second-select").select_option("A")
    await story.write("compare")
    boxes = [story.part(f"compare-{side}") for side in ("base", "adapter", "second")]
    for box in boxes:
        await expect(box).not_to_be_empty()
    await story.persona("A", "use").click()
    await expect(page.locator("#compare-adapter-label")).to_have_text("With “A”")
    await expect(boxes[1]).to_be_empty()  # B wrote that
    await expect(boxes[2]).to_be_empty()
    await expect(boxes[0]).not_to_be_empty()


async def test_the_mood_shows_the_numbers_that_it_works_with(page: Page) -> None:
    story = StoryPage(page)
    await story.open(NUMPY)
    mood, slider = story.part("mood-toggle"), page.locator("#traits input").first
    await mood.check()
    await slider.fill("100")
    await mood.uncheck()
    await mood.check()
    await expect(page.locator("#mood-panel")).to_be_visible()
    await expect(slider).to_have_value("50")  # the mood is a new one
    await story.part("temperature").fill("1.5")
    await expect(story.part("mood-effect")).to_contain_text("temperature 1.50")


async def test_a_huge_text_that_is_pasted_is_cut_and_said(page: Page) -> None:
    story = StoryPage(page)
    await story.open(NUMPY)
    for box, most in (("prompt", 200_000), ("train-text", 1_000_000)):
        assert await page.evaluate(PASTE, [box, "It was the best of times. " * (most // 20)]) == most
        await expect(story.part("notice")).to_contain_text(f"the first {most:,} characters are used")
