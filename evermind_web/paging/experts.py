"""Routed experts in memory, as many as a ceiling allows; the others are read when a token is sent to them."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, replace

from evermind_web.backend.reference.moe import Expert
from evermind_web.errors import InvalidArgumentError
from evermind_web.formats.arch import Arch
from evermind_web.paging.source import ExpertSource
from evermind_web.params import F32


@dataclass(slots=True)
class PagingStats:
    """Counts since the model was opened, or since `reset`; a hit is an expert that was in memory when it was needed.

    bytes_read: of experts, as stored. `resident_bytes` and `peak_bytes`: all weights in memory now and at most,
    the bytes of an expert that is just being read included; `ceiling` is what they never pass.
    """

    ceiling: int
    resident_bytes: int
    peak_bytes: int
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    bytes_read: int = 0

    @property
    def hit_rate(self) -> float:
        """hits / (hits + misses); 0 before the first."""
        return self.hits / max(1, self.hits + self.misses)


def expert_of(values: F32, arch: Arch) -> Expert:
    """Views of w1, b1, w2, b2 that lie one after another."""
    D, H = arch.d_model, arch.hidden_dim
    b1, w2, b2 = H * D, H * D + H, 2 * H * D + H
    return Expert(values[:b1].reshape(H, D), values[b1:w2], values[w2:b2].reshape(D, H), values[b2:])


class ExpertCache:
    """Experts by (layer, expert). `fixed`: bytes of weights that are always in memory and count for the ceiling.

    A token visits the layers in turn. Where less than the experts of one token fit, plain LRU always throws out what
    is needed next. Here an expert makes room in its own layer, unless another layer holds more than it; within a layer
    the least recently used one goes.
    Raises InvalidArgumentError if not even one expert fits under the ceiling.
    """

    def __init__(self, source: ExpertSource, max_bytes: int, fixed: int) -> None:
        arch = source.arch
        self._source, self._ceiling = source, max_bytes
        self._size = 4 * (2 * arch.hidden_dim * arch.d_model + arch.hidden_dim + arch.d_model)
        self._reading = self._size + source.expert_stored_bytes  # while one is decoded
        if max_bytes < fixed + self._reading:
            raise InvalidArgumentError(
                f"max_bytes {max_bytes} is too little: this model needs {fixed} bytes for what every token uses and "
                f"{self._reading} to read one expert; give at least {fixed + self._reading}"
            )
        self._held: dict[tuple[int, int], Expert] = {}  # the least recently used first
        self._in_layer: Counter[int] = Counter()
        self._lock = asyncio.Lock()
        self._stats = PagingStats(max_bytes, fixed, fixed)

    @property
    def stats(self) -> PagingStats:
        """A copy of the counts."""
        return replace(self._stats)

    def reset(self) -> None:
        """Set the counts to 0; what is in memory stays."""
        now = self._stats.resident_bytes
        self._stats = PagingStats(self._ceiling, now, now)

    async def get(self, layer: int, expert: int) -> Expert:
        """The expert, read if it is not there. Drop it before the next `get`: it may be the one that goes."""
        async with self._lock:  # one at a time, or two callers would both see the same room
            key, stats = (layer, expert), self._stats
            found = self._held.pop(key, None)
            if found is not None:
                stats.hits += 1
                self._held[key] = found
                return found
            stats.misses += 1
            self._make_room(layer)
            stats.peak_bytes = max(stats.peak_bytes, stats.resident_bytes + self._reading)
            values = await self._source.read(layer, expert)
            stats.bytes_read += self._source.expert_stored_bytes
            stats.resident_bytes += self._size
            self._in_layer[layer] += 1
            self._held[key] = expert_of(values, self._source.arch)
            return self._held[key]

    def _make_room(self, layer: int) -> None:
        while self._stats.resident_bytes + self._reading > self._ceiling:
            fullest, most = self._in_layer.most_common(1)[0]
            chosen = layer if self._in_layer[layer] == most else fullest
            gone = next(key for key in self._held if key[0] == chosen)
            del self._held[gone]
            self._in_layer[chosen] -= 1
            self._stats.resident_bytes -= self._size
            self._stats.evictions += 1

    def clear(self) -> None:
        """Forget all experts."""
        self._stats.resident_bytes -= self._size * len(self._held)
        self._held.clear()
        self._in_layer.clear()
