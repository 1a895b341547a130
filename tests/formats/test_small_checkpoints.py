"""MoE0 and LMBC: layout, and files without a CRC that must have exactly the right length."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from evermind_web.errors import ConfigMismatchError, FormatError, InvalidArgumentError
from evermind_web.formats import lmbc, moe0
from evermind_web.formats.package import read_package
from tests.golden_data import load_case

MOE_DIMS, LIMBIC_DIMS = (3, 4, 2, 1), (3, 4, 2)
MOE_SIZE = sum(t.size for t in moe0.moe_tensor_spec(*MOE_DIMS[:3]))
LIMBIC_SIZE = sum(t.size for t in lmbc.limbic_tensor_spec(*LIMBIC_DIMS))

Kind = tuple[Callable[..., bytes], Callable[..., tuple[Any, Any]], tuple[int, ...], int, bytes]
KINDS: dict[str, Kind] = {
    "MoE checkpoint": (moe0.write_moe0, moe0.read_moe0, MOE_DIMS, MOE_SIZE, b"0EoM"),
    "limbic checkpoint": (lmbc.write_lmbc, lmbc.read_lmbc, LIMBIC_DIMS, LIMBIC_SIZE, b"CBML"),
}


def test_the_references_moe0_is_read_and_written_back() -> None:
    package = read_package(load_case("package", "package_moe").raw("blob"))
    dims, flat = moe0.read_moe0(package.checkpoint)
    assert dims == (12, 20, 3, 2)
    assert flat.size == package.manifest["paramCount"]
    assert moe0.write_moe0(dims, flat) == package.checkpoint
    _, half = moe0.read_moe0(read_package(load_case("package", "package_moe_fp16").raw("blob")).checkpoint, dims)
    assert 0 < np.abs(half - flat).max() < 1e-3


@pytest.mark.parametrize("what", KINDS)
def test_layout_and_round_trip(what: str) -> None:
    write, read, dims, size, magic = KINDS[what]
    values = np.linspace(-1, 1, size, dtype=np.float32)
    data = write(dims, values)
    assert data[:4] == magic
    assert struct.unpack_from(f"<{len(dims) + 1}I", data, 4) == (1, *dims)
    stored, flat = read(data, dims)
    assert stored == dims
    assert flat.tobytes() == values.tobytes() == data[8 + 4 * len(dims) :]
    half = write(dims, values, fp16=True)
    assert read(half)[1].tobytes() == values.astype(np.float16).astype(np.float32).tobytes()
    with pytest.raises(InvalidArgumentError, match=f"has {size} parameters, got {size + 1}"):
        write(dims, np.zeros(size + 1))
    values[-1] = 1e5
    with pytest.raises(InvalidArgumentError, match=r"(expert1\.b2|boutReward) does not fit fp16"):
        write(dims, values, fp16=True)


@pytest.mark.parametrize("what", KINDS)
def test_wrong_files(what: str) -> None:
    write, read, dims, size, _ = KINDS[what]
    good = write(dims, np.zeros(size, np.float32))
    for keep in (0, 2, 19, 28, len(good) - 1):
        with pytest.raises(FormatError, match=f"{what} truncated: have {keep} of"):
            read(good[:keep])
    with pytest.raises(FormatError, match="4 bytes too many"):
        read(good + bytes(4))
    with pytest.raises(FormatError, match="version 3 is unknown"):
        read(good[:4] + struct.pack("<I", 3) + good[8:])
    with pytest.raises(FormatError, match="wrong byte order"):
        read(good[:4][::-1] + good[4:])
    with pytest.raises(FormatError, match="looks like an EVL0"):
        read(b"0LVE" + bytes(60))
    with pytest.raises(ConfigMismatchError, match="hidden_dim 4 instead of 5"):
        read(good, (dims[0], 5, *dims[2:]))
    with pytest.raises(FormatError, match="truncated"):
        read(good[:8] + b"\xff" * 4 * len(dims))
