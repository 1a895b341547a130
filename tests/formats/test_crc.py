"""CRC-32 and the EVCR trailer (CK9, CK2)."""

from __future__ import annotations

import struct

import pytest

from evermind_web.errors import FormatError
from evermind_web.formats.crc import append_crc_trailer, crc32, strip_crc_trailer, verify_crc_trailer
from tests.golden_data import GoldenCase, load_case, load_cases

WITH_BYTES = [c for c in load_cases("crc_delta") if c.name.startswith("crc_") and c.has("bytes")]


def test_ck9_crc_is_unsigned() -> None:
    assert crc32(b"123456789") == 3421780262 == 0xCBF43926
    assert crc32(b"") == 0


def test_crc_of_text_equals_reference() -> None:
    table = load_case("crc_delta", "crc_text")["table"]
    assert [crc32(row["utf8"].encode()) for row in table] == [row["crc32"] for row in table]


@pytest.mark.parametrize("case", WITH_BYTES, ids=str)
def test_trailer_equals_reference(case: GoldenCase) -> None:
    data, full = case.raw("bytes"), case.raw("with_trailer")
    assert append_crc_trailer(data) == full
    flipped = bytes([full[0] ^ 1]) + full[1:]
    for key, sample in (("trailer", full), ("flipped_first_bit", flipped), ("no_trailer", data)):
        got, want = verify_crc_trailer(sample), case["verify"][key]
        assert (got.has_trailer, got.ok, got.body) == (want["hasTrailer"], want["ok"], sample[: want["bodyLength"]])


def test_trailer_on_trailer_and_on_nothing() -> None:
    case = load_case("crc_delta", "crc_empty")
    once = append_crc_trailer(b"")
    assert (once, append_crc_trailer(once)) == (bytes(case["bytes"]), bytes(case["twice"]))
    assert verify_crc_trailer(append_crc_trailer(once)).body == once  # only the last trailer counts
    assert verify_crc_trailer(once[:7]).has_trailer is False
    assert verify_crc_trailer(b"").ok


def test_ck2_swapped_trailer_is_called_byte_order() -> None:
    good = append_crc_trailer(b"payload")
    swapped_crc = good[:-4] + good[-4:][::-1]
    swapped_magic = good[:-8] + good[-8:-4][::-1] + good[-4:]
    for bad in (swapped_crc, swapped_magic):
        with pytest.raises(FormatError, match="thing: wrong byte order"):
            strip_crc_trailer(bad, "thing")
    with pytest.raises(FormatError, match=f"CRC-32 is {crc32(b'payload'):#010x}, the trailer says 0x00000005"):
        strip_crc_trailer(good[:-4] + struct.pack("<I", 5), "thing")
