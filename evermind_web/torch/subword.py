"""Subword regularisation: the same text cut into tokens in another way each epoch (BPE-dropout).

While a word is encoded, each possible merge is skipped with some chance; the model so sees rare words spelled from
their parts, and learns less by heart. A few spellings per distinct word are drawn once; an epoch then only picks one
of them for each occurrence, which costs a fraction of a second for millions of words.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from evermind_web.tokenizer import BPETokenizer
from evermind_web.tokenizer.byte_alphabet import to_symbols

SPELLINGS = 8
LONGEST_WORD = 40  # bytes; longer ones keep their usual spelling


class SubwordSampler:
    """Documents as words, each with a few spellings."""

    def __init__(self, tokenizer: BPETokenizer, documents: Sequence[str], chance: float, seed: int) -> None:
        """chance: that a merge is skipped. Each document starts with the begin token and ends with the end token."""
        self._rng = np.random.default_rng([seed, 1])
        self._chance = chance
        merges = tokenizer.definition.merges
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}
        numbers: dict[str, int] = {}
        occurrences: list[int] = []
        spellings: list[list[int]] = []  # SPELLINGS per word
        for document in documents:
            for special in (tokenizer.bos_id, None, tokenizer.eos_id):
                if special is not None:
                    occurrences.append(len(spellings) // SPELLINGS)
                    spellings.extend([[special]] * SPELLINGS)
                    continue
                for word in () if special is not None else tokenizer.engine.split(document):
                    number = numbers.get(word)
                    if number is None:
                        number = numbers[word] = len(spellings) // SPELLINGS
                        spellings.extend(self._spell(tokenizer, word))
                    occurrences.append(number)
        self._words = np.array(occurrences, np.int64)
        self._lengths = np.array([len(s) for s in spellings], np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self._lengths)[:-1]])
        self._ids = np.array([i for s in spellings for i in s], np.int32)
        self._ahead = ThreadPoolExecutor(1)
        self._next: tuple[tuple[int, int], Future[NDArray[np.int32]]] | None = None

    def epoch(self, seed: int, number: int) -> NDArray[np.int32]:
        """All documents as one stream of ids, each word in a spelling drawn for this epoch."""
        ready = self._next[1].result() if self._next and self._next[0] == (seed, number) else None
        self._next = (seed, number + 1), self._ahead.submit(self._draw, seed, number + 1)  # while this one is used
        return self._draw(seed, number) if ready is None else ready

    def _draw(self, seed: int, number: int) -> NDArray[np.int32]:
        rng = np.random.default_rng([seed, number, 2])
        chosen = self._words * SPELLINGS + rng.integers(0, SPELLINGS, len(self._words))
        lengths = self._lengths[chosen]
        ends = np.cumsum(lengths)
        return self._ids[np.repeat(self._starts[chosen] - (ends - lengths), lengths) + np.arange(ends[-1])]

    def _spell(self, tokenizer: BPETokenizer, word: str) -> list[list[int]]:
        usual = tokenizer.engine.encode(word, False)
        data = word.encode("utf-8")
        if len(data) > LONGEST_WORD or len(data) < 2:
            return [usual] * SPELLINGS
        symbols, vocab = list(to_symbols(data)), tokenizer.vocab
        return [[vocab[s] for s in self._merge(list(symbols))] for _ in range(SPELLINGS)]

    def _merge(self, symbols: list[str]) -> list[str]:
        ranks, random, chance = self._ranks, self._rng.random, self._chance
        while len(symbols) > 1:
            best, at = None, -1
            for i, draw in enumerate(random(len(symbols) - 1).tolist()):
                rank = ranks.get((symbols[i], symbols[i + 1]))
                if rank is not None and draw >= chance and (best is None or rank < best):
                    best, at = rank, i
            if best is None:
                break
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        return symbols
