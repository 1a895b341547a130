"""Storage that others wrote into, that is damaged or forbidden: what an attack on it found."""

from __future__ import annotations

import re

from playwright.async_api import Page, expect

from tests.browser.story_page import NUMPY, TEXT, StoryPage

FORBIDDEN = """for (const name of ["localStorage", "sessionStorage"])
    Object.defineProperty(globalThis, name, { get() { throw new DOMException("denied", "SecurityError"); } });"""
# Rows that a later version, or another page of this origin, may have put in; and the model's bytes spoiled.
SPOIL = """async () => {
    const opening = indexedDB.open("evermind");
    await new Promise((done) => (opening.onsuccess = done));
    const tx = opening.result.transaction(["records", "blobs"], "readwrite");
    const [records, blobs] = [tx.objectStore("records"), tx.objectStore("blobs")];
    const reading = records.get("Times");
    reading.onsuccess = () => {
        const row = reading.result;
        const wrong = [{ metadata: null }, { size: "big" }, { blobs: 5 }, { crc32: null }];
        wrong.forEach((fields, i) => records.put({ ...row, ...fields, name: `Other ${i}` }));
        records.put({ name: "only a name" });
        records.put({ ...row, name: 7 });
        blobs.put(new Uint8Array(row.size).buffer, row.blobs[0]);
    };
    await new Promise((done) => (tx.oncomplete = done));
    opening.result.close();
}"""


async def test_records_of_others_hide_nothing_and_a_damaged_one_can_go(page: Page) -> None:
    await page.add_init_script(FORBIDDEN)  # no settings, no drafts: all else works
    story = StoryPage(page)
    await story.open(NUMPY)
    await story.part("train-text").fill(TEXT)
    await story.learn("train", 1)
    await story.save("Kept")
    await story.save("Times")
    await page.evaluate(SPOIL)
    await page.reload()
    await story.ready()  # one foreign record used to empty the list, and to stop backups
    await expect(story.item("Kept")).to_be_visible()
    await expect(story.part("saved-item")).to_have_count(2)
    await expect(story.part("notice")).to_contain_text("leaves alone: 6")
    await story.load("Kept")

    await story.item("Times").get_by_test_id("delete").click()  # it could not, for it cannot be kept for Undo
    dialog = page.locator("dialog[open]")
    await expect(dialog).to_contain_text(re.compile(r"Times is damaged.*Delete it for good\?"))
    await dialog.get_by_role("button", name="Delete Times").click()
    await expect(story.part("saved-item")).to_have_count(1)
    await expect(story.part("undo")).to_be_hidden()
    async with page.expect_download():
        await story.part("backup").click()
    await expect(story.part("error")).to_be_hidden()


async def test_a_number_that_json_would_lose_does_not_reach_the_worker(page: Page) -> None:
    # NaN became null, as if nothing had been given: the text was written with the default.
    await page.goto("/__test__/blank.html")
    error = await page.evaluate("""async () => {
        const { Evermind } = await import("/evermind.mjs");
        const em = new Evermind({ addEventListener() {} }, { call: () => ({ ok: true, json: "null" }) }, {});
        const piece = em.generate("It was", { temperature: NaN }).next();
        return piece.then(() => "nothing", (error) => `${error.name}: ${error.message}`);
    }""")
    assert error == "InvalidArgumentError: temperature must be a finite number, got NaN"
