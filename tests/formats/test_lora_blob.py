"""LORA adapter files (TR15: alpha is stored; CK1)."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from evermind_web.errors import FormatError, InvalidArgumentError
from evermind_web.formats.lora_blob import read_lora, write_lora

B = np.arange(12, dtype=np.float32).reshape(6, 2)
A = -np.arange(8, dtype=np.float32).reshape(2, 4)
GOOD = write_lora(6, 4, 2, 16.0, B, A)


def test_layout() -> None:
    assert GOOD[:4] == b"AROL"
    assert struct.unpack_from("<3If", GOOD, 4) == (6, 4, 2, 16.0)
    assert GOOD[20:] == B.astype("<f4").tobytes() + A.astype("<f4").tobytes()


def test_tr15_alpha_and_rank_survive() -> None:
    blob = read_lora(GOOD)
    assert (blob.rows, blob.cols, blob.rank, blob.alpha) == (6, 4, 2, 16.0)
    assert np.array_equal(blob.B, B)
    assert np.array_equal(blob.A, A)
    blob.B[0, 0] = 9  # writable copy
    assert read_lora(GOOD).B[0, 0] == 0
    assert write_lora(*read_lora(GOOD)) == GOOD
    assert read_lora(write_lora(6, 4, 2, 1.7, B, A)).alpha == float(np.float32(1.7))


@pytest.mark.parametrize("keep", [0, 2, 19, 20, len(GOOD) // 2, len(GOOD) - 1])
def test_ck1_truncated(keep: int) -> None:
    with pytest.raises(FormatError, match=f"adapter truncated: have {keep} of"):
        read_lora(GOOD[:keep])


def test_other_damage() -> None:
    with pytest.raises(FormatError, match="4 bytes too many"):
        read_lora(GOOD + bytes(4))
    for rank in (0, 5, 2**32 - 1):
        with pytest.raises(FormatError, match=f"rank {rank} is not in 1…4"):
            read_lora(GOOD[:12] + struct.pack("<I", rank) + GOOD[16:])
    with pytest.raises(FormatError, match="alpha is nan"):
        read_lora(GOOD[:16] + struct.pack("<f", float("nan")) + GOOD[20:])
    with pytest.raises(FormatError, match="wrong byte order"):
        read_lora(GOOD[:4][::-1] + GOOD[4:])
    huge = GOOD[:4] + struct.pack("<3If", 2**32 - 1, 2**32 - 1, 2**31, 1.0)
    with pytest.raises(FormatError, match="truncated: have 20 of"):
        read_lora(huge)


def test_writing_checks_shapes() -> None:
    with pytest.raises(InvalidArgumentError, match="A must have 8 elements, got 7"):
        write_lora(6, 4, 2, 1.0, B, A.ravel()[1:])
