"""The 256 printable characters that stand for bytes in byte-level BPE vocabularies.

Printable Latin-1 bytes stand for themselves, the other 68 bytes in ascending order for U+0100, U+0101, ...
(space is U+0120, 'Ġ'), so that every token is a string without blanks or control characters.
"""

from __future__ import annotations

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_REST = tuple(byte for byte in range(256) if byte not in _PRINTABLE)

# Bytes in the order of their ids in a fresh vocabulary: printable ranges first, then the rest ascending.
BYTE_ORDER: tuple[int, ...] = (*_PRINTABLE, *_REST)
SYMBOL_TO_BYTE: dict[str, int] = {chr(b): b for b in _PRINTABLE} | {chr(0x100 + i): b for i, b in enumerate(_REST)}
# Indexed by byte value.
BYTE_TO_SYMBOL: tuple[str, ...] = tuple(sorted(SYMBOL_TO_BYTE, key=SYMBOL_TO_BYTE.__getitem__))


def to_symbols(data: bytes) -> str:
    """Spell bytes in the alphabet, one character per byte."""
    return "".join([BYTE_TO_SYMBOL[byte] for byte in data])


def to_bytes(symbols: str) -> bytes | None:
    """Bytes spelled by `symbols`, or None if a character is not in the alphabet."""
    try:
        return bytes([SYMBOL_TO_BYTE[symbol] for symbol in symbols])
    except KeyError:
        return None
