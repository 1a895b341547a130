"""Every row of docs/reliability.md's table names files that hold tests of that name."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
PAGE = (TESTS.parent / "docs" / "reliability.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| ([A-Z]{2}\d+) \| (.+) \|$", PAGE, flags=re.MULTILINE))


def files_of(row: str) -> list[str]:
    pattern = re.compile(rf"^(?:async )?def test(?:_\w+?)?_{row.lower()}(?:_\w+)?\(", re.MULTILINE)
    found = [path for path in TESTS.rglob("test_*.py") if pattern.search(path.read_text(encoding="utf-8"))]
    return sorted(str(path.relative_to(TESTS)) for path in found)


def test_every_row_names_its_tests() -> None:
    assert len(ROWS) == 55
    for row, cell in ROWS.items():
        named = re.findall(r"`([^`]+)`", cell)
        assert named, f"{row} has no test"
        assert set(named) <= set(files_of(row)), f"{row}: a file that is named has no test of it"


def test_a_row_without_tests_is_seen() -> None:
    assert files_of("ZZ9") == []
