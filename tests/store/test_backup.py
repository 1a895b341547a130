"""One file holds a whole store; an import takes all of it or nothing."""

from __future__ import annotations

import io
import json
import random
import zipfile
from typing import Any

import pytest

from evermind_web.errors import EvermindError, FormatError, StorageError
from evermind_web.store import MemoryStore, SaveItem, export_all, import_all
from evermind_web.store.backup import read_backup

BASE = bytes(range(256)) * 4


async def filled() -> MemoryStore:
    store = MemoryStore()
    await store.save_many(
        [
            SaveItem("base", BASE, "base", "f00d", {"d_model": 64}, created="2020-01-01T00:00:00.000Z"),
            SaveItem("../名", b"{}", "tokenizer"),
            SaveItem("empty", b"", "adapter"),
        ]
    )
    return store


def changed(backup: bytes, **edit: Any) -> bytes:
    """The backup with fields of its manifest, or (by "first_") of its first record, replaced."""
    with zipfile.ZipFile(io.BytesIO(backup)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members["manifest.json"])
    for key, value in edit.items():
        if key.startswith("first_"):
            manifest["records"][0][key.removeprefix("first_")] = value
        else:
            manifest[key] = value
    members["manifest.json"] = json.dumps(manifest).encode()
    return zipped(members)


def zipped(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return target.getvalue()


async def test_a_backup_restores_every_record() -> None:
    store = await filled()
    backup = await export_all(store)
    assert backup == await export_all(store)
    other = MemoryStore()
    await import_all(other, backup)
    for record in await store.list():
        restored, data = await other.load(record.name)
        assert data == (await store.load(record.name))[1]
        assert {**restored.to_json(), "modified": ""} == {**record.to_json(), "modified": ""}
    with zipfile.ZipFile(io.BytesIO(backup)) as archive:
        assert archive.testzip() is None
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
        assert archive.namelist() == ["manifest.json", "data/0000.bin", "data/0001.bin", "data/0002.bin"]


async def test_some_records_can_be_exported() -> None:
    backup = await export_all(await filled(), ["empty"])
    assert [item.name for item in read_backup(backup)] == ["empty"]


async def test_an_import_that_collides_writes_nothing_unless_told_to_replace() -> None:
    backup = await export_all(await filled())
    store = MemoryStore()
    await store.save("empty", b"mine", "adapter")
    with pytest.raises(StorageError, match="the name empty is taken"):
        await import_all(store, backup)
    assert [record.name for record in await store.list()] == ["empty"]
    await import_all(store, backup, replace=True)
    assert (await store.load("empty"))[1] == b""


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"version": 2}, "has version 2, expected 1"),
        ({"format": "x"}, "of another program"),
        ({"records": 5}, "no list of records"),
        ({"records": []}, "members and manifest differ"),
        ({"first_member": "data/0001.bin"}, "members and manifest differ"),
        ({"first_member": "../x"}, "members and manifest differ"),
        ({"first_crc32": 1}, "length or CRC-32 differs"),
        ({"first_size": 1}, "length or CRC-32 differs"),
        ({"first_size": "1"}, "record field 'size'"),
        ({"first_name": "x" * 201}, "at most 200 characters"),
        ({"first_metadata": {"n": 2**60}}, "more than JavaScript counts"),
        ({"first_kind": ""}, "kind"),
    ],
)
async def test_a_backup_that_contradicts_itself_is_refused(edit: dict[str, Any], message: str) -> None:
    backup = changed(await export_all(await filled()), **edit)
    store = MemoryStore()
    with pytest.raises(FormatError, match=message):
        await import_all(store, backup)
    assert await store.list() == []


async def test_two_records_of_one_name_are_refused() -> None:
    backup = changed(await export_all(await filled()), first_name="empty")
    store = MemoryStore()
    with pytest.raises(EvermindError, match=r"given twice|taken"):
        await import_all(store, backup)
    assert await store.list() == []


@pytest.mark.parametrize("data", [b"", b"<!doctype html>404", b"PK\x05\x06" + bytes(18), zipped({"a": b""})], ids=repr)
def test_other_files_are_no_backup(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"not a backup|the backup is damaged or cut off"):
        read_backup(data)


def test_a_compressed_zip_is_refused() -> None:
    bomb = zipped({"manifest.json": bytes(10**6)}, zipfile.ZIP_DEFLATED)
    with pytest.raises(FormatError, match="compressed"):
        read_backup(bomb)


async def test_mutated_backups_are_refused_or_mean_the_same() -> None:
    backup = await export_all(await filled())
    right = read_backup(backup)
    draw = random.Random(7)
    refused = 0
    for _ in range(600):
        data = bytearray(backup)
        if draw.random() < 0.3:
            del data[draw.randrange(len(data)) :]
        for _ in range(draw.choice([1, 1, 4])):
            if data:
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        try:
            found = read_backup(bytes(data))
        except FormatError:
            refused += 1
        else:
            assert found == right  # only a byte that means nothing was hit, such as a date
    assert refused > 450
