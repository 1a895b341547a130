"""Hostile names, texts, files and output in the page: all of it stays text, and nothing reaches a prototype."""

from __future__ import annotations

import json
import re
from pathlib import Path

from playwright.async_api import Page, expect

from evermind_web.formats import stored_zip
from tests.browser.conftest import PageLog
from tests.browser.story_page import StoryPage
from tests.browser.test_story_faults import NUMPY, TEXT

EVIL = '<img src=x onerror="hacked=1"><script>hacked=1</script>&lt;b&gt;'
PROBE = """() => ({
    hacked: 'hacked' in globalThis, images: document.querySelectorAll('img[src="x"]').length,
    scripts: [...document.scripts].filter((one) => !one.src).length,
    polluted: ({}).polluted !== undefined || ({}).lossAfter !== undefined,
})"""
CLEAN = {"hacked": False, "images": 0, "scripts": 0, "polluted": False}


def poisoned(exported: bytes, name: str) -> bytes:
    """The export with a hostile name, and metadata that would reach Object.prototype if it were merged carelessly."""
    members = stored_zip.read(exported, "the export")
    manifest = members["manifest.json"].decode()
    fields = json.loads(manifest) | {"name": name}
    text = json.dumps(fields)
    evil = '"metadata": {"__proto__": {"polluted": 1}, "constructor": {"prototype": {"polluted": 1}}, '
    members["manifest.json"] = text.replace('"metadata": {', evil, 1).encode()
    return stored_zip.write(members)


async def test_names_texts_and_files_stay_text(page: Page, tmp_path: Path) -> None:
    story = StoryPage(page)
    await story.open(NUMPY)
    await story.part("train-text").fill((EVIL + " " + TEXT) * 2)
    await story.learn("train", 1)
    await story.part("prompt").fill(EVIL)
    await story.part("max-tokens").fill("8")
    await story.write()
    await story.part("save-name").fill(EVIL[:70])  # `story.save` would need a selector for this name
    await story.part("save").click()
    await expect(page.get_by_test_id("saved-item")).to_have_count(1)
    assert await page.evaluate(PROBE) == CLEAN

    rows = page.get_by_test_id("saved-item")
    await expect(rows).to_have_count(1)
    assert EVIL[:70] in await rows.inner_text()
    async with page.expect_download() as download:
        await rows.get_by_test_id("export").click()
    exported = tmp_path / "exported.zip"
    await (await download.value).save_as(exported)
    changed = tmp_path / "changed.zip"
    changed.write_bytes(poisoned(exported.read_bytes(), "second " + EVIL[:60]))
    await story.part("import-file").set_input_files(changed)
    await expect(rows).to_have_count(2)
    assert await page.evaluate(PROBE) == CLEAN
    assert await page.workers[0].evaluate("({}).polluted === undefined")

    bad = tmp_path / "<img src=x onerror=hacked=1>.evl0"
    bad.write_bytes(b"noise" * 20)
    await story.part("import-file").set_input_files(bad)
    await expect(story.part("error")).to_contain_text(re.compile("not a model"))
    assert await page.evaluate(PROBE) == CLEAN


async def test_the_policy_holds_where_a_page_is_told_to_break_it(page: Page, page_log: PageLog) -> None:
    """Header and meta: an inline script, `eval` and another origin are stopped by the browser."""
    await page.goto(NUMPY)
    tried = await page.evaluate(
        """async () => {
            const script = document.createElement("script");
            script.textContent = "globalThis.hacked = 1";
            document.body.append(script);
            // In a timer: what a debugger evaluates may evaluate.
            const evaluated = await new Promise((resolve) => setTimeout(() => {
                try { (0, globalThis["ev" + "al"])("1"); resolve("ran"); } catch (error) { resolve(error.name); }
            }));
            const foreign = await fetch("https://example.invalid/").then(() => "went", (error) => error.name);
            const worker = (() => { try { new Worker("data:text/javascript,1"); return "made"; }
                                    catch (error) { return error.name; } })();
            return { hacked: "hacked" in globalThis, evaluated, foreign, worker };
        }"""
    )
    page_log.problems.clear()  # the browser reports each refusal on the console
    assert tried["hacked"] is False
    assert tried["evaluated"] == "EvalError"
    assert tried["foreign"] == "TypeError"
    reply = await page.request.get(page.url)
    meta = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', await reply.text())
    assert meta
    assert meta[1] == reply.headers["content-security-policy"]
