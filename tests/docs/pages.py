"""The code in README.md and docs/*.md.

A block is what stands between ``` lines. Its info string says how it is tested:

    python            runs in CPython, on NumPy; the blocks of a page share their names, in order
    python browser    runs in Pyodide; the line that installs the wheel is left out, it is there already
    js                runs in a page of dist/; the blocks of a page share their names
    sh                each line that starts with `python -m evermind_web` runs; the rest (make …) does not
    anything else, or with the word norun: only shown
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SAMPLES = ROOT / "web" / "samples"
BLOCK = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One block: where it starts, its info words, its text."""

    page: Path
    line: int
    info: tuple[str, ...]
    text: str


def blocks(page: Path, *info: str) -> list[Block]:
    """The blocks of a page with exactly this info string."""
    content = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(content):
        words = tuple(match[1].split())
        if words == info:
            found.append(Block(page, content.count("\n", 0, match.start()) + 1, words, match[2]))
    return found


def pages_with(*info: str) -> list[Path]:
    """The pages that have such a block."""
    return [page for page in PAGES if blocks(page, *info)]


def name(page: Path) -> str:
    """The page's address in the repository."""
    return page.relative_to(ROOT).as_posix()
