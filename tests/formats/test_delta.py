"""EVD0 deltas and checkpoint diffs."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest

from evermind_web import EvermindLM
from evermind_web.errors import ConfigMismatchError, FormatError, InvalidArgumentError
from evermind_web.formats.crc import append_crc_trailer
from evermind_web.formats.delta import (
    RowDelta,
    apply_checkpoint_diff,
    apply_row_delta,
    compute_row_delta,
    deserialize_row_delta,
    diff_checkpoints,
    serialize_row_delta,
)
from tests.golden_data import GoldenCase, load_case, load_cases, number

# The reference overlooks NaN and accepts a negative eps; both have tests of their own below.
ROWS = [c for c in load_cases("crc_delta") if c.has("current") and c.name.startswith("delta_rows")]
PLAIN = [c for c in ROWS if c.config["eps"] != -1 and c.name not in ("delta_rows_special", "delta_rows_neg_eps")]


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_row_delta_equals_reference(case: GoldenCase) -> None:
    base = case.file("base")
    delta = compute_row_delta(base, case.file("current"), case.config["rowSize"], number(case.config["eps"]))
    assert delta.rows.tolist() == case["rows"]
    assert serialize_row_delta(delta) == case.raw("serialized")
    assert apply_row_delta(base, deserialize_row_delta(case.raw("serialized"))).tobytes() == case.raw("reconstructed")


def test_row_delta_cases_are_there() -> None:
    assert len(PLAIN) >= 6


def test_nan_is_a_change_and_negative_zero_is_none() -> None:
    delta = compute_row_delta([1.0, 0.0, math.nan, math.inf], [math.nan, -0.0, math.nan, math.inf], 1)
    assert delta.rows.tolist() == [0]
    assert compute_row_delta([math.nan], [2.0], 1).rows.tolist() == [0]


def test_bad_arguments() -> None:
    four = [1.0, 2.0, 3.0, 4.0]
    for row_size in (0, -2, 3):
        with pytest.raises(InvalidArgumentError, match="row_size must be positive and divide 4"):
            compute_row_delta(four, four, row_size)
    with pytest.raises(InvalidArgumentError, match="base has 3 values, current has 4"):
        compute_row_delta(four[:3], four, 1)
    with pytest.raises(InvalidArgumentError, match="eps"):
        compute_row_delta(four, four, 1, eps=-1)
    with pytest.raises(InvalidArgumentError, match="row 2 is out of range"):
        apply_row_delta(four, RowDelta(2, np.array([2], np.uint32), np.zeros(2, np.float32)))
    with pytest.raises(InvalidArgumentError, match="1 rows of 2 need 2 values, got 3"):
        apply_row_delta(four, RowDelta(2, np.array([1], np.uint32), np.zeros(3, np.float32)))


def test_damaged_delta_files() -> None:
    good = serialize_row_delta(compute_row_delta([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 7.0, 8.0], 2))
    for keep in (0, 3, 15, 20, len(good) - 1):
        with pytest.raises(FormatError, match="truncated"):
            deserialize_row_delta(good[:keep])
    for at in range(len(good)):
        damaged = bytearray(good)
        damaged[at] ^= 4
        with pytest.raises(FormatError):
            deserialize_row_delta(bytes(damaged))
    with pytest.raises(FormatError, match="version 9"):
        deserialize_row_delta(append_crc_trailer(good[:4] + struct.pack("<I", 9) + good[8:-8]))
    with pytest.raises(FormatError, match="truncated"):
        deserialize_row_delta(append_crc_trailer(good[:12] + struct.pack("<I", 2**31) + good[16:-8]))
    with pytest.raises(FormatError, match="row size is 0"):
        deserialize_row_delta(append_crc_trailer(b"EVD0" + struct.pack("<3I", 1, 0, 0)))
    assert deserialize_row_delta(good[:-8]).rows.tolist() == [1]


def test_checkpoint_diff_equals_reference_and_restores_every_byte() -> None:
    case = load_case("crc_delta", "diff_ckpt_C")
    base, current = case.raw("base"), case.raw("current")
    assert diff_checkpoints(base, current) == case.raw("diff")
    assert diff_checkpoints(base, base) == case.raw("diff_none")
    assert apply_checkpoint_diff(base, case.raw("diff")) == current


def test_checkpoint_diff_keeps_nan_and_negative_zero() -> None:
    base = append_crc_trailer(struct.pack("<4f", 1, 0, 3, 4))
    signalling = append_crc_trailer(
        struct.pack("<2f", 1, -0.0) + bytes.fromhex("0100807f") + struct.pack("<f", math.nan)
    )
    assert apply_checkpoint_diff(base, diff_checkpoints(base, signalling)) == signalling


def test_checkpoint_diff_refuses_what_does_not_fit() -> None:
    base = append_crc_trailer(bytes(16))
    with pytest.raises(ConfigMismatchError, match="base has 16 bytes, current has 12"):
        diff_checkpoints(base, append_crc_trailer(bytes(12)))
    with pytest.raises(FormatError, match="not whole 4-byte words"):
        diff_checkpoints(append_crc_trailer(bytes(10)), append_crc_trailer(bytes(10)))
    damaged = b"\1" + base[1:]
    for pair in ((damaged, base), (base, damaged)):
        with pytest.raises(FormatError, match="is damaged"):
            diff_checkpoints(*pair)
    beyond = serialize_row_delta(RowDelta(1, np.array([9], np.uint32), np.ones(1, np.float32)))
    with pytest.raises(ConfigMismatchError, match="beyond the base's 4 rows"):
        apply_checkpoint_diff(base, beyond)


def test_a_delta_is_refused_over_another_base_if_the_fingerprint_is_kept_beside_it() -> None:
    model, other = (EvermindLM(16, 8, 1, 2, 8, 2, 1, seed=seed) for seed in (1, 2))
    base, fingerprint = model.export_weights(), model.fingerprint()
    model.set_parameter("layers.0.norm_moe.weight", np.full(8, 0.5))
    delta, before = model.export_delta(base), other.fingerprint()
    with pytest.raises(ConfigMismatchError, match=r"made against base .*load that base"):
        other.load_delta(other.export_weights(), delta, base_fingerprint=fingerprint)
    assert other.fingerprint() == before
    other.load_delta(base, delta, base_fingerprint=fingerprint)
    assert other.fingerprint() == model.fingerprint()
