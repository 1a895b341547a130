"""Links from one page of the documentation to another lead to a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, name

LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files(page: Path) -> None:
    targets = [t for t in LINK.findall(page.read_text(encoding="utf-8")) if not t.startswith(("http:", "https:"))]
    assert [t for t in targets if not (page.parent / t).exists()] == []
