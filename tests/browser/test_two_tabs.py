"""Two tabs of the page: each shows what the other saved, renamed and deleted, and what is in use is not lost."""

from __future__ import annotations

import re

from playwright.async_api import BrowserContext, expect

from tests.browser.story_page import StoryPage

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 12
NUMPY = "/?backend=numpy"


async def test_what_one_tab_does_the_other_takes_up(context: BrowserContext) -> None:
    one, two = StoryPage(await context.new_page()), StoryPage(await context.new_page())
    await two.open(NUMPY)
    await expect(two.part("saved-list")).to_have_text("Nothing saved yet.")
    await one.open(NUMPY)
    await one.part("train-text").fill(TEXT)
    await one.learn("train", 1)
    await one.save("Times")
    await expect(two.item("Times")).to_be_visible()

    # A persona that is made in one tab comes to the model that the other has loaded, with what it learns later.
    await two.load("Times")
    await one.part("personalize-text").fill(TEXT.upper())
    await one.part("adapter-name").fill("Loud")
    await one.learn("personalize", 1)
    persona = two.page.locator('[data-testid="persona"][data-name="Loud"]')
    await expect(persona).to_be_visible()
    await one.ready()
    await one.part("persona-colour").fill("#00aa55")
    await expect(persona.get_by_test_id("persona-colour")).to_have_value("#00aa55")
    await expect(two.part("notice")).to_contain_text("“Loud” was changed in another tab")

    # Renamed elsewhere: it goes on under its new name.
    await persona.get_by_test_id("persona-use").click()
    await one.item("Loud").get_by_test_id("rename").click()
    await one.part("rename-name").fill("Louder")
    await one.part("rename-ok").click()
    await expect(two.part("writer")).to_have_text("Writes: Louder")
    await expect(two.part("notice")).to_contain_text("“Loud” is called “Louder” now")

    # Deleted elsewhere while it is in use: said, and still there to be saved again.
    await two.part("max-tokens").fill("8")
    await two.part("prompt").fill("It was")
    await two.write()
    text = await two.part("output").inner_text()
    await one.item("Louder").get_by_test_id("delete").click()
    await expect(two.part("notice")).to_contain_text(
        "“Louder” was deleted in another tab. It is still in memory here: save the model to keep it."
    )
    await expect(two.item("Louder")).to_have_count(0)
    await expect(two.part("writer")).to_have_text("Writes: Louder")
    await two.write()
    assert await two.part("output").inner_text() == text
    await two.save("Times")
    await expect(one.item("Louder")).to_be_visible()

    # The model itself.
    await one.item("Times").get_by_test_id("delete").click()
    await expect(two.part("notice")).to_contain_text(re.compile("“Times” was deleted in another tab"))
    await two.write()
    assert await two.part("output").inner_text() == text
    await two.save("Times")
    await expect(one.item("Times")).to_be_visible()
