"""CRC-32 and the 8-byte trailer "EVCR" that guards checkpoints and deltas.

Trailer: bytes `45 56 43 52` ("EVCR"), then the little-endian u32 CRC-32
(IEEE, as zlib) of everything before the trailer.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from evermind_web.checks import checked
from evermind_web.errors import FormatError
from evermind_web.formats.sniff import check_length

TRAILER_MAGIC = b"EVCR"
TRAILER_BYTES = 8


@dataclass(frozen=True)
class CrcCheck:
    """has_trailer; ok (True where there is no trailer to contradict); body without the trailer."""

    has_trailer: bool
    ok: bool
    body: bytes


@checked
def crc32(data: bytes) -> int:
    """CRC-32 of data, an int in 0…2³²−1."""
    return zlib.crc32(data)


@checked
def append_crc_trailer(data: bytes) -> bytes:
    """data followed by its trailer."""
    return bytes(data) + TRAILER_MAGIC + struct.pack("<I", crc32(data))


@checked
def verify_crc_trailer(data: bytes) -> CrcCheck:
    """Look for a trailer at the end and check it; never raises. See strip_crc_trailer for a check that does."""
    if data[-TRAILER_BYTES:-4] != TRAILER_MAGIC:
        return CrcCheck(False, True, bytes(data))
    body = bytes(data[:-TRAILER_BYTES])
    return CrcCheck(True, crc32(body) == struct.unpack("<I", data[-4:])[0], body)


def strip_crc_trailer(data: bytes, what: str) -> tuple[bytes, bool]:
    """(body, whether there was a trailer); FormatError if the trailer's bytes are swapped or its CRC is wrong."""
    check = verify_crc_trailer(data)
    if not check.ok:
        stored = struct.unpack("<I", data[-4:])[0]
        actual = crc32(check.body)
        if struct.unpack(">I", data[-4:])[0] == actual:
            raise FormatError(f"{what}: wrong byte order: the CRC of the trailer is big-endian; write it little-endian")
        raise FormatError(
            f"{what} is damaged: its CRC-32 is {actual:#010x}, the trailer says {stored:#010x};"
            " nothing was loaded, fetch or export it again"
        )
    if data[-TRAILER_BYTES:-4] == TRAILER_MAGIC[::-1]:
        raise FormatError(f"{what}: wrong byte order: the trailer's magic is reversed; write it little-endian")
    return check.body, check.has_trailer


def check_guarded_length(what: str, have: int, body: int, has_trailer: bool) -> None:
    """FormatError unless a file of `have` bytes is `body` bytes and a trailer, or exactly `body` bytes without one."""
    if not has_trailer and have == body:
        return
    if not has_trailer and have == body + TRAILER_BYTES:
        raise FormatError(f"{what} is damaged: its last 8 bytes should be a CRC trailer, EVCR first; fetch it again")
    check_length(what, have, body + TRAILER_BYTES)
