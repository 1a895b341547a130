"""What an hour of attack found: each of these once stopped the page for good, or showed what is not so."""

from __future__ import annotations

import json
import re
from pathlib import Path

from playwright.async_api import Page, expect

from evermind_web.formats import stored_zip
from tests.browser.story_page import NUMPY, STORY_MS, TEXT, StoryPage

TWICE = """() => {
    const button = document.querySelector('[data-testid="train-start"]');
    button.click();
    button.click();
}"""
# The text itself goes in only where something is held: a million characters take a browser half a minute.
PASTE = """([id, text, held]) => {
    const box = document.querySelector(`[data-testid="${id}"]`);
    box.focus();
    box.value = "It was ".repeat(held).slice(0, held);
    const clipboardData = new DataTransfer();
    clipboardData.setData("text", text);
    box.dispatchEvent(new ClipboardEvent("paste", { clipboardData }));
    if (held) document.execCommand("insertText", false, text); // as the browser does next
    return [box.value.length, box.maxLength];
}"""


def claiming(exported: bytes, training: object) -> bytes:
    """The export under the name "Evil", with this said of its run."""
    members = stored_zip.read(exported, "the export")
    manifest = json.loads(members["manifest.json"]) | {"name": "Evil", "metadata": {"training": training}}
    members["manifest.json"] = json.dumps(manifest).encode()
    return stored_zip.write(members)


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


async def test_a_huge_text_that_is_pasted_is_cut_and_said(page: Page) -> None:
    story = StoryPage(page)
    await story.open(NUMPY)
    line = "It was the best of times. "
    assert await page.evaluate(PASTE, ["prompt", line, 199_990]) == [200_000, 200_000]
    await expect(story.part("notice")).to_contain_text("the first 200,000 characters are used")
    assert await page.evaluate(PASTE, ["train-text", line * 40_000, 0]) == [0, 1_000_000]
    await expect(story.part("notice")).to_contain_text("the first 1,000,000 characters are used")
