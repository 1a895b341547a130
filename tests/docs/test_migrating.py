"""docs/migrating.md names every export of the TypeScript package, and no Python name that is not there."""

from __future__ import annotations

import re

import pytest

import evermind_web as ew
from evermind_web import limbic
from tests.docs.pages import ROOT

# What `dist/index.d.ts` of @seanhogg/builderforce-memory-engine 2026.7.14 exports; types are marked.
EXPORTS = (ROOT / "tests" / "data" / "typescript_exports.txt").read_text().splitlines()
ROWS = re.findall(r"^\| (`.*?) \| (.*) \|$", (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8"), re.MULTILINE)
# Words in the right column that are no names of the package.
WORDS = {"EvermindLM.config", ".config", "generate", "fit", "encode", "decode", "limbic", "seed="}


def test_every_export_has_one_row() -> None:
    named = [name for left, _ in ROWS for name in re.findall(r"`(\w+)`", left)]
    assert sorted(named) == sorted(line.removeprefix("type ") for line in EXPORTS)


@pytest.mark.parametrize("right", sorted({right for _, right in ROWS}))
def test_python_names_exist(right: str) -> None:
    for code in re.findall(r"`([^`]+)`", right):
        name = re.split(r"[(\s]", code.removeprefix("await ").removeprefix("len("))[0].rstrip(")")
        if code in WORDS or name.startswith(("int", "math.", "wgsl/", "README", "seed")):
            continue
        target: object = ew
        for part in name.split("."):
            assert hasattr(target, part), f"docs/migrating.md names {code}, which evermind_web does not have"
            target = getattr(target, part)


def test_limbic_state_has_eight_parts() -> None:
    assert len(limbic.LIMBIC_DIM_NAMES) == 8
