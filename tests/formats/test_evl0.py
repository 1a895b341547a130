"""EVL0 checkpoints: exact bytes, and every way a file can be wrong (CK1, CK2, CK6, CK8)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evermind_web.errors import ConfigMismatchError, FormatError, InvalidArgumentError
from evermind_web.formats import evl0
from evermind_web.formats.arch import FIELDS, Arch, evermind_tensor_spec, param_count_of
from evermind_web.formats.crc import append_crc_trailer
from evermind_web.formats.evl0 import read_evl0, write_evl0
from evermind_web.formats.lora_blob import read_lora
from evermind_web.params import check_arch
from tests.golden_data import load_case

ARCH = Arch(vocab_size=7, d_model=3, num_layers=2, conv_kernel=2, hidden_dim=4, num_experts=2, top_k=1)
VALUES = np.linspace(-2, 2, param_count_of(ARCH), dtype=np.float32)
GOOD = write_evl0(ARCH, VALUES)


def test_layout_is_the_reference_layout() -> None:
    data = load_case("crc_delta", "delta_model_C").raw("base")
    arch, flat = read_evl0(data)
    assert struct.pack("<7I", *arch) == data[8:36]
    assert flat.tobytes() == data[36:-8]
    assert write_evl0(arch, flat) == data
    assert data[:4] == bytes.fromhex("304c5645")


def test_fp16_of_the_reference_is_read_and_ours_is_nearest() -> None:
    case = load_case("crc_delta", "delta_model_C")
    arch, flat = read_evl0(case.raw("base"))
    _, half = read_evl0(case.raw("base_fp16"), arch)
    assert half.dtype == np.float32
    assert 0 < np.abs(half - flat).max() < 2e-3
    ours = write_evl0(arch, flat, fp16=True)
    assert len(ours) == len(case.raw("base_fp16"))
    assert read_evl0(ours)[1].tobytes() == flat.astype(np.float16).astype(np.float32).tobytes()


def test_reading_gives_a_writable_copy_and_takes_any_config_object() -> None:
    config = SimpleNamespace(**dict(zip(FIELDS, ARCH, strict=True)))
    arch, flat = read_evl0(GOOD, config)
    flat[0] = 5
    assert arch == ARCH
    assert np.array_equal(read_evl0(GOOD)[1], VALUES)
    assert write_evl0(config, VALUES) == GOOD


def test_spec_has_as_many_elements_as_the_formula() -> None:
    for arch in (ARCH, ARCH._replace(num_layers=0), ARCH._replace(num_experts=1)):
        assert sum(spec.size for spec in evermind_tensor_spec(arch)) == param_count_of(arch)


@pytest.mark.parametrize("keep", [0, 3, 7, 35, 36, len(GOOD) // 2, len(GOOD) - 9, len(GOOD) - 1])
def test_ck1_truncation_says_how_much_is_there(keep: int) -> None:
    whole = len(GOOD) if keep >= 36 else 44
    with pytest.raises(FormatError, match=rf"checkpoint truncated: have {keep} of (at least )?{whole} bytes"):
        read_evl0(GOOD[:keep])


def test_ck1_too_long_damaged_or_foreign() -> None:
    with pytest.raises(FormatError, match="4 bytes too many"):
        read_evl0(GOOD + bytes(4))
    with pytest.raises(FormatError, match="4 bytes too many"):
        read_evl0(append_crc_trailer(GOOD[:-8] + bytes(4)))
    with pytest.raises(FormatError, match=r"not a checkpoint \(looks like an HTML page"):
        read_evl0(b"<!DOCTYPE html><html><title>404 Not Found</title></html>")
    with pytest.raises(FormatError, match=r"not a checkpoint .*a LORA adapter"):
        read_evl0(b"AROL" + bytes(40))


def test_every_flipped_byte_is_noticed() -> None:
    for at in range(len(GOOD)):
        damaged = bytearray(GOOD)
        damaged[at] ^= 0x10
        with pytest.raises(FormatError):
            read_evl0(bytes(damaged), ARCH)


def test_a_whole_file_without_trailer_is_read() -> None:
    assert np.array_equal(read_evl0(GOOD[:-8], ARCH)[1], VALUES)


def test_ck2_byte_order() -> None:
    big = append_crc_trailer(struct.pack(">9I", evl0.MAGIC, 1, *ARCH) + VALUES.astype(">f4").tobytes())
    for data in (big, GOOD[:-4] + GOOD[-4:][::-1], GOOD[:-8] + b"RCVE" + GOOD[-4:]):
        with pytest.raises(FormatError, match="wrong byte order"):
            read_evl0(data)
    one = write_evl0(ARCH, np.ones_like(VALUES))
    assert one[36:40] == b"\x00\x00\x80\x3f"  # 1.0, little-endian


def test_unknown_version_and_wrong_body_width() -> None:
    def with_version(version: int) -> bytes:
        return append_crc_trailer(GOOD[:4] + struct.pack("<I", version) + GOOD[8:-8])

    with pytest.raises(FormatError, match="version 7 is unknown"):
        read_evl0(with_version(7))
    with pytest.raises(FormatError, match="too many"):
        read_evl0(with_version(2))  # an f32 body called fp16


def test_config_mismatch_names_the_fields() -> None:
    with pytest.raises(ConfigMismatchError, match="vocab_size 7 instead of 8, top_k 1 instead of 2"):
        read_evl0(GOOD, ARCH._replace(vocab_size=8, top_k=2))


def test_absurd_sizes_are_refused_without_allocating() -> None:
    huge = struct.pack("<9I", evl0.MAGIC, 1, *[2**32 - 1] * 7)
    with pytest.raises(FormatError, match="truncated: have 36 of"):
        read_evl0(huge)


@pytest.mark.parametrize("given", ["model.evl0", Path("model.evl0"), None])
@pytest.mark.parametrize("read", [read_evl0, read_lora])
def test_a_path_in_place_of_bytes_is_refused_with_advice(read: Callable[[Any], object], given: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"must be the bytes of a file, got .*read_bytes"):
        read(given)


@pytest.mark.parametrize(("size", "words"), [(0, "must be at least 1, got 0"), (2**32, r"must be below 2\*\*32, got")])
def test_a_size_out_of_range_is_told_which_end_it_missed(size: int, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"vocab_size {words}"):
        check_arch(ARCH._replace(vocab_size=size))


def test_ck6_fp16_overflow_names_the_tensor() -> None:
    values = VALUES.copy()
    values[21 + 6 + 3 + 3 + 6 + 2] = 70000.0  # after embedding, conv, norms, router
    with pytest.raises(InvalidArgumentError, match=r"layers\.0\.moe\.shared\.w1 does not fit fp16: element 2 is 70000"):
        write_evl0(ARCH, values, fp16=True)
    assert write_evl0(ARCH, values)  # f32 holds it


def test_a_vector_of_another_length_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=f"has {VALUES.size} parameters, got {VALUES.size - 1}"):
        write_evl0(ARCH, VALUES[1:])
