"""What unknown bytes probably are, for error messages: a 404 page saved as a checkpoint should be called one.

Nothing here interprets the bytes beyond their first few; no pickle is ever loaded.
"""

from __future__ import annotations

from evermind_web.errors import FormatError

CONTAINERS = {  # the first four bytes on disk → what the file is
    b"0LVE": "an EVL0 model checkpoint",
    b"AROL": "a LORA adapter",
    b"EVD0": "an EVD0 delta",
    b"0EoM": "a MoE0 checkpoint",
    b"CBML": "an LMBC limbic checkpoint",
    b"1MVE": "an EVM1 model package",
    b"0QRV": "a VRQ0 codec",
    b"GGUF": "a GGUF file",
}
FOREIGN = (
    (b"\x80\x02", "pickle"), (b"\x80\x03", "pickle"), (b"\x80\x04", "pickle"), (b"\x80\x05", "pickle"),
    (b"PK\x03\x04", "a zip archive, such as a PyTorch .pt or .npz file"), (b"\x93NUMPY", "a NumPy .npy file"),
    (b"\x89PNG", "a PNG image"), (b"\x1f\x8b", "gzip; unpack it first"), (b"%PDF", "a PDF"),
    (b"\x89HDF", "HDF5"), (b"version https://git-lfs", "a Git LFS pointer; fetch the file itself"),
)  # fmt: skip


def describe(data: bytes) -> str:
    """A few words on what the bytes look like, "" where nothing is known."""
    head = bytes(data[:512])
    if head[:4] in CONTAINERS:
        return CONTAINERS[head[:4]]
    if head[:4][::-1] in CONTAINERS:
        return f"{CONTAINERS[head[:4][::-1]]} in the wrong byte order (big-endian)"
    for magic, name in FOREIGN:
        if head.startswith(magic):
            return name
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head", b"<body")):
        return "an HTML page, such as a 404 page of a web server"
    if text[:1] in (b"{", b"["):
        return "JSON text"
    return "a safetensors file" if head[8:9] == b"{" and head[4:8] == bytes(4) else ""


def not_a(what: str, data: bytes, expected: str) -> FormatError:
    """The error for bytes whose magic is wrong: «not a checkpoint (looks like pickle); expected …»."""
    guess = describe(data)
    if "byte order" in guess:
        return FormatError(f"wrong byte order: this is {guess}; expected {expected}, little-endian")
    looks = f" (looks like {guess})" if guess else ""
    return FormatError(
        f"not {what}{looks}: expected {expected}, got bytes {bytes(data[:8]).hex(' ') or '(none)'}; choose another file"
    )


def truncated(what: str, have: int, need: int, at_least: bool = False) -> FormatError:
    """«checkpoint truncated: have N of M bytes»."""
    return FormatError(
        f"{what} truncated: have {have} of {'at least ' if at_least else ''}{need} bytes; fetch or export it again"
    )


def check_length(what: str, have: int, need: int) -> None:
    """Raise FormatError unless exactly need bytes are there."""
    if have < need:
        raise truncated(what, have, need)
    if have > need:
        raise FormatError(
            f"{what} has {have - need} bytes too many: expected {need} bytes, got {have}; fetch or export it again"
        )
