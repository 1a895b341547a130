"""Streaming text never splits a character, and adds up to what `decode` gives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evermind_web.tokenizer import BPETokenizer, StreamDecoder
from tests.tokenizer.texts import CORPUS, PROSE


@pytest.fixture(scope="module")
def plain() -> BPETokenizer:
    tokenizer = BPETokenizer()
    tokenizer.train("")
    return tokenizer


def test_characters_arrive_whole(plain: BPETokenizer) -> None:
    decoder = plain.stream_decoder()
    pieces = [decoder.feed(i) for i in plain.encode("é🙂a")]
    assert pieces == ["", "é", "", "", "", "🙂", "a"]
    assert decoder.finish() == ""


def test_a_cut_character_is_shown_at_the_end(plain: BPETokenizer) -> None:
    decoder = StreamDecoder(plain)
    assert decoder.feed(plain.encode("ok🙂")[:-1]) == "ok"
    assert decoder.finish() == "\ufffd"
    assert decoder.feed(plain.encode("again")) == "again"


def test_special_tokens_can_be_skipped(plain: BPETokenizer) -> None:
    ids = [1, *plain.encode("hi"), 2]
    assert plain.stream_decoder().feed(ids) == "<|im_start|>hi<|im_end|>"
    assert plain.stream_decoder(skip_special_tokens=True).feed(ids) == "hi"


TRAINED = BPETokenizer()
TRAINED.train(CORPUS, num_merges=200)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, TRAINED.vocab_size + 3), max_size=40))
def test_any_ids_add_up(ids: list[int]) -> None:
    decoder = TRAINED.stream_decoder()
    assert "".join([*(decoder.feed(i) for i in ids), decoder.finish()]) == TRAINED.decode(ids)


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=()), max_size=60))
def test_round_trip_of_any_text(text: str) -> None:
    """Every text comes back, lone surrogates as U+FFFD and surrogate pairs as their character."""
    want = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert TRAINED.decode(TRAINED.encode(text)) == want


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from(PROSE + "\r\n\t \ufeff\u0301字🙂0123"), max_size=80))
def test_round_trip_of_likely_text(text: str) -> None:
    ids = TRAINED.encode(text)
    assert TRAINED.decode(ids) == text
    assert BPETokenizer.from_str(TRAINED.to_str()).encode(text) == ids
