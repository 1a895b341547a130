"""The whole page on a phone: every flow by touch on 360 × 740, each screen measured, and at last without a network."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.browser.conftest import PageLog, check
from tests.browser.fit import MAX_SHIFT, WATCH_SHIFTS, look, shifts
from tests.browser.story_page import NUMPY, OTHER, STORY_MS, TEXT, StoryPage
from tools.browser import config


@pytest_asyncio.fixture(loop_scope="session")
async def phone(browser: Browser, server: str) -> AsyncIterator[StoryPage]:
    """The page on a phone with a fresh profile, with service workers."""
    context = await browser.new_context(
        base_url=server,
        viewport={"width": 360, "height": 740},
        has_touch=True,
        is_mobile=True,
        color_scheme="dark",
        permissions=["clipboard-read", "clipboard-write"],
    )
    context.set_default_timeout(config.ACTION_TIMEOUT_MS)
    page = await context.new_page()
    log = PageLog(page, server)
    yield StoryPage(page, touch=True)
    check(log)
    await context.close()


async def test_every_flow_by_touch(phone: StoryPage, tmp_path: Path) -> None:
    await phone.page.goto(NUMPY)
    await phone.page.evaluate(WATCH_SHIFTS)
    await phone.ready()
    await look(phone.page, "phone-first-visit")
    await teach_and_write(phone)
    await make_personas(phone, tmp_path)
    await compare_and_mix(phone)
    await change_personas(phone, tmp_path)
    await watch(phone, tmp_path)
    await mood(phone)
    moved = await shifts(phone.page)
    assert sum(value for value, _ in moved) <= MAX_SHIFT, moved
    await keep(phone, tmp_path)


async def teach_and_write(phone: StoryPage) -> None:
    """A model of a pasted text; its words are taken, rejected, made anew, copied, looked at one by one."""
    await phone.part("train-text").fill(TEXT)
    await phone.learn("train", 2)
    await look(phone.page, "phone-learned")
    await phone.part("max-tokens").fill("12")
    prompt, output = phone.part("prompt"), phone.part("output")
    await prompt.fill("It was")
    await phone.write()
    written = await output.inner_text()
    await phone.press(phone.part("take-word"))
    assert written.startswith(await prompt.input_value())
    assert len(await prompt.input_value()) > len("It was")
    await phone.press(phone.part("reject"))
    assert await output.inner_text() == await prompt.input_value()
    await phone.write()
    await phone.press(phone.part("another"))
    await expect(phone.part("seed")).to_have_value("2")
    await phone.ready()
    await phone.press(phone.part("copy"))
    await expect(phone.part("notice")).to_contain_text("Copied")
    assert await phone.page.evaluate("navigator.clipboard.readText()") == await output.inner_text()
    await phone.press(phone.part("show-tokens"))
    tokens = phone.part("tokens").get_by_role("button")
    await phone.press(tokens.nth(1))
    await expect(phone.part("token-details")).to_contain_text("Likeliest here")
    await phone.press(phone.page.locator("#sampling summary"))
    await look(phone.page, "phone-written")
    await phone.press(phone.page.locator("#sampling summary"))
    await phone.press(phone.part("show-tokens"))
    await phone.save("Times")


async def make_personas(phone: StoryPage, folder: Path) -> None:
    """One of a pasted text, resting in between; one of three files."""
    await phone.part("personalize-text").fill(OTHER)
    await phone.part("adapter-name").fill("Plain")
    await phone.part("personalize-length").select_option("long")
    await phone.press(phone.part("personalize-start"))
    status = phone.part("personalize-status")
    await expect(status).to_have_text(re.compile("step [0-9]+ of"), timeout=STORY_MS)
    await phone.press(phone.part("personalize-pause"))
    await expect(status).to_contain_text("Paused")
    await look(phone.page, "phone-paused")
    await phone.press(phone.part("personalize-pause"))
    await expect(status).to_have_text(re.compile("step [0-9]+ of"), timeout=STORY_MS)
    await phone.press(phone.part("personalize-stop"))
    await expect(status).to_have_text(re.compile("Stopped and kept"), timeout=STORY_MS)
    await expect(phone.part("personalize-pause")).to_be_disabled()
    await phone.ready()
    chat = json.dumps([{"role": "user", "content": OTHER[:200]}])
    files = {"a.txt": OTHER.upper(), "b.html": f"<p>{OTHER.lower()}</p>", "c.json": chat}
    for name, text in files.items():
        (folder / name).write_text(text)
    await phone.part("personalize-file").set_input_files([folder / name for name in files])
    await expect(phone.page.locator("#personalize-files li")).to_have_count(3)
    await expect(phone.part("notice")).to_contain_text("The files replaced your text.")
    await look(phone.page, "phone-files")
    await phone.part("adapter-name").fill("Loud")
    await phone.learn("personalize", 1)
    await phone.ready()


async def compare_and_mix(phone: StoryPage) -> None:
    colours = [await swatch.input_value() for swatch in await phone.part("persona-colour").all()]
    assert len(set(colours)) == len(colours) == 2
    await phone.part("second-select").select_option("Plain")
    await phone.write("compare")
    for side in ("base", "adapter", "second"):
        assert await phone.part(f"compare-{side}").inner_text()
    await phone.part("mix").fill("25")
    await expect(phone.page.locator("#mixer legend")).to_have_text("Mix two: 75 % Plain + 25 % Loud")
    await phone.press(phone.part("mix-toggle"))
    await expect(phone.part("writer")).to_have_text(re.compile(r"Writes: \d+ % .+ \+ \d+ % .+"))
    await phone.write()
    await look(phone.page, "phone-compared")


async def change_personas(phone: StoryPage, folder: Path) -> None:
    """Learn on, copy, rename, take along, delete, undo, bring back from the file."""
    await phone.press(phone.persona("Plain", "learn"))
    await phone.learn("personalize", 1)
    await phone.ready()
    await phone.press(phone.persona("Plain", "more"))
    await expect(phone.persona("Plain", "more")).to_have_attribute("aria-expanded", "true")
    await look(phone.page, "phone-more")
    await phone.press(phone.persona("Plain", "more"))
    await expect(phone.persona("Plain", "delete")).to_be_hidden()
    await phone.press(phone.persona("Plain", "texts"))
    await expect(phone.part("text")).to_have_count(2)
    await look(phone.page, "phone-texts")
    await phone.press(phone.page.locator("#texts-dialog").get_by_role("button", name="Close"))
    await phone.do("Plain", "duplicate")
    await phone.do("Plain 2", "rename")
    await look(phone.page, "phone-rename")
    await phone.part("rename-name").fill("Quiet")
    await phone.press(phone.part("rename-ok"))
    async with phone.page.expect_download() as download:
        await phone.do("Quiet", "export")
    path = folder / "quiet.adapter.zip"
    await (await download.value).save_as(path)
    await phone.do("Quiet", "delete")
    await expect(phone.persona("Quiet")).to_have_count(0)
    await look(phone.page, "phone-undo")
    await phone.press(phone.part("undo"))
    await expect(phone.persona("Quiet")).to_be_visible()
    await phone.do("Quiet", "delete")
    await expect(phone.persona("Quiet")).to_have_count(0)
    await phone.part("import-file").set_input_files(path)
    await expect(phone.item("Quiet")).to_be_visible()


async def watch(phone: StoryPage, folder: Path) -> None:
    await phone.do("Plain", "record")
    await expect(phone.part("experts").locator(".bar-row")).to_have_count(2)
    await look(phone.page, "phone-record")
    for kind, start in (("csv", b"step,loss,gradient_norm,held_out_loss\n0,,,"), ("png", b"\x89PNG")):
        async with phone.page.expect_download() as download:
            await phone.press(phone.part(f"record-{kind}"))
        path = folder / f"run.{kind}"
        await (await download.value).save_as(path)
        assert path.read_bytes().startswith(start)
    await phone.press(phone.page.locator("#record-dialog").get_by_role("button", name="Close"))


async def mood(phone: StoryPage) -> None:
    await phone.press(phone.part("mood-toggle"))
    await expect(phone.part("mood-bars").locator(".bar-row")).to_have_count(8)
    await phone.press(phone.part("feel-surprise"))
    await expect(phone.part("mood-effect")).to_contain_text("temperature")
    await look(phone.page, "phone-mood")
    await phone.press(phone.part("mood-toggle"))


def in_bytes(text: str) -> float:
    """The first size that is named."""
    found = re.search(r"([\d.]+) (bytes|KB|MB|GB)", text)
    assert found, text
    return float(found[1]) * {"bytes": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9}[found[2]]


async def keep(phone: StoryPage, folder: Path) -> None:
    """Back up, delete all, restore, and all of it without a network."""
    async with phone.page.expect_download() as download:
        await phone.press(phone.part("backup"))
    path = folder / "backup.zip"
    await (await download.value).save_as(path)
    rows = await phone.part("storage-list").get_by_role("listitem").all_inner_texts()
    page = next(row for row in rows if row.startswith("This page"))
    assert in_bytes(page) > 10e6, rows  # Python is
    said = in_bytes(await phone.part("storage").inner_text())
    assert abs(sum(map(in_bytes, rows)) - said) < 0.01 * said, (rows, said)
    await look(phone.page, "phone-storage")
    await phone.press(phone.part("wipe"))
    await look(phone.page, "phone-confirm")
    await phone.press(phone.part("confirm-ok"))
    await expect(phone.part("notice")).to_contain_text("Everything was deleted", timeout=config.READY_TIMEOUT_MS)
    await expect(phone.part("saved-list")).to_have_text("Nothing saved yet.")
    assert not any((await phone.held()).values())
    assert await phone.page.evaluate("async () => (await navigator.serviceWorker.ready).active !== null")
    await phone.page.context.set_offline(True)
    await phone.page.reload()
    await phone.ready()
    await phone.part("restore").set_input_files(path)
    await phone.load("Loud")
    await phone.part("max-tokens").fill("8")
    await phone.write()
    await expect(phone.part("writer")).to_have_text("Writes: Loud")
    await look(phone.page, "phone-offline")
