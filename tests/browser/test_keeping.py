"""What the page learned and keeps: the life of a persona, a backup, nothing left after Delete everything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Page, expect

from tests.browser.story_page import OTHER, STORY_MS, StoryPage, begin, make_persona


@pytest_asyncio.fixture(loop_scope="session")
async def own(page: Page) -> StoryPage:
    """A page with a saved model, for one test alone."""
    return await begin(page)


async def test_the_life_of_a_persona(own: StoryPage) -> None:
    page = own.page
    await make_persona(own, "Plain", OTHER)
    await expect(own.persona("Plain")).to_contain_text(re.compile(r"loss \d.* → .*180 words.*2\d\d\d"))
    await expect(own.item("Plain")).to_be_visible()  # saved at once, as its model is

    await own.part("max-tokens").fill("300")
    await own.write("compare")
    box = own.part("compare-base")
    assert await box.evaluate("(box) => [box.scrollTop, box.scrollHeight > box.clientHeight]") == [0, True]
    await own.part("max-tokens").fill("12")
    await own.persona("Plain", "learn").click()
    await expect(page.locator("#go-on-choice")).to_be_visible()
    await expect(own.part("personalize-status")).to_have_text("Paste the next text, then press Start.")
    assert await page.evaluate("String(getSelection())") == OTHER
    # Without "Learn on" the page asks what is meant, and nothing that was learned goes unasked.
    await own.part("go-on").uncheck()
    await own.part("personalize-text").fill(OTHER.upper())
    await own.part("personalize-start").click()
    await expect(page.locator("#confirm-text")).to_contain_text("“Plain” has learned from 1 text already. Learn on")
    await own.part("confirm-cancel").click()
    await own.learn("personalize", 9, answer="ok")
    await own.ready()
    await expect(box).to_be_empty()  # it shows what was written before
    await own.write()
    learned = await own.part("output").inner_text()
    await own.persona("Plain", "texts").click()
    texts = own.part("text")
    await expect(texts).to_have_count(2)
    await texts.first.get_by_role("button").click()
    await expect(texts.first).to_contain_text("Removed.")
    await page.locator("#texts-dialog").get_by_role("button", name="Close").click()

    await own.part("go-on").uncheck()
    await own.part("personalize-text").fill(OTHER[::-1])
    await own.learn("personalize", 9, answer="other")
    await own.ready()
    await expect(own.part("notice")).to_contain_text("Plain was replaced.")
    await own.write()
    assert await own.part("output").inner_text() != learned
    await own.part("undo").click()
    await expect(own.persona("Plain")).to_contain_text("360 words")
    await own.write()
    assert await own.part("output").inner_text() == learned

    await own.do("Plain", "duplicate")
    await expect(own.persona("Plain 2")).to_be_visible()
    await own.do("Plain 2", "rename")
    await own.part("rename-name").fill("Loud")
    await own.part("rename-ok").click()
    await expect(own.persona("Loud")).to_be_visible()
    await own.persona("Loud", "colour").fill("#00aa55")
    await own.persona("Loud", "use").click()
    await expect(own.part("writer")).to_have_text("Writes: Loud")

    await own.part("mix").fill("25")
    await own.part("mix-toggle").check()
    await expect(own.part("writer")).to_have_text("Writes: 75 % Plain + 25 % Loud")
    await expect(own.part("adapter-toggle")).not_to_be_checked()  # one or the other writes
    for name, share in (("Plain", "75 %"), ("Loud", "25 %")):
        await expect(own.persona(name).locator(".tag")).to_have_text(f"writes {share}")
    # Of a thousand personas none is shown anew because a job begins or ends; their buttons rest.
    rows = ".querySelectorAll('[data-testid=persona], [data-testid=saved-item], #personalize option')"
    await page.evaluate(f"document{rows}.forEach((row) => (row.kept = true))")
    await own.write()
    assert await page.evaluate(f"[...document{rows}].map((row) => row.kept)") == [True] * 17
    resting = await page.evaluate("""() => {
        document.querySelector("[data-testid=generate]").click();
        const parts = ["use", "duplicate", "colour"].map((part) => `[data-testid=persona-${part}]`);
        return [...document.querySelectorAll(`${parts}, [data-testid=load]`)].map((control) => control.disabled);
    }""")
    assert resting == [True] * 9
    await own.ready()
    await expect(own.persona("Loud", "use")).to_be_enabled()
    mixed = await own.part("output").inner_text()
    assert mixed
    await own.write("compare")
    await expect(page.locator("#compare-adapter-label")).to_have_text("With 75 % Plain + 25 % Loud")
    assert await own.part("compare-adapter").inner_text() == mixed
    await own.part("adapter-toggle").check()
    await expect(own.part("mix-toggle")).not_to_be_checked()
    await own.persona("Loud", "use").click()
    await expect(own.part("writer")).to_have_text("Writes: Loud")
    await expect(own.persona("Plain").locator(".tag")).to_have_count(0)
    await own.part("second-select").select_option("Plain")
    await own.write("compare")
    sides = [await own.part(f"compare-{side}").inner_text() for side in ("base", "adapter", "second")]
    assert sides[1] == sides[2] != sides[0]  # a copy writes what its original writes
    # What one wrote does not stay under the name of another.
    await own.persona("Plain", "use").click()
    await expect(page.locator("#compare-adapter-label")).to_have_text("With “Plain”")
    await expect(own.part("compare-adapter")).to_be_empty()
    await expect(own.part("compare-second")).to_be_empty()
    await expect(own.part("compare-base")).not_to_be_empty()

    await own.persona("Loud", "delete").press("Enter")
    await expect(own.persona("Loud")).to_have_count(0)
    await expect(own.persona("Plain", "use")).to_be_focused()  # whoever works by keyboard goes on from there
    # Another notice leaves the Undo where it is.
    await own.do("Plain", "duplicate")
    await expect(own.part("notice")).to_contain_text("Plain 2 is a copy of Plain.")
    await expect(own.part("offer")).to_contain_text("Deleted Loud.")
    await page.keyboard.press("Control+z")
    await expect(own.persona("Loud")).to_be_visible()
    await expect(own.part("offer")).to_be_hidden()
    await expect(own.persona("Loud", "colour")).to_have_value("#00aa55")


async def test_backup_delete_all_and_restore(own: StoryPage, tmp_path: Path) -> None:
    await make_persona(own, "Plain", OTHER)
    await own.write("compare")
    await expect(own.part("storage-list")).to_contain_text(re.compile("Texts that personas learned from1 · 972 bytes"))
    before = await own.persona("Plain").inner_text()
    async with own.page.expect_download() as download:
        await own.part("backup").click()
    path = tmp_path / "backup.zip"
    await (await download.value).save_as(path)
    held = await own.held()
    assert held["records"] >= 3  # the model, the persona, its text
    assert held["blobs"] >= 3
    assert (held["settings"], held["drafts"]) == (1, 2)
    await own.page.evaluate("localStorage.setItem('of another page', 'here')")
    await own.part("wipe").click()
    await own.part("confirm-cancel").click()
    assert await own.held() == held | {"settings": 2}
    await own.part("wipe").click()
    await own.page.get_by_role("button", name="Delete everything").last.click()  # in the dialog
    # Not even in memory is anything left that Save would bring back.
    await expect(own.part("notice")).to_contain_text("Everything was deleted from this browser.", timeout=STORY_MS)
    await own.ready()
    await expect(own.part("saved-list")).to_have_text("Nothing saved yet.")
    await expect(own.part("persona")).to_have_count(0)
    await expect(own.part("compare-adapter")).to_be_empty()
    for button in ("save", "generate", "personalize-start", "compare", "train-details"):
        await expect(own.part(button)).to_be_disabled()
    assert await own.held() == {"records": 0, "blobs": 0, "cached": 0, "settings": 1, "drafts": 0}
    assert await own.page.evaluate("localStorage.key(0)") == "of another page"
    await expect(own.part("personalize-text")).to_have_value("")
    await own.part("restore").set_input_files(path)
    await expect(own.item("Plain")).to_be_visible()
    await own.load("Plain")
    assert (await own.persona("Plain").inner_text()).replace("writes\n", "") == before.replace("writes\n", "")
    await own.do("Plain", "record")  # the record of a run stays with the persona
    await expect(own.part("record-summary")).to_contain_text(re.compile("Gradient norm .* overflowed: 0"))
    await expect(own.part("experts").locator(".bar-row")).to_have_count(2)
    await own.page.keyboard.press("Escape")
    await own.persona("Plain", "texts").click()
    await expect(own.part("text")).to_contain_text(re.compile(r"pasted text · 180 words · \d+ \w+ 2\d\d\d"))
