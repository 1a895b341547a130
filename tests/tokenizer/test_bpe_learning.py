"""Training and merging against the rule written down naively: count everything anew each round."""

from __future__ import annotations

import itertools
import random

import pytest

from evermind_web.errors import InvalidArgumentError
from evermind_web.tokenizer import BPETokenizer
from evermind_web.tokenizer.byte_alphabet import to_symbols
from evermind_web.tokenizer.definition import fresh_vocab
from evermind_web.tokenizer.learn import learn_merges
from evermind_web.tokenizer.merge_table import MergeTable
from tests.tokenizer.texts import CORPUS, PROSE

Pair = tuple[str, str]


def merge_all(word: list[str], pair: Pair) -> list[str]:
    out: list[str] = []
    at = 0
    while at < len(word):
        if tuple(word[at : at + 2]) == pair:
            out.append(word[at] + word[at + 1])
            at += 2
        else:
            out.append(word[at])
            at += 1
    return out


def naive_merges(word_counts: dict[str, int], limit: int, min_pair_freq: int) -> list[Pair]:
    words = [(list(word), count) for word, count in word_counts.items()]
    merges: list[Pair] = []
    while len(merges) < limit:
        counts: dict[Pair, int] = {}
        for word, count in words:
            for pair in itertools.pairwise(word):
                counts[pair] = counts.get(pair, 0) + count
        best = max(counts, key=counts.__getitem__, default=None)  # the first of several: dicts keep their order
        if best is None or counts[best] < min_pair_freq:
            break
        merges.append(best)
        words = [(merge_all(word, best), count) for word, count in words]
    return merges


def naive_encode(word: str, merges: list[Pair]) -> list[str]:
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    symbols = list(word)
    while True:
        ranked = [(ranks[pair], at) for at, pair in enumerate(itertools.pairwise(symbols)) if pair in ranks]
        if not ranked:
            return symbols
        at = min(ranked)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


def random_words(rng: random.Random) -> dict[str, int]:
    # Few letters, long runs and small counts: ties and overlaps.
    letters = "abcdefgh"[: rng.randint(1, 5)]
    words = ("".join(rng.choices(letters, k=rng.randint(1, 12))) for _ in range(rng.randint(1, 14)))
    return {word: rng.randint(1, 4) for word in words}


@pytest.mark.parametrize("seed", range(300))
def test_fast_training_and_encoding_equal_the_naive_rule(seed: int) -> None:
    rng = random.Random(seed)
    words, min_pair_freq = random_words(rng), rng.choice([1, 1, 2, 3])
    vocab = fresh_vocab()
    merges = learn_merges(words, vocab, lambda done: done >= 60, min_pair_freq)
    assert merges == naive_merges(words, 60, min_pair_freq)

    outputs = {symbol: (i,) for symbol, i in vocab.items()}
    table = MergeTable(outputs, merges, {})
    for word in [*words, *random_words(rng)]:
        want = [vocab[symbol] for symbol in naive_encode(word, merges)]
        assert table.encode_words([word]) == want


def test_real_text_equals_the_naive_rule() -> None:
    tokenizer = BPETokenizer()
    tokenizer.train(CORPUS, num_merges=150)
    split = tokenizer.engine.split
    counts: dict[str, int] = {}
    for text in CORPUS:
        for word in split(text):
            counts[to_symbols(word.encode())] = counts.get(to_symbols(word.encode()), 0) + 1
    assert tokenizer.merges == [" ".join(pair) for pair in naive_merges(counts, 150, 2)]


def test_vocab_size_is_reached_exactly() -> None:
    tokenizer = BPETokenizer()
    tokenizer.train(PROSE * 3, vocab_size=300)
    assert tokenizer.vocab_size == len(tokenizer.vocab) == 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_merges": -1}, "num_merges"),
        ({"num_merges": 2.5}, "num_merges"),
        ({"num_merges": True}, "num_merges"),
        ({"min_pair_freq": 0}, "min_pair_freq"),
        ({"vocab_size": 259}, "at least 260"),
        ({"vocab_size": 300, "num_merges": 40}, "one of them"),
    ],
)
def test_bad_arguments(arguments: dict[str, int], message: str) -> None:
    tokenizer = BPETokenizer()
    with pytest.raises(InvalidArgumentError, match=message):
        tokenizer.train("text", **arguments)
    assert tokenizer.vocab_size == 0


@pytest.mark.parametrize("corpus", [b"bytes", 5, ["text", None], [b"x"], {"a": 1}])
def test_bad_corpus(corpus: object) -> None:
    with pytest.raises(InvalidArgumentError, match="corpus"):
        BPETokenizer().train(corpus)  # type: ignore[arg-type]


def test_progress_and_stop() -> None:
    calls: list[tuple[int, int]] = []
    tokenizer = BPETokenizer()
    tokenizer.train(PROSE * 4, num_merges=50, on_progress=lambda done, total: calls.append((done, total)))
    assert calls[0] == (0, 50)
    assert calls[-1] == (50, 50)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)

    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 7

    stopped = BPETokenizer()
    stopped.train(PROSE * 4, num_merges=50, should_stop=stop)
    assert stopped.merges == tokenizer.merges[:7]
    assert stopped.decode(stopped.encode(PROSE)) == PROSE
