"""The three kinds of Protocol Buffers fields that an ONNX file needs, as bytes; nothing is read."""

from __future__ import annotations

from evermind_web.checks import utf8

VARINT, LENGTH_DELIMITED = 0, 2  # wire types


def varint(value: int) -> bytes:
    """Base-128, low groups first; value ≥ 0."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def int_field(number: int, value: int) -> bytes:
    """An integer field; a value of 0 is written, not left out."""
    return varint(number << 3 | VARINT) + varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    """A bytes or message field."""
    return varint(number << 3 | LENGTH_DELIMITED) + varint(len(value)) + value


def text_field(number: int, value: str, always: bool = False) -> bytes:
    """A string field; an empty string is left out unless `always`."""
    return bytes_field(number, utf8(value)) if value or always else b""
