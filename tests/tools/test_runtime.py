"""The runtime's wheels: only bytes with the lock's sha256 are kept, wherever they come from."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tools import runtime
from tools.common import ToolError

GOOD = b"the wheel's bytes"


@pytest.fixture
def entry() -> dict[str, Any]:
    return {"file_name": "x-1-py3-none-any.whl", "sha256": hashlib.sha256(GOOD).hexdigest(), "depends": []}


def refuse(_: str) -> bytes:
    raise OSError("no network")


def test_sources_are_tried_in_order(tmp_path: Path, entry: dict[str, Any]) -> None:
    asked: list[str] = []

    def good(name: str) -> bytes:
        asked.append(name)
        return GOOD

    path, origin = runtime.obtain(entry, tmp_path, [("first", refuse), ("second", good), ("third", refuse)])
    assert (path.read_bytes(), origin, asked) == (GOOD, "second", ["x-1-py3-none-any.whl"])
    assert runtime.obtain(entry, tmp_path, [("first", refuse)])[1] == "the cache"
    assert [file.name for file in tmp_path.iterdir()] == ["x-1-py3-none-any.whl"]


def test_wrong_bytes_are_refused_and_not_kept(tmp_path: Path, entry: dict[str, Any]) -> None:
    sources = [("a mirror", lambda _: GOOD + b"!"), ("another", refuse)]
    with pytest.raises(ToolError) as caught:
        runtime.obtain(entry, tmp_path, sources)
    text = str(caught.value)
    assert "a mirror: ToolError: x-1-py3-none-any.whl: sha256 expected" in text
    assert "another: OSError: no network" in text
    assert str(tmp_path) in text
    assert not list(tmp_path.iterdir())


def test_damaged_cache_is_replaced(tmp_path: Path, entry: dict[str, Any]) -> None:
    (tmp_path / entry["file_name"]).write_bytes(b"cut off")
    path, origin = runtime.obtain(entry, tmp_path, [("mirror", lambda _: GOOD)])
    assert (path.read_bytes(), origin) == (GOOD, "mirror")


def test_closure_follows_dependencies() -> None:
    lock = {"packages": {"a": {"depends": ["b"]}, "b": {"depends": ["c", "a"]}, "c": {"depends": []}, "d": {}}}
    assert list(runtime.closure(lock, ["a"])) == ["a", "b", "c"]


def test_cdn_address_comes_from_the_loader() -> None:
    assert runtime.cdn_url().startswith("https://")
    assert runtime.cdn_url().endswith(f"/pyodide/v{runtime.version()}/full/")
