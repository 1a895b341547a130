"""fp16 and int8 storage: nearest even, exhaustive over all codes, and nothing lost in silence (CK6)."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest

from evermind_web import quant
from evermind_web.errors import InvalidArgumentError
from tests.golden_data import GoldenCase, load_case, load_cases, number

ALL_CODES = np.arange(65536, dtype=np.uint16)


def test_every_fp16_code_decodes_as_the_standard_says() -> None:
    want = np.array([struct.unpack("<e", struct.pack("<H", code))[0] for code in range(65536)])
    got = quant.dequantize_fp16(ALL_CODES)
    assert got.dtype == np.float32
    nan = np.isnan(want)
    assert np.array_equal(np.isnan(got), nan)
    assert np.array_equal(got[~nan], want[~nan].astype(np.float32))
    assert quant.quantize_fp16(got[~nan]).tolist() == ALL_CODES[~nan].tolist()  # −0 included
    assert quant.fp16_to_float(0x3C00) == 1.0
    assert math.copysign(1, quant.fp16_to_float(0x8000)) == -1


def test_fp16_encoding_is_the_nearest_code_of_the_reference_or_its_upper_neighbour() -> None:
    case = load_case("quant", "quant_fp16_encode")
    values, truncated = case.file("values"), case.file("codes").astype(np.int64)
    fits = np.abs(values) < 65520  # from here on the nearest is infinity
    got = quant.quantize_fp16(values[fits]).astype(np.int64)
    step = got - truncated[fits]
    assert set(step.tolist()) == {0, 1}  # both occur: the reference truncates, we round
    want = [struct.unpack("<H", struct.pack("<e", float(v)))[0] for v in values[fits]]  # CPython rounds to nearest even
    assert got.tolist() == want


def test_ck6_fp16_borders() -> None:
    back = {v: quant.round_fp16(v) for v in (3e-8, 1e-6, 6.1e-5, 65519.0)}
    assert list(back.values()) == [5.960464477539063e-08, 1.0132789611816406e-06, 6.097555160522461e-05, 65504.0]
    assert math.isnan(quant.round_fp16(math.nan))
    assert quant.round_fp16(-math.inf) == -math.inf
    for large in (65520.0, 1e5, -1e5, 1e300):
        with pytest.raises(InvalidArgumentError, match=r"layers\.0\.moe\.shared\.w1 does not fit fp16: element 1 is"):
            quant.quantize_fp16(np.array([1.0, large]), name="layers.0.moe.shared.w1")
    assert np.isinf(quant.dequantize_fp16(quant.quantize_fp16([65520.0, 1.0], overflow="inf"))).tolist() == [
        True,
        False,
    ]


def test_ck6_values_lost_to_zero_are_counted() -> None:
    values = np.array([0.0, -0.0, 1e-9, -2e-8, 3e-8, 1.0], np.float32)
    assert quant.count_lost_to_zero(values, quant.quantize_fp16(values)) == 2


def test_shapes_and_bad_codes() -> None:
    assert quant.quantize_fp16(np.ones((2, 3))).shape == (2, 3) == quant.dequantize_fp16(np.zeros((2, 3), int)).shape
    for bad in ([-1], [65536], [1.5]):
        with pytest.raises(InvalidArgumentError, match="fp16 codes"):
            quant.dequantize_fp16(bad)


INT8 = [c for c in load_cases("quant") if c.name.startswith("quant_int8_") and c.has("q")]
PER_CHANNEL = [c for c in load_cases("quant") if c.name.startswith("quant_int8pc") and c.has("q")]


@pytest.mark.parametrize("case", INT8, ids=str)
def test_int8_equals_reference(case: GoldenCase) -> None:
    values, scale = case.file("values"), number(case["scale"])
    if not np.isfinite(values).all():
        with pytest.raises(InvalidArgumentError, match="finite"):
            quant.quantize_int8(values)
        return
    result = quant.quantize_int8(values)
    assert result.scale == scale
    assert result.data.dtype == np.int8
    assert result.data.tolist() == case.file("q").tolist()
    assert quant.dequantize_int8(result.data, scale).tobytes() == case.file("back").tobytes()


@pytest.mark.parametrize("case", PER_CHANNEL, ids=str)
def test_int8_per_channel_equals_reference(case: GoldenCase) -> None:
    channels, scales = case.config["numChannels"], case.file("scales")
    result = quant.quantize_int8_per_channel(case.file("values"), channels)
    held = scales > 0  # the reference's scale of a channel of subnormals underflows to 0
    assert np.array_equal(result.scales[held], scales[held])
    assert np.array_equal(result.data.reshape(channels, -1)[held], case.file("q").reshape(channels, -1)[held])
    back = quant.dequantize_int8_per_channel(case.file("q"), scales, channels)
    assert back.tobytes() == case.file("back").tobytes()


def test_int8_cases_are_there() -> None:
    assert len(INT8) >= 7
    assert len(PER_CHANNEL) >= 4


def test_a_channel_of_subnormals_survives_int8() -> None:
    values = np.array([1, 5, -60], np.float32) * np.float32(2.0**-149)  # max/127 is below the smallest float32
    result = quant.quantize_int8_per_channel(values, 1)
    assert quant.dequantize_int8_per_channel(result.data, result.scales, 1).tobytes() == values.tobytes()


def test_halves_round_upward_exactly() -> None:
    below = 0.49999999999999994  # floor(x + 0.5) would give 1
    assert quant._to_int8(np.array([-2.5, 2.5, below, -0.5, 200.0, -200.0])).tolist() == [-2, 3, 0, 0, 127, -128]


def test_bad_int8_arguments() -> None:
    for n in (0, -1, 4):
        with pytest.raises(InvalidArgumentError, match="channels"):
            quant.quantize_int8_per_channel(np.ones(6, np.float32), n)
    with pytest.raises(InvalidArgumentError, match="expected 2 scales"):
        quant.dequantize_int8_per_channel(np.zeros(4, np.int8), [1.0], 2)
    empty = quant.quantize_int8(np.zeros(0, np.float32))
    assert (empty.data.size, empty.scale) == (0, 1.0)


def test_estimate_memory() -> None:
    estimate = quant.estimate_memory(10)
    assert (estimate.fp32, estimate.fp16, estimate.int8) == (40, 20, 10)
