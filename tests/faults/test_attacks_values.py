"""What an attack by values found: numbers too long to print; deltas and codes that were written wrong, silently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import evermind_web as ew
from evermind_web.errors import InvalidArgumentError
from evermind_web.formats.delta import RowDelta

LONG = 10**5000  # more digits than Python prints


@pytest.mark.parametrize(
    "call",
    [
        lambda: ew.EvermindLM(LONG),
        lambda: ew.EvermindLM(260, d_model=int),  # type: ignore[arg-type]
        lambda: ew.EvermindLM(260, d_model=np.zeros(2)),  # type: ignore[arg-type]
        lambda: ew.GenerationConfig(temperature=LONG),
        lambda: ew.GenerationConfig(stop_tokens=np.array(1.0)),  # type: ignore[arg-type]
        lambda: ew.DynamicLossScaler(init_scale=LONG),
        lambda: ew.LoraConfig(lora_alpha=LONG),
        lambda: ew.BPETokenizer.from_str(LONG),  # type: ignore[arg-type]
        lambda: ew.quantize_fp16(LONG),
        lambda: ew.float_to_fp16(LONG),
    ],
)
def test_a_number_too_long_to_print_is_refused_in_words(call: Callable[[], Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="must be"):
        call()


@pytest.mark.parametrize(
    ("row_size", "rows", "data"),
    [
        (4, [0], [1.0, 2.0]),  # became a file that nobody could read
        (4, [2**32 + 1], [0.0] * 4),  # became row 1
        (4, [-1], [0.0] * 4),
        (4, [1.7], [0.0] * 4),  # became row 1
        (-4, [], []),
        (2**33, [], []),
    ],
)
def test_a_delta_that_is_none_is_neither_written_nor_applied(row_size: int, rows: list[Any], data: list[float]) -> None:
    delta = RowDelta(row_size, np.asarray(rows), np.asarray(data, np.float32))
    for use in (ew.serialize_row_delta, lambda delta: ew.apply_row_delta(np.zeros(8), delta)):
        with pytest.raises(InvalidArgumentError):
            use(delta)
    with pytest.raises(InvalidArgumentError, match="RowDelta"):
        ew.serialize_row_delta(b"EVD0")


def test_codes_of_another_kind_are_refused() -> None:
    values, codes = [1.0, 1e-9], ew.quantize_fp16([1.0, 1e-9])
    assert ew.count_lost_to_zero(values, codes) == 1
    assert ew.count_lost_to_zero(values, codes.astype(np.int64)) == 1
    for wrong in (codes.astype(np.float32), codes[:1], [70_000, 1]):
        with pytest.raises(InvalidArgumentError, match="codes"):
            ew.count_lost_to_zero(values, wrong)
    assert ew.dequantize_int8(np.array([-128, 127], np.int64), 0.5).tolist() == [-64, 63.5]
    for data in ([300, 1], [-1.5, 1.0]):
        with pytest.raises(InvalidArgumentError, match="int8 data"):
            ew.dequantize_int8(data, 1.0)
        with pytest.raises(InvalidArgumentError, match="int8 data"):
            ew.dequantize_int8_per_channel(data, [1.0], 1)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *((name, value) for name in ("frequency_penalty", "presence_penalty") for value in (1e300, -1e39)),
        *(("repetition_penalty", value) for value in (1e300, 1e-300)),  # 0 in 32 bits
        ("temperature", 1e300),
    ],
)
def test_settings_that_are_infinite_in_32_bits_are_refused(setting: str, value: float) -> None:
    # Infinity times a count of 0 is NaN: the same token again and again, without an error.
    with pytest.raises(InvalidArgumentError, match=setting):
        ew.GenerationConfig(**{setting: value})


def test_a_bias_that_is_infinite_in_32_bits_does_not_blame_the_weights() -> None:
    model = ew.EvermindLM(260, 8, 1, 2, 8, 2, 1, seed=1)
    with pytest.raises(InvalidArgumentError, match="logit_bias of token 3"):
        model.generate([1], logit_bias={3: 1e39})
