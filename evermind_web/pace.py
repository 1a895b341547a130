"""How much is queued on a device before its results are read."""

from __future__ import annotations

import time

AHEAD_S = 0.02  # a chunk is worth this time at most; two are in flight, so Stop is heard within twice that


class Pace:
    """The number of steps (or tokens) of the next chunk: from 1 on, as many as take AHEAD_S, at most `most`."""

    def __init__(self, most: int) -> None:
        self.chunk, self._most, self._last = 1, most, time.perf_counter()

    def delivered(self, steps: int) -> None:
        """Take note that a chunk of so many steps came back."""
        now = time.perf_counter()
        fitting = int(AHEAD_S * steps / max(now - self._last, 1e-9))
        self.chunk, self._last = max(1, min(self._most, 2 * self.chunk, fitting)), now
