"""A folder store under damage, several processes, full disks and sudden death."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evermind_web.errors import InvalidArgumentError, StorageError, StorageFullError
from evermind_web.store import SaveItem, Store, open_store
from evermind_web.store import folder as module
from evermind_web.store.base import prepare


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "models"


def blobs(path: Path) -> list[Path]:
    return sorted((path / "blobs").iterdir())


async def test_records_survive_and_nothing_lies_outside_the_folder(path: Path) -> None:
    store = await open_store(str(path))
    await store.save("../escape", b"1", "base")
    store.close()
    assert os.listdir(path.parent) == ["models"]
    assert set(os.listdir(path)) == {".lock", "blobs", "index.json"}
    again = await open_store(path)
    assert (await again.load("../escape"))[1] == b"1"


async def test_replaced_and_deleted_bytes_are_removed(path: Path) -> None:
    store = await open_store(path)
    await store.save("a", b"1", "base")
    await store.save("a", b"22", "base", replace=True)
    assert [blob.read_bytes() for blob in blobs(path)] == [b"22"]
    await store.rename("a", "b")
    assert [blob.read_bytes() for blob in blobs(path)] == [b"22"]
    await store.delete("b")
    assert blobs(path) == []


async def test_damaged_truncated_and_missing_bytes_are_told_apart(path: Path) -> None:
    store = await open_store(path)
    await store.save("a", b"123", "base")
    (blob,) = blobs(path)
    blob.write_bytes(b"124")
    with pytest.raises(StorageError, match="a is damaged: CRC-32 is "):
        await store.load("a")
    blob.write_bytes(b"12")
    with pytest.raises(StorageError, match="a is truncated: have 2 of 3 bytes"):
        await store.load("a")
    blob.unlink()
    with pytest.raises(StorageError, match="the bytes of a are missing"):
        await store.load("a")


async def test_a_record_replaced_while_it_is_read_is_the_newest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store(path)
    await store.save("a", b"0", "base")
    read, versions = Path.read_bytes, iter((b"1", b"2", b"3"))

    def read_bytes(file: Path) -> bytes:
        for data in versions:  # another process is faster, three times
            with store._changing(1) as index:  # type: ignore[attr-defined]
                index["a"] = module._Entry(prepare(SaveItem("a", data, "base"))[0], store._write_blob(data))  # type: ignore[attr-defined]
            break
        return read(file)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    record, data = await store.load("a")
    assert (record.size, data) == (1, b"3")
    (blob,) = blobs(path)
    blob.unlink()
    blob.mkdir()
    with pytest.raises(StorageError, match="the bytes of a cannot be read"):
        await store.load("a")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "not an index"),
        ('{"format": "evermind_web store", "version": 2, "records": []}', "version 2, this package reads 1"),
        ('{"format": "evermind_web store", "version": 1, "records": [{"blob": "../x.bin"}]}', "as a file of bytes"),
        ('{"format": "evermind_web store", "version": 1, "records": [{"blob": "aa.bin"}]}', "record field 'name'"),
        ('{"format": "evermind_web store", "version": 1, "records": [3]}', "holds no list of records"),
        ('{"format": "evermind_web store", "version": 1, "records": {}}', "holds no list of records"),
        ('{"format": "evermind_web store", "version": 1}', "holds no list of records"),
        ("[" * 100_000, "cannot be read"),
    ],
)
async def test_a_damaged_index_is_refused_and_nothing_is_swept_away(path: Path, text: str, message: str) -> None:
    store = await open_store(path)
    await store.save("a", b"123", "base")
    (path / "index.json").write_text(text)
    with pytest.raises(StorageError, match=message):
        await store.save("b", b"4", "base")
    with pytest.raises(StorageError, match=message):
        await open_store(path)
    assert b"123" in [blob.read_bytes() for blob in blobs(path)]
    (path / "index.json").unlink()
    with pytest.raises(StorageError, match="missing, but records are there"):
        await open_store(path)


def test_a_file_in_the_way_is_a_storage_error(path: Path) -> None:
    path.write_text("")
    with pytest.raises(StorageError, match="cannot keep a store in"):
        module.FolderStore(path)


async def test_an_empty_name_makes_no_store_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("", " "):
        with pytest.raises(InvalidArgumentError, match="a store needs a name"):
            await open_store(name)
    assert os.listdir(tmp_path) == []
    await open_store(Path("."))  # which says so
    assert "index.json" in os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["a\0b", "half \ud800"])
async def test_a_path_that_no_system_takes_is_a_storage_error(path: Path, name: str) -> None:
    with pytest.raises(StorageError, match="cannot keep a store in"):
        await open_store(path / name)


async def test_db1_a_full_disk_keeps_the_older_record(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store(path)
    await store.save("a", b"old", "base")
    real = module._write_through

    def full(file: object, data: bytes) -> None:
        if len(data) > 2**20:
            file.write(data[:1000])  # type: ignore[attr-defined]
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file, data)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_write_through", full)
    with pytest.raises(StorageFullError, match=r"is full: need 2\.00 MiB, free \d"):
        await store.save_many([SaveItem("b", b"1", "base"), SaveItem("a", bytes(2**21), "base")], replace=True)
    assert [record.name for record in await store.list()] == ["a"]
    assert (await store.load("a"))[1] == b"old"
    assert len(blobs(path)) == 1


async def test_an_index_that_names_a_record_twice_is_refused(path: Path) -> None:
    store = await open_store(path)
    await store.save("a", b"1", "base")
    await store.save("b", b"2", "base")
    index = path / "index.json"
    index.write_text(index.read_text().replace('"name": "b"', '"name": "a"'))
    with pytest.raises(StorageError, match="names a twice"):
        await store.save("c", b"3", "base")
    assert {b"1", b"2"} <= {blob.read_bytes() for blob in blobs(path)}


async def test_a_disk_too_full_to_delete_does_not_advise_deleting(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store(path)
    await store.save("a", b"old", "base")

    def full(file: object, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "_write_through", full)
    with pytest.raises(StorageFullError, match="free some disk space; nothing was changed"):
        await store.delete("a")
    assert (await store.load("a"))[1] == b"old"


async def test_a_writer_that_does_not_let_go_is_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store(path)
    monkeypatch.setattr(module, "_LOCK_TIMEOUT_S", 0.1)
    with module._writer_lock(path / ".lock"):
        assert await store.list() == []  # reading needs no lock
        with pytest.raises(StorageError, match="another process has been writing"):
            await store.save("a", b"1", "base")
    await store.save("a", b"1", "base")


WRITER = """
import asyncio, sys
from evermind_web.store import SaveItem, open_store

async def main():
    store = await open_store(sys.argv[1])
    print("ready", flush=True)
    for i in range(int(sys.argv[3])):
        data = bytes([i % 251]) * 20000
        await store.save_many([SaveItem(f"{sys.argv[2]} base", data, "base"),
                               SaveItem(f"{sys.argv[2]} tokenizer", data, "tokenizer")], replace=True)

asyncio.run(main())
"""


def start_writer(path: Path, name: str, rounds: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WRITER, str(path), name, str(rounds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])


async def check_pairs(store: Store) -> int:
    """Every record is whole, and each base has the bytes of its tokenizer."""
    records = await store.list()
    loaded = {record.name: (await store.load(record.name))[1] for record in records}
    for name, data in loaded.items():
        assert data == bytes([data[0]]) * 20000
        assert data == loaded[name.replace("base", "tokenizer")]
    return len(loaded)


async def test_killed_writers_leave_old_or_new_records_never_a_third_thing(path: Path) -> None:
    store = await open_store(path)
    for kill in range(4):
        writer = start_writer(path, "x", 100_000)
        assert writer.stdout is not None
        writer.stdout.readline()
        await asyncio.sleep(0.02 + 0.013 * kill)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        await check_pairs(store)
    await store.save("after", bytes(20000), "base")
    await store.delete("after")
    assert len(blobs(path)) == await check_pairs(store) == 2


async def test_two_processes_lose_no_update(path: Path) -> None:
    writers = [start_writer(path, name, 10) for name in ("x", "y")]
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    store = await open_store(path)
    assert await check_pairs(store) == 4
    assert {(await store.load(f"{name} base"))[1][0] for name in ("x", "y")} == {9}


async def test_a_thousand_adapters_are_listed_without_their_bytes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # a thousand of them take seconds
    store = await open_store(path)
    await store.save_many([SaveItem(f"adapter {i}", b"x", "adapter", metadata={"rank": 8}) for i in range(1000)])
    for blob in blobs(path):
        blob.unlink()
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        assert len(await store.list()) == 1000
        best = min(best, time.perf_counter() - started)
    assert best < 0.2
    assert json.loads((path / "index.json").read_text())["version"] == module.VERSION
