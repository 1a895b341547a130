"""How a token is chosen: cut-offs, penalties, bias, log-probabilities, several texts, stop strings, text in pieces."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest

from evermind_web import BPETokenizer, EvermindLM, GenerationConfig, limbic
from evermind_web.backend.base import Backend
from evermind_web.backend.reference.sample import choose, log_softmax, penalized, stays
from evermind_web.errors import InvalidArgumentError
from evermind_web.generation import NO_CANDIDATE, NOT_FINITE
from evermind_web.ops import SAMPLING, SAMPLING_SIZE

LOGITS = np.log(np.array([0.1, 0.4, 0.05, 0.25, 0.2], np.float32))


def settings(**values: float) -> dict[str, float]:
    neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    return neutral | {"frequency_penalty": 0.0, "presence_penalty": 0.0} | values


def vector(**values: float) -> np.ndarray:
    out = np.zeros(SAMPLING_SIZE, np.float32)
    for name, value in settings(**values).items():
        out[SAMPLING[name]] = value
    return out


def pick(logits: Any, draw: int = 0, bias: Any = None, **values: float) -> int:
    row = np.asarray(logits, np.float32)
    zeros = np.zeros(len(row), np.float32)
    return choose(
        row, vector(**values), draw, zeros if bias is None else np.asarray(bias, np.float32), zeros.astype(int)
    )


@pytest.fixture
def model(backend: Backend) -> EvermindLM:
    lm = EvermindLM(29, 12, 2, 3, 16, 4, 2, seed=4, backend=backend)
    noisy = np.random.default_rng(2)
    for p in EvermindLM(29, 12, 2, 3, 16, 4, 2, seed=4, backend="numpy").parameters():
        lm.set_parameter(p.name, p.data + noisy.normal(0, 0.2, p.data.shape))
    return lm


# ---- the choice itself ----


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"top_k": 2}, [1, 3]),
        ({"top_k": 9}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.6}, [1, 3]),
        ({"top_p": 0.66}, [1, 3, 4]),
        ({"top_p": 1e-9}, [1]),
        ({"min_p": 0.3}, [1, 3, 4]),
        ({"top_k": 3, "top_p": 0.7}, [1, 3]),  # top_p of what top_k left: .4+.25 of .85 is enough
        ({"top_k": 3, "min_p": 0.6}, [1, 3]),
    ],
)
def test_which_tokens_stay(values: dict[str, float], expected: list[int]) -> None:
    scores = LOGITS.astype(np.float64)
    p = np.exp(scores - scores.max())
    assert np.flatnonzero(stays(scores, p, settings(**values))).tolist() == expected


def test_equal_tokens_stay_together() -> None:
    scores = np.array([1.0, 2.0, 1.0, 2.0, 0.0])
    assert np.flatnonzero(stays(scores, np.exp(scores - 2), settings(top_k=1))).tolist() == [1, 3]


def test_a_draw_walks_through_what_stays() -> None:
    tokens = [pick(LOGITS, int(u * 2**32), top_k=3) for u in (0.0, 0.46, 0.48, 0.75, 0.78, 0.999)]
    assert tokens == [1, 1, 3, 3, 4, 4]  # shares of .4, .25, .2 of .85: borders at .4706 and .7647


def test_penalties() -> None:
    scores, counts = np.array([2.0, -2.0, 2.0]), np.array([2, 1, 0])
    values = settings(repetition_penalty=4.0, frequency_penalty=0.25, presence_penalty=0.125)
    assert penalized(scores, counts, values).tolist() == [2 / 4 - 2 * 0.25 - 0.125, -2 * 4 - 0.25 - 0.125, 2.0]


@pytest.mark.parametrize("temperature", [0.0, 1e-4, 1e-30])
def test_sa1_greedy_and_tiny_temperatures_take_the_first_largest(temperature: float) -> None:
    assert pick([0, 30, 30], temperature=temperature) == 1


def test_sa2_nothing_to_choose_from() -> None:
    assert pick([0, math.nan, 1]) == NOT_FINITE
    assert pick([math.inf] * 3) == NOT_FINITE
    assert pick([1, 2], bias=[-math.inf] * 2) == NO_CANDIDATE
    assert pick([9, 2], bias=[-math.inf, 0]) == 1


def test_gp9_large_logits() -> None:
    assert pick([1000, 1000], 2**31 + 1) == 1
    assert pick([1000, 1000], 2**31 - 1) == 0
    assert log_softmax(np.array([1000, 1000], np.float32)).tolist() == pytest.approx([math.log(0.5)] * 2)


# ---- through the model, on each backend ----

OPTIONS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 5},
    {"temperature": 1.3, "top_p": 0.7},
    {"temperature": 1.3, "min_p": 0.1},
    {"repetition_penalty": 1.5},
    {"temperature": 1.0, "repetition_penalty": 1.4, "frequency_penalty": 0.3, "presence_penalty": 0.2, "top_k": 20},
    {"temperature": 1.0, "logit_bias": {3: -math.inf, 5: 2.0}},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_ids_follow_the_rule(model: EvermindLM, options: dict[str, Any]) -> None:
    """Every backend writes what the NumPy rule says on the logits that the model gives for the text so far."""
    config = GenerationConfig(max_new_tokens=20, seed=7, **options)
    prompt = [1, 2, 2, 3]
    ids = model.generate(prompt, **{"max_new_tokens": 20, "seed": 7, **options})
    state, text = 7, list(prompt)
    for token in ids:
        state = (1664525 * state + 1013904223) % 2**32
        counts = np.bincount(text, minlength=29) if config.counts_tokens else np.zeros(29, int)
        logits = model.forward(text)[-1]
        assert choose(logits, config.vector(), state, config.bias(29), counts) == token
        text.append(token)
    assert ids != model.generate(prompt, max_new_tokens=20, seed=7)


def test_a_forbidden_token_never_comes(model: EvermindLM) -> None:
    favourite = model.generate([1, 2], max_new_tokens=1)[0]
    ids = model.generate([1, 2], max_new_tokens=60, temperature=2.0, logit_bias={favourite: -math.inf})
    assert favourite not in ids
    with pytest.raises(InvalidArgumentError, match="no candidate token left at position 2"):
        model.generate([1, 2], logit_bias=dict.fromkeys(range(29), -math.inf))


def test_log_probabilities_are_those_of_the_model(model: EvermindLM) -> None:
    async def tokens() -> list[Any]:
        return [t async for t in model.stream_tokens_async([4, 5], temperature=1.5, top_k=9, max_new_tokens=6)]

    text = [4, 5]
    for token in asyncio.run(tokens()):
        assert token.logprob == pytest.approx(float(log_softmax(model.forward(text)[-1])[token.id]), abs=1e-4)
        text.append(token.id)


def test_several_texts_are_those_of_the_seeds_one_by_one(model: EvermindLM) -> None:
    options: dict[str, Any] = {
        "temperature": 1.0,
        "max_new_tokens": 15,
        "repetition_penalty": 1.2,
        "stop_tokens": [7, 9],
    }
    together = model.generate_many([3, 1], 4, seed=11, **options)
    assert together == [model.generate([3, 1], seed=11 + i, **options) for i in range(4)]
    assert len({tuple(t) for t in together}) > 1


def test_stop_tokens(model: EvermindLM) -> None:
    free = model.generate([1], max_new_tokens=30, temperature=1.0)
    stop = free[7]
    assert model.generate([1], max_new_tokens=30, temperature=1.0, stop_tokens=[stop]) == free[: free.index(stop) + 1]


@pytest.mark.parametrize(
    ("name", "value"),
    [("top_p", 0.0), ("top_p", 1.1), ("min_p", 1.0), ("top_k", -1), ("top_k", 1.5), ("repetition_penalty", 0.0),
     ("frequency_penalty", math.nan), ("logit_bias", {99: 1.0}), ("logit_bias", {1: math.inf})],
)  # fmt: skip
def test_bad_settings_are_refused_by_name(cpu: Backend, name: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=name):
        EvermindLM(29, 12, backend=cpu).generate([1], **{name: value})


# ---- text ----


@pytest.fixture(scope="module")
def tokenizer() -> BPETokenizer:
    codec = BPETokenizer()
    codec.train("the cat sat on the mat. 猫が座った🙂", num_merges=10)
    return codec


def scripted(cpu: Backend, tokenizer: BPETokenizer, ids: list[int]) -> EvermindLM:
    """A model that writes exactly these ids, whatever its weights say."""
    lm = EvermindLM(tokenizer.vocab_size, 4, 1, backend=cpu)

    async def stream(*_: Any, **__: Any) -> Any:
        for token in ids:
            yield token

    lm.stream_async = stream  # type: ignore[method-assign]
    return lm


def test_pieces_never_split_a_character(cpu: Backend, tokenizer: BPETokenizer) -> None:
    text = "猫🙂é the mat"
    lm = scripted(cpu, tokenizer, tokenizer.encode(text))
    pieces = list(lm.stream_text("x", tokenizer))
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces)
    assert len(pieces) > 3


@pytest.mark.parametrize(
    ("stop", "expected"),
    [("mat", "the cat on the "), (["zzz", "at o"], "the c"), ("the", ""), ("maths", "the cat on the mat")],
)
def test_stop_strings_end_the_text_before_them(cpu: Backend, tokenizer: BPETokenizer, stop: Any, expected: str) -> None:
    lm = scripted(cpu, tokenizer, tokenizer.encode("the cat on the mat"))
    assert "".join(lm.stream_text("x", tokenizer, stop=stop)) == expected
    assert lm.generate_text("x", tokenizer, stop=stop) == expected


def test_an_empty_stop_string_is_refused(cpu: Backend, tokenizer: BPETokenizer) -> None:
    with pytest.raises(InvalidArgumentError, match="stop string"):
        scripted(cpu, tokenizer, []).generate_text("x", tokenizer, stop="")


# ---- mood ----


def test_affect_is_the_identity_at_the_neutral_state() -> None:
    config = GenerationConfig(temperature=0.8, top_p=0.9, min_p=0.05, top_k=40, seed=3)
    assert limbic.affect_to_sampling(limbic.neutral_state(), config) == config


def test_affect_changes_sampling_as_documented() -> None:
    state = limbic.record_to_state({"exploration": 1.0, "attention": 1.0, "driveCaution": 1.0})
    changed = limbic.affect_to_sampling(state, GenerationConfig(temperature=1.0, top_p=0.9))
    assert changed.temperature == pytest.approx(math.exp(0.8 * 0.5))
    assert changed.top_p == pytest.approx(0.9 - 0.3 * 0.3)
    assert changed.min_p == pytest.approx(0.2 * 0.5)
    assert limbic.affect_to_sampling(state, GenerationConfig()).temperature == 0
