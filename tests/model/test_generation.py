"""Text token by token: the same as the whole sequence at once (TR3), at a cost that does not grow."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest

from evermind_web import pace
from evermind_web.backend.base import Array, Backend
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.errors import InvalidArgumentError, NonFiniteError
from evermind_web.generation import Decoder
from evermind_web.model import EvermindLM
from evermind_web.tokenizer import BPETokenizer
from tests.cases import MODEL_CASES, ModelCase, model_case
from tests.counting import CountingBackend
from tests.parity import damage, make_model

HOT = 4.0  # a random model with a tied head likes to repeat itself: this makes its texts vary


def stepwise_logits(model: EvermindLM, tokens: list[int], prefill: int) -> Array:
    """Logits after each token from the `prefill`-th on: first a prompt, then steps of one token."""
    decoder = Decoder(model.backend, model.config, model.weights, 1)
    rows = []
    decoder.prefill(np.array(tokens[:prefill], np.int32))
    for token in [*tokens[prefill:], None]:
        decoder.choose()
        rows.append(asyncio.run(model.backend.read(decoder.logits))[0][0])
        if token is not None:
            model.backend.write(decoder.token, np.array([token], np.int32))
            model.backend.zero(decoder.cursor)
            decoder.step()
    decoder.free()
    return np.array(rows)


@pytest.mark.parametrize("case", MODEL_CASES, ids=str)
def test_tr3_steps_equal_the_whole_sequence(case: ModelCase, backend: Backend) -> None:
    model, tokens = make_model(backend, case), case.sequences()[0]
    whole = model.forward(tokens)
    assert whole.shape == (len(tokens), case.arch.vocab_size)
    for prefill in sorted({1, 2, min(3, len(tokens)), len(tokens)}):
        got = stepwise_logits(model, tokens, prefill)
        assert got == pytest.approx(whole[prefill - 1 :], rel=0, abs=1e-5 * float(np.abs(whole).max()))
    model.dispose()


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_tr3_no_look_ahead(length: int, cpu: Backend) -> None:
    model = make_model(cpu, model_case("ragged"))
    tokens = [5, 9, 11, 2]
    assert model.forward(tokens[:length]) == pytest.approx(model.forward(tokens)[:length], rel=0, abs=1e-5)


@pytest.mark.parametrize("case", MODEL_CASES, ids=str)
def test_greedy_text_is_the_argmax_of_the_whole_sequence(case: ModelCase, cpu: Backend) -> None:
    model, prompt = make_model(cpu, case), case.sequences()[0][:3]
    text = list(prompt)
    for _ in range(6):
        text.append(int(model.forward(text)[-1].argmax()))
    assert model.generate(prompt, max_new_tokens=6) == text[len(prompt) :]


class Cost:
    """Operations queued for each token of a text."""

    def __init__(self, case: ModelCase, new: int) -> None:
        self.backend = CountingBackend(NumpyBackend())
        model = make_model(self.backend, case)
        self.per_token: list[dict[str, int]] = []
        for _ in model.stream(case.sequences()[0], max_new_tokens=new, temperature=1.0):
            self.per_token.append(dict(self.backend.counts))
            self.backend.counts.clear()


def test_cost_of_a_token_does_not_grow() -> None:
    cost = Cost(model_case("ragged"), 30).per_token
    assert len(cost) == 30
    assert cost[1]["layer_step"] == 2
    assert "conv_norm_fwd" not in cost[1]
    assert all(later == cost[1] for later in cost[2:])


def test_cost_of_a_prompt_is_bounded_by_what_the_model_can_see() -> None:
    """Only the last L(K-1)+1 tokens reach the last position."""
    rows: list[int] = []

    class Watching(CountingBackend):
        def run(self, op: str, ins: Any, outs: Any, scalars: Any) -> None:
            if op == "conv_norm_fwd":
                rows.append(ins[0].shape[0])
            super().run(op, ins, outs, scalars)

    model = make_model(Watching(NumpyBackend()), model_case("ragged"))
    model.generate([1] * 1000, max_new_tokens=1)
    assert rows == [5, 5]


@pytest.mark.parametrize("steps", [3, 8])
def test_reading_several_tokens_at_once_changes_nothing(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "AHEAD_S", 1e9)  # whatever the speed of this machine
    case = model_case("ragged")
    one, many = make_model(NumpyBackend(), case), make_model(CountingBackend(NumpyBackend(), steps), case)
    for options in ({"temperature": 0.0}, {"temperature": HOT, "seed": 5}, {"temperature": HOT, "stop_token": 25}):
        want = one.generate([3, 4], max_new_tokens=20, **options)
        assert many.generate([3, 4], max_new_tokens=20, **options) == want
    many.backend.counts.clear()  # type: ignore[attr-defined]
    many.generate([3, 4], max_new_tokens=20)
    sizes = {3: [1, 1, 2, 3, 3, 3, 3, 3, 1], 8: [1, 1, 2, 4, 8, 4]}[steps]  # two chunks are in flight
    assert sum(sizes) == 20
    assert many.backend.counts["read"] == len(sizes)  # type: ignore[attr-defined]


def test_an_abandoned_text_gives_its_memory_back() -> None:
    backend = CountingBackend(NumpyBackend())
    model = make_model(backend, model_case("ragged"))
    before = set(backend.live)

    async def take_two() -> list[int]:
        stream = model.stream_async([1, 2], max_new_tokens=50)
        taken = [await anext(stream), await anext(stream)]
        await stream.aclose()  # type: ignore[attr-defined]
        return taken

    assert len(asyncio.run(take_two())) == 2
    assert backend.live == before


def test_the_prompt_is_left_alone_and_the_stop_token_is_part_of_the_text(backend: Backend) -> None:
    model, prompt = make_model(backend, model_case("ragged")), [1, 2, 3]
    free = model.generate(prompt, max_new_tokens=8)
    assert prompt == [1, 2, 3]
    assert len(free) == 8
    stopped = model.generate(prompt, max_new_tokens=8, stop_token=free[3])
    assert stopped == free[: free.index(free[3]) + 1]
    assert list(model.stream(prompt, max_new_tokens=8)) == free
    assert model.generate(prompt, max_new_tokens=0) == []
    model.dispose()


@pytest.fixture
def model() -> EvermindLM:
    """A small model on NumPy."""
    return make_model(NumpyBackend(), model_case("all-experts"))


def test_tk7_an_empty_prompt_is_refused(model: EvermindLM) -> None:
    with pytest.raises(InvalidArgumentError, match="prompt has no tokens"):
        model.generate([])


class Letters:
    """A codec of 37 letters and no more."""

    vocab_size = 37

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % 37 for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(65 + i) for i in ids)


def test_text_through_a_codec(model: EvermindLM) -> None:
    codec = Letters()
    text = model.generate_text("abc", codec, max_new_tokens=4)
    assert text == codec.decode(model.generate(codec.encode("abc"), max_new_tokens=4))
    with pytest.raises(InvalidArgumentError, match="prompt has no tokens"):
        model.generate_text("", codec)


@pytest.mark.parametrize("bad", [[37], [-1], [0, 1, 2**40]])
def test_tk9_ids_outside_the_vocabulary_are_refused_before_upload(model: EvermindLM, bad: list[int]) -> None:
    for call in (model.generate, model.forward, model.loss_and_backward, lambda ids: model.evaluate([[1, 2], ids])):
        with pytest.raises(InvalidArgumentError, match=rf"token id {bad[-1]} outside vocab 0\.\.36"):
            call(bad)


def test_tk9_a_larger_tokenizer_is_refused(model: EvermindLM) -> None:
    codec = Letters()
    codec.vocab_size = 39
    with pytest.raises(InvalidArgumentError, match="the tokenizer has 39 tokens, the model 37 rows"):
        model.generate_text("abc", codec)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.uint32])
def test_py7_ids_of_any_integer_type(model: EvermindLM, dtype: Any) -> None:
    tokens = np.array([1, 2, 3], dtype)
    want = model.generate([1, 2, 3])
    assert model.generate(tokens) == want
    assert all(type(token) is int for token in model.generate(tokens))


@pytest.mark.parametrize("bad", [[1.0, 2.0], np.array([1.5]), ["a"], [[1, 2]], [True, False]])
def test_py7_what_is_no_list_of_ids_is_refused_by_dtype(model: EvermindLM, bad: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="flat list of int ids, got"):
        model.forward(bad)


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "1", None])
def test_sa1_bad_temperatures_are_refused(model: EvermindLM, value: Any) -> None:
    with pytest.raises(ValueError, match="temperature"):
        model.generate([1], temperature=value)


def test_sa1_tiny_temperatures_are_greedy(model: EvermindLM) -> None:
    want = model.generate([1], max_new_tokens=10)
    for value in (1e-4, 1e-30):
        assert model.generate([1], max_new_tokens=10, temperature=value) == want


@pytest.mark.parametrize("value", [-1, 1.5, "3", None])
def test_bad_lengths_are_refused(model: EvermindLM, value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="max_new_tokens"):
        model.generate([1], max_new_tokens=value)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_sa2_damaged_weights_name_the_position(backend: Backend, value: float) -> None:
    damaged = make_model(backend, model_case("all-experts"))
    damage(damaged, 5, value)
    for temperature in (0.0, 1.0):
        with pytest.raises(NonFiniteError, match="logits not finite at position 3"):
            damaged.generate([1, 2, 3], temperature=temperature)
    damaged.dispose()


def test_sa4_a_seed_repeats_and_seeds_differ(backend: Backend) -> None:
    sampled = make_model(backend, model_case("ragged"))
    texts = {}
    for seed in (42, 43, 1715852364, 2**32 - 1):
        texts[seed] = sampled.generate([1], max_new_tokens=12, temperature=HOT, seed=seed)
        assert sampled.generate([1], max_new_tokens=12, temperature=HOT, seed=seed) == texts[seed]
    assert len({tuple(text) for text in texts.values()}) == len(texts)
    for seed in (2**32 + 42, 2**53 + 1, -1):
        with pytest.raises(InvalidArgumentError, match="seed"):
            sampled.generate([1], temperature=1.0, seed=seed)
    sampled.dispose()


def test_a_stream_is_checked_at_the_call(cpu: Backend) -> None:
    model, codec = make_model(cpu, model_case("ragged")), BPETokenizer()
    codec.train("")
    for wrong in ({"temperature": -1}, {"stop_tokens": [10**6]}, {"no_such": 1}):
        for call in (model.stream, model.stream_async, model.stream_tokens, model.stream_tokens_async):
            with pytest.raises((InvalidArgumentError, TypeError), match=r"temperature|stop_tokens|no_such"):
                call([1], **wrong)
    for text_call in (model.stream_text, model.stream_text_async):
        with pytest.raises(InvalidArgumentError, match="260 tokens"):
            text_call("a", codec)
    with pytest.raises(InvalidArgumentError, match="prompt has no tokens"):
        model.stream([])


def test_seeds_of_several_texts_do_not_wrap(cpu: Backend) -> None:
    model, last = make_model(cpu, model_case("ragged")), 2**32 - 1
    many = model.generate_many([1], 2, max_new_tokens=6, temperature=HOT, seed=last - 1)
    assert many[1] == model.generate([1], max_new_tokens=6, temperature=HOT, seed=last)
    with pytest.raises(InvalidArgumentError, match=f"seed {last} .*2 texts.*at most {last - 1}"):
        model.generate_many([1], 2, seed=last)
