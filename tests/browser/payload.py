"""Puts the shared test modules and golden data into the page, and calls what `tests.in_page` offers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.browser.harness import PyodidePage

TESTS = Path(__file__).parent.parent
MODULES = ("operands", "cases", "counting", "parity", "splits", "golden_data", "golden_models", "learning", "in_page")
GOLDEN = ("lm_forward", "lm_grad", "generate", "lm_models")


def _files() -> dict[str, bytes | Path]:
    files: dict[str, bytes | Path] = {f"tests/{name}.py": TESTS / f"{name}.py" for name in MODULES}
    for kind in GOLDEN:
        for path in sorted((TESTS / "golden" / kind).iterdir()):
            files[f"tests/golden/{kind}/{path.name}"] = path
    return {"tests/__init__.py": b""} | files


async def in_page(page: PyodidePage, call: str, **values: Any) -> Any:
    """Evaluate `await tests.in_page.<call>`, with `values` as its names; the files are sent once a page."""
    if not getattr(page, "has_cases", False):
        await page.write_files(_files())
        page.has_cases = True  # type: ignore[attr-defined]
    return await page.run_python(f"from tests.in_page import *\nawait {call}", **values)
