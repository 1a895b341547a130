"""Applies learned merges to one word at a time.

Rule: as long as a neighbouring pair has a rank, merge the pair of lowest rank, the leftmost of several. A heap
and a doubly linked list make this n log n, so that 100,000 letters without a blank are no special case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

from evermind_web.tokenizer.byte_alphabet import BYTE_TO_SYMBOL

# The longest words are not worth remembering, and a cache must have an end.
_CACHED_WORD_BYTES = 64
_CACHED_WORDS = 100_000

END = -1


class MergeTable:
    """Words (bytes) to token ids, by whole-word look-up (if asked for) and then by merges."""

    def __init__(
        self,
        output_ids: Mapping[str, tuple[int, ...]],
        merges: Sequence[tuple[str, str]],
        whole_words: Mapping[bytes, int],
    ) -> None:
        """
        Args:
            output_ids: symbol -> the ids that it is written as; must hold the 256 byte symbols and everything that
                `merges` names or makes.
            merges: pairs of symbols in rank order; of a pair that is listed twice the last rank counts.
            whole_words: words that are one id whatever the merges say.
        """
        number: dict[str, int] = {symbol: i for i, symbol in enumerate(output_ids)}
        self._output = list(output_ids.values())
        self._byte_symbols = [number[symbol] for symbol in BYTE_TO_SYMBOL]
        # (left, right) -> (rank, merged symbol)
        self._merges = {
            (number[left], number[right]): (rank, number[left + right]) for rank, (left, right) in enumerate(merges)
        }
        self._whole_words = whole_words
        self._cache: dict[str, tuple[int, ...]] = {}

    def encode_words(self, words: Sequence[str]) -> list[int]:
        """Ids of all words, one after the other."""
        ids: list[int] = []
        cache = self._cache
        for word in words:
            known = cache.get(word)
            if known is None:
                data = word.encode("utf-8")
                known = self._encode(data)
                if len(data) <= _CACHED_WORD_BYTES:
                    if len(cache) >= _CACHED_WORDS:
                        cache.clear()
                    cache[word] = known
            ids.extend(known)
        return ids

    def _encode(self, word: bytes) -> tuple[int, ...]:
        whole = self._whole_words.get(word)
        if whole is not None:
            return (whole,)
        symbols = self._merge([self._byte_symbols[byte] for byte in word])
        return tuple([i for symbol in symbols for i in self._output[symbol]])

    def _merge(self, symbols: list[int]) -> list[int]:
        """Merge in place; a symbol that was swallowed by its left neighbour becomes END."""
        merges, count = self._merges, len(symbols)
        queue: list[tuple[int, int, int, int]] = []  # (rank, position, left, right); a stale entry no longer matches
        for at in range(count - 1):
            pair = (symbols[at], symbols[at + 1])
            if pair in merges:
                queue.append((merges[pair][0], at, *pair))
        if not queue:
            return symbols
        heapify(queue)
        following = list(range(1, count + 1))
        preceding = list(range(-1, count))
        while queue:
            _, at, left, right = heappop(queue)
            other = following[at]
            if symbols[at] != left or other >= count or symbols[other] != right:
                continue
            merged = merges[left, right][1]
            symbols[at], symbols[other] = merged, END
            after, before = following[other], preceding[at]
            following[at], preceding[after] = after, at
            if before >= 0 and (pair := (symbols[before], merged)) in merges:
                heappush(queue, (merges[pair][0], before, *pair))
            if after < count and (pair := (merged, symbols[after])) in merges:
                heappush(queue, (merges[pair][0], at, *pair))
        return [symbol for symbol in symbols if symbol != END]
