"""The page as a product: the shipped model, the editor, texts, mood, storage; nothing leaves the device."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, expect

from tests.browser.conftest import PageLog, check, open_context
from tests.browser.story_page import NUMPY, OTHER, STORY_MS, StoryPage, begin, make_persona

SHIPPED = Path(__file__).parents[2] / "web" / "models" / "evermind-base.evl0"


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


# ---- texts ----------------------------------------------------------------------------------------------------


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
