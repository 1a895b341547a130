"""Files of a stranger: every parser, many broken files, a seed each; and the faults that fuzzing found, by name.

`make soak` runs the same with 100,000 files each (tools/soak.py); its figures are in docs/reliability.md.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import evermind_web as ew
from evermind_web.cli.contents import contents
from evermind_web.errors import EvermindError, FormatError, InvalidArgumentError
from evermind_web.formats import evl0, lmbc, moe0, stored_zip
from evermind_web.formats import safetensors_io as safetensors
from evermind_web.interop.package import EvermindModelPackage
from evermind_web.session import container
from evermind_web.session.model_set import read_tokenizer
from evermind_web.store import MemoryStore, SaveItem
from evermind_web.store.backup import read_backup
from tests.faults import fuzz, mutation, parsers
from tests.faults.fuzz import Tally, attack, run, watching
from tests.faults.parsers import PARSERS, Parser

FILES = 250


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_broken_files_are_refused_and_change_nothing(parser: Parser) -> None:
    tally = run(parser, FILES, seed=1)
    assert tally.refused > FILES // 5, "the mutations must break something"
    assert tally.accepted


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
@settings(max_examples=25, derandomize=True, deadline=None, database=None)
@given(start=st.integers(0, 40), tail=st.binary(max_size=200))
def test_any_bytes_behind_a_true_beginning(parser: Parser, start: int, tail: bytes) -> None:
    with watching():
        attack(parser, parser.seeds()[0][:start] + tail, Tally())


def test_the_fuzzer_sees_a_crash_a_hang_and_a_glutton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "HANG_SECONDS", 0.5)

    def crash(data: bytes) -> None:
        raise IndexError(0)

    def hang(data: bytes) -> None:
        while True:
            pass

    def glutton(data: bytes) -> None:
        bytearray(2**21)

    def silent(data: bytes) -> None:
        raise FormatError("")

    for check, words in ((crash, "IndexError"), (hang, "busy"), (glutton, "memory"), (silent, "without words")):
        with watching(), pytest.raises(AssertionError, match=words):
            attack(Parser("target", list, check), b"x", Tally())


# ── found by fuzzing ─────────────────────────────────────────────────────────
def test_a_width_of_zero_claims_no_billions_of_tensors() -> None:
    """36 bytes of EVL0 with D = H = 0 and L = 2³²−1 have no parameters, and once had four billion tensor names."""
    for words in ((9, 0, 2**32 - 1, 1, 0, 1, 1), (9, 4, 0, 1, 1, 1, 2)):
        data = mutation.sealed(struct.pack("<9I", evl0.MAGIC, 1, *words))
        with pytest.raises(FormatError, match=r"damaged: .*(d_model is 0|top_k 2 of 1)"):
            contents(data)
    with pytest.raises(FormatError, match="none may be 0"):
        moe0.read_moe0(moe0.MAGIC_BYTES + struct.pack("<5I", 1, 0, 0, 2**32 - 1, 1))
    with pytest.raises(FormatError, match="none may be 0"):
        lmbc.read_lmbc(lmbc.MAGIC_BYTES + struct.pack("<4I", 1, 0, 0, 0) + bytes(4))


def test_a_manifest_that_lies_about_the_size_allocates_nothing() -> None:
    blob = parsers.package_files()[0]
    package = EvermindModelPackage.from_blob(blob)
    too_much, another = "more than any device here holds", "mismatch"
    for key, value, words in (
        ("numExperts", 2_222_975_505, too_much),
        ("vocabSize", 2_000_000_000, too_much),
        ("vocabSize", 100_000_000, another),
    ):
        config = {**package.manifest["config"], key: value}
        with pytest.raises(EvermindError, match=words):
            EvermindModelPackage({**package.manifest, "config": config}, package.checkpoint).load_lm()
    with pytest.raises(FormatError, match="unsupported model type"):
        EvermindModelPackage({**package.manifest, "modelType": []}, package.checkpoint).load_lm()


@pytest.mark.parametrize(
    "change",
    [
        {"scaler": {"scale": 2.0}},
        {"scaler": {"scale": float("inf"), "overflows": 0, "skipped": 0, "streak": 0}},
        {"scaler": {"scale": 0.0, "overflows": 0, "skipped": 0, "streak": 0}},
        {"position": {"window": "1", "first_step": 0, "sums": [], "counts": [], "tokens": 0}},
        {"position": {"window": 1, "first_step": 0, "sums": [1.0], "counts": [], "tokens": 0}},
        {"crc32": 7},
        {"step": -1},
        {"step": 1e400},
    ],
    ids=str,
)
def test_a_training_state_with_a_bad_manifest_changes_nothing(change: dict[str, object]) -> None:
    data = parsers.state_files()[0]
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"]["manifest"] = json.dumps(json.loads(header["__metadata__"]["manifest"]) | change)
    text = json.dumps(header).encode()
    with pytest.raises(FormatError, match="damaged"):
        parsers.trainer().load_state(struct.pack("<Q", len(text)) + text + data[8 + length :])
    assert parsers.trainer().save_state() == data


def test_json_that_is_nested_too_deep_is_refused() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    with pytest.raises(FormatError, match=r"not a tokenizer\.json"):
        read_tokenizer(f'{{"model": {deep}}}'.encode())
    with pytest.raises(FormatError, match="not a saved limbic session"):
        ew.limbic.LimbicSession.from_json(parsers._limbic(), deep)


def test_half_of_a_surrogate_pair_is_refused_where_a_file_is_read() -> None:
    """JSON may spell it; no file that we write could hold it again."""
    text = parsers.tokenizer_text()
    with pytest.raises(FormatError, match=r"tokenizer\.json"):
        ew.BPETokenizer.from_str(text.replace('"<unk>"', r'"\ud83d"'))
    header = rb'{"__metadata__": {"k": "\ud83d"}}'
    with pytest.raises(FormatError, match="no valid JSON"):
        safetensors.read_arrays(struct.pack("<Q", len(header)) + header)
    whole = rb'{"__metadata__": {"k": "\ud83d\udc4d"}}'
    assert safetensors.read_arrays(struct.pack("<Q", len(whole)) + whole)[1] == {"k": "👍"}
    manifest = json.loads(dict(members_of(parsers.export_files()[0]))["manifest.json"]) | {"metadata": {"a": "\ud83d"}}
    with pytest.raises(FormatError, match="damaged"):
        container.unpack(mutation.zipped([("manifest.json", json.dumps(manifest).encode())]), "file.zip")


async def test_half_of_a_surrogate_pair_is_refused_by_a_store() -> None:
    store = MemoryStore()
    for item in (
        SaveItem("a", b"", "\ud83d"),
        SaveItem("a", b"", "base", "\ud83d"),
        SaveItem("a", b"", "base", created="\ud83d"),
        SaveItem("a", b"", "base", metadata={"deep": [{"\ud83d": 1}]}),
    ):
        with pytest.raises(InvalidArgumentError, match=r"Unicode|plain JSON"):
            await store.save_many([item])
    assert await store.list() == []


def members_of(data: bytes) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def test_a_gguf_array_of_arrays_of_arrays_ends() -> None:
    level = struct.pack("<IQ", 9, 1)
    pair = struct.pack("<Q", 1) + b"a" + struct.pack("<I", 9) + level * 5000
    with pytest.raises(FormatError, match="damaged"):
        contents(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair)


def test_a_gguf_array_is_shown_in_part() -> None:
    scores = struct.pack("<IQ", 6, 100_000) + struct.pack("<100000f", *([0.5] * 100_000))
    pair = struct.pack("<Q", 1) + b"a" + struct.pack("<I", 9) + scores + bytes(32)
    found = contents(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair)
    assert found["metadata"]["a"] == {"count": 100_000, "first": [0.5] * 10}


def test_an_export_that_names_a_member_a_thousand_times_is_refused() -> None:
    members = members_of(parsers.export_files()[0])
    manifest = json.loads(dict(members)["manifest.json"])
    manifest["members"] *= 1000
    changed = [("manifest.json", json.dumps(manifest).encode()), *members[1:]]
    with pytest.raises(FormatError, match="not what its manifest lists"):
        container.unpack(mutation.zipped(changed), "file.zip")
    again = [("manifest.json", json.dumps({**manifest, "members": [{"path": "x"}]}).encode()), ("x", b"x" * 9)]
    with pytest.raises(FormatError, match="not what was exported"):
        container.unpack(mutation.zipped(again), "file.zip")


def test_zip_entries_that_share_their_bytes_are_refused() -> None:
    """A zip may list the same bytes under many names; read one by one they would fill the memory."""
    data = parsers.export_files()[0]
    directory = data.index(b"PK\x01\x02")
    end = data.index(b"PK\x05\x06")
    first = data[directory : data.index(b"PK\x01\x02", directory + 4)]
    entries = b"".join(
        first[:46].replace(struct.pack("<H", 13), struct.pack("<H", 5)) + b"%05d" % i for i in range(2000)
    )
    listed = data[directory:end] + entries
    count = 2003
    tail = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, count, count, len(listed), directory, 0)
    assert zlib.crc32(first)  # the directory was found
    with pytest.raises(FormatError):
        container.unpack(data[:directory] + listed + tail, "file.zip")


@pytest.mark.parametrize("read", [lambda data: stored_zip.read(data, "the file"), read_backup])
def test_an_encrypted_zip_is_refused(read: Any) -> None:
    data = bytearray(stored_zip.write({"manifest.json": b"{}"}))
    data[6] |= 1  # the flag of the member,
    data[data.index(b"PK\x01\x02") + 8] |= 1  # and in the directory
    with pytest.raises(FormatError, match="encrypted"):
        read(bytes(data))
