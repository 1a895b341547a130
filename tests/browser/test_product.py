"""The page as a product: the shipped model, the editor, personas, records, mood, backups; nothing leaves the device."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, expect

from tests.browser.conftest import PageLog, check, open_context
from tests.browser.story_page import NUMPY, OTHER, STORY_MS, TEXT, StoryPage

SHIPPED = Path(__file__).parents[2] / "web" / "models" / "evermind-base.evl0"


async def begin(page: Page) -> StoryPage:
    """Open the page with a model of a few steps, saved as "Times", ready for short texts."""
    story = StoryPage(page)
    await story.open(NUMPY)
    await story.part("train-text").fill(TEXT)
    await story.learn("train", 2)
    await story.save("Times")
    await story.part("max-tokens").fill("12")
    return story


@pytest_asyncio.fixture(loop_scope="session")
async def own(page: Page) -> StoryPage:
    """Such a page for one test alone."""
    return await begin(page)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(browser: Browser, server: str) -> AsyncIterator[StoryPage]:
    context = await open_context(browser, server)
    page = await context.new_page()
    log = PageLog(page, server)
    yield await begin(page)
    check(log)
    await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def story(shared: StoryPage) -> StoryPage:
    """Such a page for all tests that leave its model as it is; its fields are as in the beginning."""
    await shared.page.evaluate("document.querySelector('#sampling').open = true")
    await shared.part("sampling-reset").click()
    for field, value in (("seed", "1"), ("max-tokens", "12"), ("prompt", "")):
        await shared.part(field).fill(value)
    return shared


DROP = """(target, files) => {
    const dataTransfer = new DataTransfer();
    for (const [name, text] of Object.entries(files)) dataTransfer.items.add(new File([text], name));
    const fire = (kind) => target.dispatchEvent(new DragEvent(kind, { dataTransfer, bubbles: true, cancelable: true }));
    return ["dragover", "drop"].map((kind) => !fire(kind));
}"""


async def drop(target: Locator, files: dict[str, str]) -> list[bool]:
    """Drag files over `target` and drop them there; returns for both whether the page took it from the browser."""
    taken: list[bool] = await target.evaluate(DROP, files)
    return taken


async def make_persona(story: StoryPage, name: str, text: str, steps: int = 1) -> None:
    await story.part("personalize-text").fill(text)
    await story.part("adapter-name").fill(name)
    await story.learn("personalize", steps)
    await story.ready()


# ---- the shipped model, and privacy ---------------------------------------------------------------------------


@pytest.mark.skipif(not SHIPPED.is_file(), reason="this checkout ships no model")
async def test_the_shipped_model_is_fetched_once_and_nothing_leaves_the_device(page: Page, page_log: PageLog) -> None:
    story = StoryPage(page)
    await story.open(NUMPY)
    start = story.part("shipped-start")
    await expect(story.part("shipped-status")).to_contain_text(re.compile(r"13\.8 MB, fetched once"))
    await start.click()
    await expect(story.item("evermind-base")).to_be_visible(timeout=STORY_MS)
    await story.ready()
    assert sum(url.endswith(".evl0") for url in page_log.requests) == 1
    await story.part("max-tokens").fill("12")
    await story.write()
    text = await story.part("output").inner_text()
    assert len(text) > 30

    await expect(story.part("train-status")).to_contain_text("“evermind-base” is loaded")
    await story.part("personalize-text").fill("A draft.")
    await page.reload()
    await story.ready()
    await expect(story.part("personalize-text")).to_have_value("A draft.")
    await expect(story.part("shipped-status")).to_contain_text("no download")
    # What was last used is offered in step 1, until something is loaded.
    await expect(page.locator("#kept")).to_contain_text("evermind-base is kept here from the last time.")
    await expect(story.part("train-status")).to_have_text("Nothing is loaded; 1 saved thing is below.")
    loaded = len(page_log.requests)
    await page.get_by_role("button", name="Load it").click()
    await expect(page.locator("#kept")).to_be_hidden()
    await story.ready()
    await expect(story.part("generate")).to_be_enabled(timeout=STORY_MS)
    await story.part("max-tokens").fill("12")
    await story.write()
    assert await story.part("output").inner_text() == text
    await make_persona(story, "Private", OTHER)
    await story.write()
    # The runtime and the base are there: not one request more, to anybody.
    assert page_log.requests[loaded:] == []


# ---- writing --------------------------------------------------------------------------------------------------


async def test_the_editor_takes_words_and_rejects(story: StoryPage) -> None:
    prompt, output = story.part("prompt"), story.part("output")
    # However long the text is: Stop stays under the finger, and the end is shown.
    await prompt.fill("It was\n" * 20)
    await story.part("max-tokens").fill("200")
    place = "(button) => Math.round(button.getBoundingClientRect().top + scrollY)"
    before = await story.part("generate-stop").evaluate(place)
    await story.write()
    assert await story.part("generate-stop").evaluate(place) == before
    left = "(box) => box.scrollHeight - box.clientHeight - box.scrollTop"
    assert await story.page.locator("#editor").evaluate(left) < 60  # of what one more frame would show
    heights = [await part.evaluate("(part) => part.offsetHeight") for part in (prompt, output)]
    assert heights[0] == heights[1]
    await story.part("max-tokens").fill("12")
    await prompt.fill("It was")
    await story.write()
    written = await output.inner_text()
    assert written.startswith("It was")
    assert await prompt.input_value() == "It was"
    await prompt.press("End")
    await prompt.press("ArrowRight")
    first = await prompt.input_value()
    assert len(first) > len("It was")
    assert written.startswith(first)
    await story.part("take-word").click()
    second = await prompt.input_value()
    assert len(second) > len(first)
    # Typing what is suggested takes it; anything else rejects it.
    following = written[len(second)]
    await prompt.press("End")
    await prompt.press_sequentially(following)
    assert await output.inner_text() == written
    await prompt.press("Escape")
    assert await output.inner_text() == second + following
    await expect(story.part("take-all")).to_be_disabled()

    await prompt.fill("It was")
    await prompt.press("Control+Enter")
    await story.ready()
    await expect(output).to_have_text(written)
    await story.part("frequency-penalty").fill("2")  # so that the little that it knows does not decide everything
    await story.part("temperature").fill("1.5")
    await story.part("another").click()
    await expect(story.part("seed")).to_have_value("2")
    await expect(output).not_to_have_text(written)
    await story.ready()
    await story.part("take-all").click()
    assert await prompt.input_value() == await output.inner_text()


async def test_sampling_presets_and_reset(story: StoryPage) -> None:
    preset = story.part("preset")
    await expect(preset).to_have_value("Balanced")
    await preset.select_option("Likeliest word")
    await expect(story.part("temperature")).to_have_value("0")
    await story.part("prompt").fill("It was")
    await story.write()
    greedy = await story.part("output").inner_text()
    await preset.select_option("Inventive")
    await story.part("top-k").fill("1")  # only the likeliest is left
    await expect(preset).to_have_value("Your own")
    await story.write()
    assert await story.part("output").inner_text() == greedy
    await story.part("top-p").fill("0")
    await story.part("generate").click()
    await story.expect_error("Top p must be above 0")
    await story.part("sampling-reset").click()
    await expect(preset).to_have_value("Balanced")


async def test_tokens_show_what_else_was_likely(story: StoryPage) -> None:
    await story.part("prompt").fill("It was the")
    await story.part("show-tokens").click()
    tokens = story.part("tokens").get_by_role("button")
    await expect(tokens.first).to_be_visible()
    assert "".join(await tokens.all_inner_texts()).replace("\xa0", " ") == "It was the"
    await tokens.first.focus()
    await expect(story.part("token-details")).to_contain_text(re.compile(r"“.+”: .+ %\. Likeliest here: “"))
    await tokens.first.press("ArrowRight")
    await expect(tokens.nth(1)).to_be_focused()


# ---- personas -------------------------------------------------------------------------------------------------


async def test_several_files_are_read_previewed_and_removed(story: StoryPage, tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Where is the cat?"}, {"role": "bot", "content": {"parts": ["On the mat."]}}]
    files = {
        "a.md": "# A heading\n\nand words",
        "b.html": "<html><head><title>no</title><script>alert('no')</script></head><body><p>First.</p><p>Second.</p>",
        "c.json": json.dumps({"id": "no", "messages": chat}),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    await drop(story.page.locator("#personalize-drop"), files)
    box = story.part("personalize-text")
    await expect(box).to_have_value("# A heading\n\nand words\n\nFirst.\nSecond.\n\nWhere is the cat?\nOn the mat.")
    rows = story.page.locator("#personalize-files li")
    await expect(rows).to_have_count(3)
    await expect(rows.nth(2)).to_contain_text("c.json · 7 words")
    await rows.nth(0).get_by_role("button").click()
    await expect(box).to_have_value("First.\nSecond.\n\nWhere is the cat?\nOn the mat.")
    await expect(story.page.locator("#personalize-count")).to_contain_text("2 files · 9 words")
    await expect(story.page.locator("#personalize-count")).to_contain_text("a few pages work best")
    await drop(story.page.locator("#train-drop"), {"plain.txt": "Dropped words.", "bad.json": "{no json"})
    await story.expect_error(r"bad\.json is not valid JSON")
    await expect(story.part("train-text")).to_have_value("Dropped words.")
    await story.part("personalize-file").set_input_files([tmp_path / name for name in files])
    await expect(rows).to_have_count(3)
    # Many can be stopped, and what somebody typed can come back.
    await box.fill("My own words.")
    await drop(story.page.locator("#personalize-drop"), {f"{i}.txt": "plums" for i in range(10_000)})
    await expect(story.part("reading")).to_have_text(re.compile(r"Reading: (\d{3}|\d,\d{3}) of 10,000 files"))
    await story.part("reading-stop").click()
    await expect(story.part("notice")).to_have_text(
        re.compile(r"The first [\d,]+ of 10,000 files .* The files replaced your text")
    )
    await expect(box).to_have_value(re.compile("^plums\n\nplums"))
    await expect(rows).to_have_count(51)
    await expect(rows.last).to_have_text(re.compile(r"and [\d,]+ more"))
    await story.part("undo").click()
    await expect(box).to_have_value("My own words.")
    await expect(rows).to_have_count(0)
    # Beside the boxes the browser would open the file in place of the page, and what was learned would be gone.
    assert await drop(story.page.locator("#write"), {"plain.txt": "Dropped words."}) == [True, True]
    await expect(story.part("notice")).to_contain_text("Drop files onto the text box of step 1 or step 3")


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


# ---- mood, storage --------------------------------------------------------------------------------------------


async def test_the_mood_is_off_and_then_moves_what_is_written(story: StoryPage) -> None:
    await story.part("prompt").fill("It was")
    await story.part("max-tokens").fill("60")  # a short text may come out the same at two temperatures
    await story.part("temperature").fill("1.5")
    await story.part("frequency-penalty").fill("2")  # nor may the little that it knows decide everything
    await story.write()
    plain = await story.part("output").inner_text()
    await expect(story.page.locator("#mood-panel")).to_be_hidden()
    await story.part("mood-toggle").check()
    await expect(story.part("mood-bars").locator(".bar-row")).to_have_count(8)
    await story.part("trait-openness").fill("100")
    for _ in range(3):
        await story.part("feel-surprise").click()
    await expect(story.part("mood-effect")).to_have_text(re.compile(r"temperature 1\.50 into (1\.[6-9]|[23]\.)"))
    await story.write()
    assert await story.part("output").inner_text() != plain
    await story.part("mood-toggle").uncheck()
    await expect(story.page.locator("#mood-panel")).to_be_hidden()
    await story.write()
    assert await story.part("output").inner_text() == plain
    await story.part("mood-toggle").check()
    await expect(story.part("trait-openness")).to_have_value("50")  # it is a new one
    await story.part("temperature").fill("0.9")
    await expect(story.part("mood-effect")).to_contain_text("temperature 0.90")
    await story.part("mood-toggle").uncheck()


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


async def test_the_browsers_promise_to_keep_things(story: StoryPage) -> None:
    ask, storage = story.part("persist"), story.part("storage")
    await expect(storage).to_contain_text("may drop it when space runs low")
    answers = """(yes) => { navigator.storage.persist = async () => {
        navigator.storage.persisted = async () => yes;
        return yes;
    }; }"""
    await story.page.evaluate(answers, False)
    await ask.click()
    await expect(story.part("notice")).to_contain_text("did not promise it. Back up")
    await expect(ask).to_be_visible()
    await story.page.evaluate(answers, True)
    await ask.click()
    await expect(story.part("notice")).to_contain_text("will keep it")
    await expect(storage).to_contain_text("promised to keep it")
    await expect(ask).to_be_hidden()
