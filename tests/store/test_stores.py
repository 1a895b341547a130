"""What every store promises, on memory and on a folder. IndexedDB is held to it in tests/browser/test_store.py."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import pytest

from evermind_web.errors import InvalidArgumentError, RecordNotFoundError, StorageError
from evermind_web.store import MemoryStore, SaveItem, Store, open_store
from evermind_web.store.base import Record

NAMES = ["../../etc/passwd", "a/b\\c", "<img src=x onerror=alert(1)>", "名前 🧠", ".", "con", "a\x00b", "é" * 200]


@pytest.fixture(params=["memory", "folder"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else await open_store(tmp_path / "store")


async def names(store: Store) -> list[str]:
    return [record.name for record in await store.list()]


async def test_a_record_comes_back_with_its_bytes_and_fields(store: Store) -> None:
    source = bytearray(b"123456789")
    saved = await store.save("base", source, "base", "f00d", {"rank": 8, "none": None, "list": [1.5, "é"]})
    source[:] = b"xxxxxxxxx"
    record, data = await store.load("base")
    assert data == b"123456789"
    assert record == saved
    assert (record.kind, record.base_fingerprint, record.crc32, record.size) == ("base", "f00d", 0xCBF43926, 9)
    assert record.metadata == {"rank": 8, "none": None, "list": [1.5, "é"]}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record.created)
    assert await store.list() == [saved]
    used, quota = await store.estimate()
    assert used == 9
    assert quota == 0 or quota > used


@pytest.mark.parametrize("data", [b"", memoryview(b"abcd")[1:3], memoryview(b"abcdef")[::2]], ids=repr)
async def test_any_bytes_like_is_copied(store: Store, data: bytes) -> None:
    record = await store.save("x", data, "state")
    assert (await store.load("x"))[1] == bytes(data)
    assert (record.size, record.crc32) == (len(bytes(data)), zlib.crc32(bytes(data)))


async def test_any_unicode_text_is_a_name(store: Store) -> None:
    for name in NAMES:
        await store.save(name, name.encode(), "adapter")
    assert await names(store) == sorted(NAMES)
    for name in NAMES:
        assert (await store.load(name))[1] == name.encode()


@pytest.mark.parametrize("name", ["", "  ", "x" * 201, "\ud800", None, 3], ids=repr)
async def test_a_bad_name_is_refused(store: Store, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="name"):
        await store.save(name, b"", "base")
    await store.save("a", b"", "base")
    with pytest.raises(InvalidArgumentError, match="name"):
        await store.rename("a", name)
    assert await names(store) == ["a"]


@pytest.mark.parametrize("metadata", [{"n": 2**53}, {"x": float("nan")}, {"x": {1, 2}}, [1]], ids=repr)
async def test_metadata_that_json_or_javascript_would_lose_is_refused(
    store: Store, metadata: dict[str, object]
) -> None:
    with pytest.raises(InvalidArgumentError, match="metadata"):
        await store.save("a", b"", "base", metadata=metadata)
    assert await names(store) == []


async def test_bad_kind_data_and_fingerprint_are_refused(store: Store) -> None:
    with pytest.raises(InvalidArgumentError, match="kind"):
        await store.save("a", b"", "")
    with pytest.raises(InvalidArgumentError, match="must be bytes, got str"):
        await store.save("a", "text", "base")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="base_fingerprint must be a str"):
        await store.save("a", b"", "base", 5)  # type: ignore[arg-type]


async def test_a_taken_name_is_replaced_only_on_purpose(store: Store) -> None:
    first = await store.save("a", b"1", "base")
    with pytest.raises(StorageError, match="the name a is taken"):
        await store.save("a", b"2", "base")
    assert (await store.load("a"))[1] == b"1"
    second = await store.save("a", b"22", "adapter", replace=True)
    assert (await store.load("a"))[1] == b"22"
    assert second.created == first.created
    assert (await store.list())[0].kind == "adapter"


async def test_save_many_is_all_or_nothing(store: Store) -> None:
    await store.save("tokenizer", b"old", "tokenizer")
    pair = [SaveItem("base", b"b", "base"), SaveItem("tokenizer", b"t", "tokenizer")]
    with pytest.raises(StorageError, match="taken"):
        await store.save_many(pair)
    with pytest.raises(InvalidArgumentError, match="given twice"):
        await store.save_many([pair[0], pair[0]])
    assert await names(store) == ["tokenizer"]
    assert (await store.load("tokenizer"))[1] == b"old"
    await store.save_many(iter(pair), replace=True)
    assert await names(store) == ["base", "tokenizer"]
    assert await store.save_many([]) == []


async def test_rename_moves_the_bytes_and_refuses_a_collision(store: Store) -> None:
    await store.save_many([SaveItem("a", b"1", "base"), SaveItem("b", b"2", "base")])
    with pytest.raises(StorageError, match="the name b is taken"):
        await store.rename("a", "b")
    with pytest.raises(RecordNotFoundError):
        await store.rename("x", "y")
    await store.rename("a", "c")
    await store.rename("c", "c")
    assert await names(store) == ["b", "c"]
    record, data = await store.load("c")
    assert (record.name, data) == ("c", b"1")


async def test_db4_a_missing_record_is_named(store: Store) -> None:
    with pytest.raises(RecordNotFoundError, match="checkpoint my model is no longer in "):
        await store.load("my model")
    with pytest.raises(RecordNotFoundError, match="my model"):
        await store.delete("my model")
    await store.save("my model", b"1", "base")
    await store.delete("my model")
    with pytest.raises(RecordNotFoundError):
        await store.load("my model")


async def test_several_are_deleted_or_none(store: Store) -> None:
    await store.save_many([SaveItem(name, name.encode(), "base") for name in "abc"])
    with pytest.raises(RecordNotFoundError, match="x is no longer"):
        await store.delete("a", "x", "b")
    assert [(await store.load(name))[1] for name in await names(store)] == [b"a", b"b", b"c"]
    await store.delete("a", "c", "a")
    assert await names(store) == ["b"]
    await store.delete()
    assert await names(store) == ["b"]


async def test_a_closed_store_refuses_every_call(store: Store) -> None:
    await store.save("a", b"1", "base")
    store.close()
    store.close()
    for call in (store.list(), store.load("a"), store.save("b", b"", "x"), store.delete("a"), store.estimate()):
        with pytest.raises(StorageError, match="closed"):
            await call


async def test_persistent_tells_what_survives(store: Store) -> None:
    assert store.persistent is not isinstance(store, MemoryStore)
    assert await store.persist() is store.persistent
    assert store.notice == ""


def test_a_record_with_wrong_fields_is_refused() -> None:
    good = {
        "name": "a",
        "kind": "base",
        "base_fingerprint": "",
        "crc32": 1,
        "size": 2,
        "created": "",
        "modified": "",
        "metadata": {},
    }
    assert Record.from_json(good).to_json() == good
    for field, value in [("size", True), ("size", "2"), ("metadata", []), ("name", None)]:
        with pytest.raises(StorageError, match=f"record field '{field}'"):
            Record.from_json({**good, field: value})
