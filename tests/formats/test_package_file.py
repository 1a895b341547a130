"""EVM1 containers and FNV-1a."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from evermind_web.errors import FormatError
from evermind_web.formats import package
from evermind_web.formats.package import fnv1a, manifest_text, read_package, write_package
from tests.golden_data import GoldenCase, load_cases

BLOBS = [case for case in load_cases("package") if case.has("blob")]


@pytest.mark.parametrize("case", BLOBS, ids=str)
def test_reference_packages_are_read_and_written_back(case: GoldenCase) -> None:
    blob = case.raw("blob")
    parts = read_package(blob)
    assert parts.text == case["manifest_json"]
    assert (len(parts.checkpoint), len(parts.codec)) == (case["checkpoint_bytes"], case["codec_bytes"])
    assert fnv1a(parts.checkpoint) == parts.manifest["checksum"]
    assert write_package(parts.text, parts.checkpoint, parts.codec) == blob
    assert manifest_text(parts.manifest) == parts.text


def test_packages_are_there() -> None:
    assert len(BLOBS) == 5


def test_fnv1a_is_the_byte_by_byte_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "FNV_CHUNK", 64)  # several chunks
    assert fnv1a(b"") == 0x811C9DC5
    assert fnv1a(b"foobar") == 0xBF9CF968  # a published test vector
    for size in (1, 63, 64, 65, 1000):
        data = np.random.default_rng(size).bytes(size)
        value = 0x811C9DC5
        for byte in data:
            value = (value ^ byte) * 0x01000193 % 2**32
        assert fnv1a(data) == value


def test_damaged_containers() -> None:
    good = write_package('{"a":1}', b"checkpoint")
    for keep in (0, 3, 11, 15):
        with pytest.raises(FormatError, match=f"model package truncated: have {keep} of"):
            read_package(good[:keep])
    with pytest.raises(FormatError, match="version 9"):
        read_package(good[:4] + struct.pack("<I", 9) + good[8:])
    with pytest.raises(FormatError, match="no valid JSON"):
        read_package(good[:12] + b"x" + good[13:])
    with pytest.raises(FormatError, match="no JSON object"):
        read_package(write_package("[1]", b""))
    with pytest.raises(FormatError, match="looks like a LORA adapter"):
        read_package(b"AROL" + bytes(30))
    for size, message in ((11, "truncated"), (-1, "is no size"), (1.5, "is no size"), (True, "is no size")):
        with pytest.raises(FormatError, match=message):
            read_package(write_package(json.dumps({"checkpointBytes": size}), b"checkpoint"))
    assert read_package(write_package('{"checkpointBytes":4}', b"checkpoint")).codec == b"kpoint"
