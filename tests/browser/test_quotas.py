"""DB1 on the page: 1, 5 and 50 MB of storage under its download, its import and its restore."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.async_api import BrowserContext, expect

from evermind_web import BPETokenizer, EvermindLM
from evermind_web.session.arrivals import content_name
from evermind_web.store import MemoryStore, SaveItem, export_all
from tests.browser.story_page import NUMPY, STORY_MS, TEXT, StoryPage

FULL = r"storage is full: need 13\.\d+ MiB, free (less than )?\d+\.\d+ MiB; delete what you can spare"


async def small_model(folder: Path) -> list[Path]:
    """A checkpoint of 60 KB and its tokenizer, as files."""
    tokenizer = BPETokenizer()
    tokenizer.train(TEXT, vocab_size=300)
    model = EvermindLM(tokenizer.vocab_size, d_model=16, hidden_dim=16)
    files = [folder / "small.evl0", folder / "tokenizer.json"]
    files[0].write_bytes(model.export_weights())
    files[1].write_text(tokenizer.to_str(), encoding="utf-8")
    return files


async def backup_of(checkpoint: bytes, codec: bytes, copies: int) -> bytes:
    """A backup that holds a model so many times."""
    store, name = MemoryStore(), content_name("tokenizer", codec)
    items = [SaveItem(f"copy {n}", checkpoint, "base", "f00d", {"tokenizer": name}) for n in range(copies)]
    await store.save_many([SaveItem(name, codec, "tokenizer"), *items])
    return await export_all(store)


@pytest.mark.parametrize("megabytes", [1, 5, 50])
async def test_db1_a_full_disk_under_download_import_and_restore(
    context: BrowserContext, dist: Path, server: str, tmp_path: Path, megabytes: int
) -> None:
    story = StoryPage(await context.new_page())
    cdp = await context.new_cdp_session(story.page)
    # Before the first save: Chromium remembers for half a minute how much room there was.
    quota = {"origin": server.rstrip("/"), "quotaSize": megabytes * 2**20}
    await cdp.send("Storage.overrideQuotaForOrigin", quota)
    base, codec = tmp_path / "large.evl0", dist / "models/tokenizer.json"
    base.write_bytes((dist / "models/evermind-base.evl0").read_bytes())
    copies = 1 + megabytes // 20

    await story.open(NUMPY)
    await story.part("import-file").set_input_files(await small_model(tmp_path))
    await expect(story.item("small")).to_be_visible()
    saved = ["small"]

    await story.part("shipped-start").click()
    if megabytes < 14:
        await story.expect_error(FULL)
        await expect(story.part("shipped-status")).to_contain_text("fetched once")
    else:
        await expect(story.part("notice")).to_contain_text("Loaded evermind-base", timeout=STORY_MS)
        saved = ["evermind-base", *saved]
    await story.ready()

    backup = tmp_path / "backup.zip"
    backup.write_bytes(await backup_of(base.read_bytes(), codec.read_bytes(), copies))
    await story.part("restore").set_input_files(backup)
    await story.expect_error(FULL.replace("13", str(13 * copies)), within=STORY_MS)
    assert await story.page.get_by_test_id("saved-item").count() == len(saved)
    for _ in range(copies):
        await story.part("import-file").set_input_files([base, codec])
        message = story.part("error").or_(story.part("notice"))
        await expect(message.filter(has_text=re.compile("large")).first).to_be_visible(timeout=STORY_MS)
        if await story.part("error").is_visible():
            break
        saved.append("large")
        await story.part("notice").get_by_label("Close").click()
    await story.expect_error(f"large.evl0: .*{FULL}")
    if "large" in saved:  # what it says to do helps
        await story.item("large").get_by_test_id("delete").click()
        await expect(story.item("large")).to_have_count(0)
        await story.part("import-file").set_input_files([base, codec])
        await expect(story.item("large")).to_be_visible(timeout=STORY_MS)

    # The page goes on, now and after a reload, with all that it had.
    for _ in range(2):
        await story.load("small")
        await story.part("prompt").fill("It was")
        await story.write()
        await expect(story.page.get_by_test_id("saved-item")).to_have_count(len(saved))
        await story.page.reload()
        await story.ready()
