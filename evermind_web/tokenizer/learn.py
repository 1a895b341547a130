"""Learns merges from word counts: the training half of byte-level BPE.

The rule is the reference's, ties included. Each round counts all neighbouring pairs, weighted by how often their
word occurs; the most frequent wins, and of several the one that comes first when the words are read in first-seen
order, each from left to right. Counting anew each round would be quadratic, so this keeps the counts and the places
of all pairs and updates only what a merge touches.

How the tie rule survives this: all words lie in one array, one after the other in first-seen order, and a symbol
keeps the place of its first byte for ever. "Comes first" is then simply the smaller place. Symbols only grow, so a
pair that has left a place never comes back to it, and stale places can be dropped for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush

Pair = tuple[int, int]
Key = tuple[int, int]  # (-count, first place): the smallest key is the pair to merge

_NONE = -1  # no symbol: between words, or swallowed by the left neighbour


class PairIndex:
    """All words as one linked array of symbols, with the count and the places of every pair."""

    def __init__(self, words: Iterable[tuple[Iterable[int], int]]) -> None:
        """`words`: (symbols, how often the word occurs) in first-seen order."""
        self.symbols: list[int] = []
        self.weights: list[int] = []  # per place, the count of its word
        for word, weight in words:
            start = len(self.symbols)
            self.symbols.extend(word)
            self.symbols.append(_NONE)
            self.weights.extend([weight] * (len(self.symbols) - start))
        size = len(self.symbols)
        self.following = list(range(1, size + 1))
        self.preceding = list(range(-1, size))
        self.counts: dict[Pair, int] = {}
        self._places: dict[Pair, list[int]] = {}  # heaps, stale places included
        for at in range(size - 1):
            left, right = self.symbols[at], self.symbols[at + 1]
            if left != _NONE and right != _NONE:
                self._add((left, right), at)
        self._queued: dict[Pair, Key] = {pair: self._key(pair) for pair in self.counts}
        self._queue = [(key, pair) for pair, key in self._queued.items()]
        heapify(self._queue)

    def best(self) -> tuple[Pair, int] | None:
        """The pair to merge next and its count, or None if no pair is left.

        A queue entry may promise too much (counts fall and first places move right without notice) but never too
        little, so an entry that still holds true when it comes up is the winner.
        """
        while self._queue:
            key, pair = heappop(self._queue)
            if self._queued.get(pair) != key:
                continue  # a better entry of the same pair was queued later
            if not self.counts.get(pair):
                del self._queued[pair]
                continue
            true_key = self._key(pair)
            if true_key == key:
                heappush(self._queue, (key, pair))
                return pair, -key[0]
            self._enqueue(pair, true_key)
        return None

    def merge(self, pair: Pair, merged: int) -> None:
        """Replace every occurrence of `pair` by the symbol `merged`, left to right, not overlapping."""
        left, right = pair
        symbols, following, preceding = self.symbols, self.following, self.preceding
        grown: dict[Pair, None] = {}
        for at in sorted(self._places.pop(pair)):
            other = following[at]
            if symbols[at] != left or symbols[other] != right:
                continue
            before, after = preceding[at], following[other]
            outer_left = symbols[before] if before >= 0 else _NONE
            outer_right = symbols[after]
            self._remove(pair, at)
            symbols[at], symbols[other] = merged, _NONE
            following[at], preceding[after] = after, at
            if outer_left != _NONE:
                self._remove((outer_left, left), before)
                self._add((outer_left, merged), before)
                grown[outer_left, merged] = None
            if outer_right != _NONE:
                self._remove((right, outer_right), other)
                self._add((merged, outer_right), at)
                grown[merged, outer_right] = None
        for candidate in grown:
            if self.counts.get(candidate):
                key = self._key(candidate)
                if candidate not in self._queued or key < self._queued[candidate]:
                    self._enqueue(candidate, key)

    def _add(self, pair: Pair, at: int) -> None:
        self.counts[pair] = self.counts.get(pair, 0) + self.weights[at]
        places = self._places.get(pair)
        if places is None:
            self._places[pair] = [at]
        else:
            heappush(places, at)

    def _remove(self, pair: Pair, at: int) -> None:
        count = self.counts[pair] - self.weights[at]
        if count:
            self.counts[pair] = count
        else:
            del self.counts[pair]

    def _key(self, pair: Pair) -> Key:
        places = self._places[pair]
        while not self._is_at(pair, places[0]):
            heappop(places)
        return -self.counts[pair], places[0]

    def _is_at(self, pair: Pair, at: int) -> bool:
        return self.symbols[at] == pair[0] and self.symbols[self.following[at]] == pair[1]

    def _enqueue(self, pair: Pair, key: Key) -> None:
        self._queued[pair] = key
        heappush(self._queue, (key, pair))


def learn_merges(
    word_counts: Mapping[str, int],
    vocab: dict[str, int],
    is_enough: Callable[[int], bool],
    min_pair_freq: int,
) -> list[tuple[str, str]]:
    """Learn merges until `is_enough(merges so far)` or no pair occurs `min_pair_freq` times.

    Args:
        word_counts: words spelled in byte symbols -> occurrences, in first-seen order.
        vocab: symbol -> id; holds the byte symbols and receives an id for every new symbol.

    Returns:
        Pairs of symbols in rank order.
    """
    names = {i: symbol for symbol, i in vocab.items()}
    index = PairIndex(([vocab[symbol] for symbol in word], count) for word, count in word_counts.items())
    merges: list[tuple[str, str]] = []
    while not is_enough(len(merges)):
        best = index.best()
        if best is None or best[1] < min_pair_freq:
            break
        left, right = best[0]
        symbol = names[left] + names[right]
        # Always a new string: what lies inside a symbol was merged in rank order, which only that string decides.
        vocab[symbol] = merged = len(vocab)
        names[merged] = symbol
        merges.append((names[left], names[right]))
        index.merge(best[0], merged)
    return merges
