"""LORA: the reference's adapter file, for one adapter on the tied embedding.

    u32 × 4: magic 0x4c4f5241 (on disk `41 52 4f 4c`), rows, cols, rank; f32 alpha at byte 16;
    from byte 20 B (rows, rank), then A (rank, cols), f32, row-major

All little-endian, no CRC, so the length must be exact. alpha is rounded to float32 by the file.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evermind_web.checks import check_finite, checked
from evermind_web.errors import FormatError, InvalidArgumentError
from evermind_web.formats.sniff import check_length, not_a, truncated

MAGIC_BYTES = struct.pack("<I", 0x4C4F5241)
HEADER_BYTES = 20


class LoraBlob(NamedTuple):
    """What the file holds: shape of the adapted matrix, rank, alpha, B (rows, rank) and A (rank, cols) float32."""

    rows: int
    cols: int
    rank: int
    alpha: float
    B: npt.NDArray[np.float32]
    A: npt.NDArray[np.float32]


def write_lora(
    rows: int, cols: int, rank: int, alpha: float, B: npt.NDArray[np.float32], A: npt.NDArray[np.float32]
) -> bytes:
    """Adapter file; B and A are flat or shaped (rows, rank) and (rank, cols)."""
    for name, matrix, size in (("B", B, rows * rank), ("A", A, rank * cols)):
        if np.size(matrix) != size:
            raise InvalidArgumentError(
                f"adapter of rank {rank} on ({rows}, {cols}): {name} must have {size} elements, got {np.size(matrix)}"
            )
    header = MAGIC_BYTES + struct.pack("<3If", rows, cols, rank, alpha)
    return header + np.asarray(B, "<f4").tobytes() + np.asarray(A, "<f4").tobytes()


@checked
def read_lora(data: bytes) -> LoraBlob:
    """Parse and check an adapter file; B and A are fresh writable arrays. FormatError for anything else."""
    if data[:4] != MAGIC_BYTES[: len(data[:4])]:
        raise not_a("an adapter", data, "a LORA file (bytes 41 52 4f 4c first)")
    if len(data) < HEADER_BYTES:
        raise truncated("adapter", len(data), HEADER_BYTES, at_least=True)
    rows, cols, rank = struct.unpack_from("<3I", data, 4)
    (alpha,) = struct.unpack_from("<f", data, 16)
    if not 1 <= rank <= min(rows, cols):
        raise FormatError(
            f"adapter is damaged: rank {rank} is not in 1…{min(rows, cols)} for a ({rows}, {cols}) matrix"
        )
    if not math.isfinite(alpha):
        raise FormatError(f"adapter is damaged: alpha is {alpha}, expected a finite number")
    check_length("adapter", len(data), HEADER_BYTES + 4 * rank * (rows + cols))
    values = np.frombuffer(data, "<f4", offset=HEADER_BYTES).astype(np.float32)
    B, A = values[: rows * rank].reshape(rows, rank), values[rows * rank :].reshape(rank, cols)
    check_finite("lora_B", B, FormatError)
    check_finite("lora_A", A, FormatError)
    return LoraBlob(rows, cols, rank, alpha, B, A)
