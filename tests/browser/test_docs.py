"""The examples of README.md and docs/ that need a browser, as they are printed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.async_api import Page

from tests.browser.harness import PyodidePage
from tests.docs.pages import SAMPLES, blocks, name, pages_with

# Two steps show that an example works; 40 would take a minute where the CPU plays GPU.
QUICK = ('length: "quick"', "steps: 2")
IMPORT = re.compile(r'import \{ (\w+(?:, \w+)*) \} from "\./evermind\.mjs";')


@pytest.mark.parametrize("page", pages_with("python", "browser"), ids=name)
async def test_python_in_pyodide(page: Path, pyodide_page: PyodidePage) -> None:
    await pyodide_page.write_files({n: SAMPLES / n for n in ("alice.txt", "time-machine.txt")})
    for block in blocks(page, "python", "browser"):
        code = "\n".join(line for line in block.text.splitlines() if "micropip" not in line)
        await pyodide_page.run_python(code + "\nNone")


@pytest.mark.parametrize("doc", pages_with("js"), ids=name)
async def test_javascript(doc: Path, page: Page) -> None:
    await page.goto("/__test__/blank.html")
    code = "\n".join(block.text for block in blocks(doc, "js")).replace(*QUICK)
    assert QUICK[0] not in code.replace(*QUICK)
    code = IMPORT.sub(r'const { \1 } = await import("/evermind.mjs");', code)
    assert "import {" not in code, "an import that this test does not know"
    texts = {n: (SAMPLES / f"{n}.txt").read_text(encoding="utf-8") for n in ("alice", "time-machine")}
    before = f"""
        const text = {json.dumps(texts["alice"])}, secondText = {json.dumps(texts["time-machine"])};
        const output = document.body.appendChild(document.createElement("pre"));
    """
    await page.evaluate(f"async () => {{ {before}\n{code}\n }}")
    assert await page.evaluate("document.querySelector('pre').textContent")
