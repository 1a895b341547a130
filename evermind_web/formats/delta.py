"""Sparse differences of parameter vectors and checkpoints: rows that changed, in an EVD0 file.

    u32 × 4: magic 0x30445645 (on disk "EVD0"), version 1, row size, number of rows;
    u32 row indices ascending, then the rows' current values as f32; CRC trailer

All little-endian. A weight that becomes NaN, or stops being NaN, is a change here (the reference overlooks it);
0 against −0 is none in row deltas. Checkpoint diffs compare bits. A file does not name its base: whoever applies it has
to know which one it was made against (`EvermindLM.load_delta` takes its fingerprint).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evermind_web.checks import checked, shown, whole_number
from evermind_web.errors import ConfigMismatchError, FormatError, InvalidArgumentError
from evermind_web.formats.crc import TRAILER_BYTES, append_crc_trailer, check_guarded_length, strip_crc_trailer
from evermind_web.formats.sniff import not_a, truncated

MAGIC_BYTES = b"EVD0"
VERSION = 1
HEADER_BYTES = 16

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class RowDelta:
    """row_size, ascending row indices uint32 (n,), their current values float32 (n·row_size,)."""

    row_size: int
    rows: npt.NDArray[np.uint32]
    data: Float32Array


@checked
def compute_row_delta(base: npt.ArrayLike, current: npt.ArrayLike, row_size: int, eps: float = 0.0) -> RowDelta:
    """Rows of `current` in which some |current − base| > eps, or a value became or stopped being NaN.

    base, current: float32 vectors of one length that row_size divides. InvalidArgumentError otherwise, or for eps < 0.
    """
    before, after = _vector(base), _vector(current)
    if before.size != after.size:
        raise InvalidArgumentError(
            f"delta: base has {before.size} values, current has {after.size}; they must be of one model"
        )
    _check_row_size(row_size, before.size)
    if not eps >= 0:
        raise InvalidArgumentError(f"delta: eps must not be negative, got {eps}")
    with np.errstate(invalid="ignore"):
        changed = np.abs(after.astype(np.float64) - before.astype(np.float64)) > eps
    changed |= np.isnan(before) != np.isnan(after)
    rows = np.flatnonzero(changed.reshape(-1, row_size).any(axis=1)).astype(np.uint32)
    return RowDelta(row_size, rows, after.reshape(-1, row_size)[rows].ravel())


@checked
def apply_row_delta(base: npt.ArrayLike, delta: Any) -> Float32Array:
    """A copy of base, float32, with the delta's rows replaced; InvalidArgumentError if the sizes do not fit."""
    out = _vector(base).copy()
    row_size, rows, values = _parts(delta)
    _check_row_size(row_size, out.size)
    count = out.size // row_size
    bad = rows[rows >= count]
    if bad.size:
        raise InvalidArgumentError(
            f"delta: row {int(bad[0])} is out of range, the base has {count} rows;"
            " apply it to the base it was made from"
        )
    out.reshape(-1, row_size)[rows] = values.reshape(-1, row_size)
    return out


def serialize_row_delta(delta: Any) -> bytes:
    """EVD0 bytes of a delta, CRC trailer included. InvalidArgumentError for one that could not be read back."""
    row_size, rows, values = _parts(delta)
    header = MAGIC_BYTES + struct.pack("<3I", VERSION, row_size, rows.size)
    return append_crc_trailer(header + rows.astype("<u4").tobytes() + values.astype("<f4").tobytes())


@checked
def deserialize_row_delta(data: bytes) -> RowDelta:
    """Read EVD0 bytes, with or without trailer; FormatError for a wrong CRC, magic, version or length."""
    if data[:4] != MAGIC_BYTES[: len(data[:4])]:
        raise not_a("a delta", data, "an EVD0 file")
    if len(data) < HEADER_BYTES:
        raise truncated("delta", len(data), HEADER_BYTES + TRAILER_BYTES, at_least=True)
    body, has_trailer = strip_crc_trailer(data, "delta")
    version, row_size, count = struct.unpack_from("<3I", data, 4)
    if version != VERSION:
        raise FormatError(f"delta version {version} is unknown: expected {VERSION}; a newer release may read it")
    if row_size < 1:
        raise FormatError("delta is damaged: its row size is 0")
    need = HEADER_BYTES + 4 * count + 4 * count * row_size
    check_guarded_length("delta", len(data), need, has_trailer)
    rows = np.frombuffer(body, "<u4", count=count, offset=HEADER_BYTES).astype(np.uint32)
    values = np.frombuffer(body, "<f4", offset=HEADER_BYTES + 4 * count).astype(np.float32)
    return RowDelta(row_size, rows, values)


@checked
def diff_checkpoints(base: bytes, current: bytes) -> bytes:
    """EVD0 bytes that turn checkpoint `base` into `current` (files of 4-byte words, of one length).

    The whole body, header included, is compared as 32-bit words (parameter i of an f32 EVL0 file is word 9 + i), by
    bits: NaN, −0 and fp16 pairs are kept exactly, so that apply_checkpoint_diff gives `current` byte for byte.
    """
    before, after = (_words(data, name) for data, name in ((base, "base checkpoint"), (current, "current checkpoint")))
    if before.size != after.size:
        raise ConfigMismatchError(
            f"diff: base has {4 * before.size} bytes, current has {4 * after.size}; they must be of one model"
        )
    rows = np.flatnonzero(before != after).astype(np.uint32)
    return serialize_row_delta(RowDelta(1, rows, after[rows].view("<f4")))


@checked
def apply_checkpoint_diff(base: bytes, diff: bytes) -> bytes:
    """The checkpoint that `diff` was made for, with a fresh CRC trailer; both inputs are verified first."""
    words, delta = _words(base, "base checkpoint"), deserialize_row_delta(diff)
    return append_crc_trailer(_patched(words, delta).tobytes())


def _patched(words: npt.NDArray[np.uint32], delta: RowDelta) -> npt.NDArray[np.uint32]:
    """Rows replaced as integers, so that no NaN payload passes through a float register."""
    count = words.size // delta.row_size
    if words.size % delta.row_size or (delta.rows.size and int(delta.rows.max()) >= count):
        raise ConfigMismatchError(
            f"diff: a row is beyond the base's {count} rows; apply it to the checkpoint it was made from"
        )
    out = words.copy()
    out.reshape(-1, delta.row_size)[delta.rows] = delta.data.view(np.uint32).reshape(-1, delta.row_size)
    return out


def _words(checkpoint: bytes, what: str) -> npt.NDArray[np.uint32]:
    body, _ = strip_crc_trailer(checkpoint, what)
    if len(body) % 4:
        raise FormatError(f"{what}: {len(body)} bytes are not whole 4-byte words; diff an f32 export")
    return np.frombuffer(body, "<u4").astype(np.uint32)


def _vector(values: npt.ArrayLike) -> Float32Array:
    return np.ascontiguousarray(values, dtype=np.float32).ravel()


def _parts(delta: Any) -> tuple[int, npt.NDArray[np.int64], Float32Array]:
    """Row size, rows and values of a delta that somebody may have put together by hand."""
    if not all(hasattr(delta, part) for part in ("row_size", "rows", "data")):
        raise InvalidArgumentError(f"delta must be a RowDelta, got {shown(delta)}; compute_row_delta gives one")
    row_size = whole_number("row_size", delta.row_size)
    rows, values = np.asarray(delta.rows).ravel(), _vector(delta.data)
    if rows.size and (rows.dtype.kind not in "iu" or int(rows.min()) < 0 or int(rows.max()) >= 2**32):
        raise InvalidArgumentError(
            f"delta: rows must be whole numbers in 0…2**32−1, got {rows.dtype} from {rows.min()} to {rows.max()}"
        )
    if values.size != rows.size * row_size:
        raise InvalidArgumentError(
            f"delta: {rows.size} rows of {row_size} need {rows.size * row_size} values, got {values.size}"
        )
    return row_size, rows.astype(np.int64), values


def _check_row_size(row_size: int, length: int) -> None:
    if row_size < 1 or length % row_size:
        raise InvalidArgumentError(f"delta: row_size must be positive and divide {length}, got {row_size}")
