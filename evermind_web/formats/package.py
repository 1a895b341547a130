"""EVM1: a model with its description in one file, at the level of bytes and manifest.

    u32 × 3: magic 0x45564d31 (on disk `31 4d 56 45`), version 1, manifest bytes; manifest (compact JSON, UTF-8);
    checkpoint (EVL0 or MoE0); optional codec section (VRQ0, carried as it is)

The manifest has a 32-bit FNV-1a checksum of the checkpoint, and of the codec if there is one. Classes that pack and
load models are in `evermind_web.interop`.
"""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evermind_web import strict_json
from evermind_web.checks import checked, utf8
from evermind_web.errors import FormatError
from evermind_web.formats.sniff import not_a, truncated

MAGIC_BYTES = struct.pack("<I", 0x45564D31)
VERSION = 1
HEADER_BYTES = 12
FNV_OFFSET, FNV_PRIME, FNV_CHUNK = 0x811C9DC5, 0x01000193, 1 << 16


class PackageParts(NamedTuple):
    """The manifest, as text and as JSON gave it, the checkpoint, and the codec section (b"" where there is none)."""

    text: str
    manifest: dict[str, Any]
    checkpoint: bytes
    codec: bytes


def manifest_text(manifest: dict[str, Any]) -> str:
    """Compact JSON in the given key order."""
    return json.dumps(manifest, separators=(",", ":"), ensure_ascii=False)


def write_package(text: str, checkpoint: bytes, codec: bytes = b"") -> bytes:
    """The file of a manifest (its JSON text), a checkpoint and a codec section."""
    encoded = utf8(text)
    return MAGIC_BYTES + struct.pack("<2I", VERSION, len(encoded)) + encoded + checkpoint + codec


@checked
def read_package(data: bytes) -> PackageParts:
    """Split a package. FormatError for a wrong magic, version or length; the contents are not validated."""
    if data[:4] != MAGIC_BYTES[: len(data[:4])]:
        raise not_a("a model package", data, "an EVM1 file (bytes 31 4d 56 45 first)")
    if len(data) < HEADER_BYTES:
        raise truncated("model package", len(data), HEADER_BYTES, at_least=True)
    version, length = struct.unpack_from("<2I", data, 4)
    if version != VERSION:
        raise FormatError(
            f"model package version {version} is unknown: expected {VERSION}; a newer release may read it"
        )
    start = HEADER_BYTES + length
    if start > len(data):
        raise truncated("model package", len(data), start, at_least=True)
    try:
        text = data[HEADER_BYTES:start].decode("utf-8")
        manifest = strict_json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"model package is damaged: its manifest is no valid JSON ({error})") from None
    if not isinstance(manifest, dict):
        raise FormatError("model package is damaged: its manifest is no JSON object")
    end = len(data)
    if "checkpointBytes" in manifest:  # then the rest is the codec
        size = manifest["checkpointBytes"]
        if type(size) is not int or size < 0:
            raise FormatError(f"model package is damaged: checkpointBytes {size!r} is no size")
        if start + size > len(data):
            raise truncated("model package", len(data), start + size)
        end = start + size
    return PackageParts(text, manifest, bytes(data[start:end]), bytes(data[end:]))


def fnv1a(data: bytes) -> int:
    """32-bit FNV-1a: h ← (h xor byte)·prime mod 2³², for each byte.

    Vectorised: the xor changes h by an amount that depends on its low byte alone. The low bytes come first (see
    _low_bytes), then h is a polynomial in the prime, summed a chunk at a time.
    """
    powers = np.multiply.accumulate(np.full(FNV_CHUNK, FNV_PRIME, np.uint32), dtype=np.uint32)  # prime¹, prime², …
    h = FNV_OFFSET
    for start in range(0, len(data), FNV_CHUNK):
        chunk = np.frombuffer(data, np.uint8, count=min(FNV_CHUNK, len(data) - start), offset=start)
        low = _low_bytes(chunk, h & 0xFF)
        change = (low ^ chunk).astype(np.uint32) - low  # mod 2³²
        total = int((change * powers[: chunk.size][::-1]).sum(dtype=np.uint32))
        h = (h * int(powers[chunk.size - 1]) + total) % 2**32
    return h


def _low_bytes(chunk: npt.NDArray[np.uint8], first: int) -> npt.NDArray[np.uint8]:
    """h mod 256 before each byte of the chunk, uint8.

    The prime is odd, so bit j of (h xor byte)·prime is bit j of (h xor byte), flipped or not by what the lower bits
    alone decide: bit by bit, the sequence is a running xor.
    """
    low = np.zeros(chunk.size, np.uint8)
    prime = np.uint8(FNV_PRIME & 0xFF)
    for bit in range(8):
        known = (low ^ chunk) & np.uint8((1 << bit) - 1)
        flips = ((known * prime) ^ chunk) >> np.uint8(bit) & np.uint8(1)
        state = np.bitwise_xor.accumulate(np.concatenate((np.array([first >> bit & 1], np.uint8), flips[:-1])))
        low |= state << np.uint8(bit)
    return low
