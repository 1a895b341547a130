"""What an attack by values found: numbers too long to print; deltas and codes that were written wrong, silently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import evermind_web as ew
from evermind_web import limbic
from evermind_web.errors import BackendError, InvalidArgumentError
from evermind_web.formats.delta import RowDelta
from evermind_web.formats.safetensors_io import NamedTensor
from evermind_web.mixture import Route

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
    with pytest.raises(InvalidArgumentError, match="logit_bias of token 3"):
        small().generate([1], logit_bias={3: 1e39})


def small() -> ew.EvermindLM:
    return ew.EvermindLM(260, 8, 1, 2, 8, 2, 1, seed=1)


def bytes_tokenizer() -> ew.BPETokenizer:
    tokenizer = ew.BPETokenizer()
    tokenizer.train("")
    return tokenizer


def test_a_text_is_no_codec_though_it_has_encode() -> None:
    for call in (
        lambda: ew.corpus_to_sequences("ab ab. cd cd.", "utf-8"),  # type: ignore[arg-type]
        lambda: ew.benchmark_text(small(), "utf-8", "ab ab. cd cd."),  # type: ignore[arg-type]
        lambda: ew.token_byte_lengths("utf-8"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgumentError, match="codec must be an object with encode, got 'utf-8'"):
            call()


def test_true_is_no_token_id() -> None:
    tokenizer = bytes_tokenizer()
    for call in (tokenizer.decode, tokenizer.stream_decoder().feed, lambda ids: tokenizer.pad_or_truncate(ids, 3)):
        with pytest.raises(InvalidArgumentError, match="ids must be a list"):
            call([5, True])


HALF = "half \ud800"  # of a surrogate pair


@pytest.mark.parametrize(
    "write",
    [
        lambda lm: ew.export_gguf(lm, name=HALF),
        lambda lm: ew.export_onnx(lm, producer_name=HALF),
        lambda lm: ew.export_onnx(lm, producer_version=HALF),
        lambda lm: ew.export_safetensors(lm, metadata={"note": HALF}),
        lambda lm: ew.tensors_to_safetensors([NamedTensor(HALF, (1,), np.ones(1, np.float32))]),
        lambda lm: ew.EvermindModelPackage.from_lm(lm, HALF, "1", {}).to_blob(),
        *(
            lambda lm, given=given: ew.export_evermind(lm, "huggingface", tokenizer=bytes_tokenizer(), **given)
            for given in (*({key: HALF} for key in ("name", "author", "license", "description")), {"tags": [HALF]})
        ),
    ],
)
def test_a_text_that_no_file_can_hold_is_refused(write: Callable[[ew.EvermindLM], Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"no file can hold .*half \\ud800'.*leave it out"):
        write(small())


@pytest.mark.parametrize(
    "make",
    [
        lambda: ew.LoRAAdapter(2**31, 2**31),
        lambda: ew.LoRAAdapter(2**70, 2**70),
        lambda: ew.LoRAAdapter(2**40, 2**40, 2**39),
        lambda: ew.LoadBalanceAccumulator(2**31),
        lambda: ew.LoadBalanceAccumulator(2**70),
        lambda: ew.LoadBalanceAccumulator(-1),
        lambda: ew.SharedExpertMoE(2**20, 2**20),
        lambda: ew.SharedExpertMoE(1, 1, 2**31, 1),  # made a list of its tensors for hours
        lambda: limbic.LimbicModel(2**31, 2),
        lambda: ew.SeededRng(1).gaussian(2**31),
        lambda: ew.SeededRng(1).gaussian(2**70),
        lambda: ew.SeededRng(1).states(0),
        lambda: ew.SeededRng(1).states(2**70),
    ],
)
def test_sizes_beyond_every_memory_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"choose smaller sizes|must be (at least|below)"):
        make()


def test_memory_that_is_short_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "zeros", short)
    for make in (small, lambda: ew.LoRAAdapter(8, 8), lambda: ew.LoadBalanceAccumulator(2)):
        with pytest.raises(BackendError, match=r"out of memory: .* of shape .*choose smaller sizes"):
            make()


@pytest.mark.parametrize(("experts", "probs"), [([2], [0.5, 0.5]), ([-1], [0.5, 0.5]), ([0], [0.5, 0.25, 0.25])])
def test_a_route_over_other_experts_is_not_counted(experts: list[int], probs: list[float]) -> None:
    balance = ew.LoadBalanceAccumulator(2)
    with pytest.raises(InvalidArgumentError, match="expected a route over 2 experts"):
        balance.observe(Route(experts, np.ones(1, np.float32), np.asarray(probs, np.float32)))
    assert balance.loss() == 0
