"""Seeded random numbers: the reference's generator, bit for bit, fast for whole tensors.

One 32-bit linear congruential stream, uniform doubles from it and normal float32 values by Box-Muller.
The same seed gives the same weights and the same sampled text on every backend and in every browser.
This is not a cryptographic generator.
"""

from __future__ import annotations

import math
import operator
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from evermind_web.checks import checked, whole_number, zeros
from evermind_web.errors import InvalidArgumentError

MULTIPLIER, INCREMENT, MODULUS = 1664525, 1013904223, 2**32
SMALLEST_UNIFORM = 1e-12  # stands in for 0, whose logarithm does not exist
CHUNK = 1 << 16  # samples computed at once: the float64 temporaries stay in the cache


def check_seed(seed: SupportsIndex) -> int:
    """The seed as an int in 0…2³²−1; anything else raises InvalidArgumentError.

    Larger seeds are refused, not reduced: two different seeds must never mean the same stream by accident.
    """
    try:
        value = operator.index(None if isinstance(seed, bool) else seed)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgumentError(
            f"seed must be an integer in 0…{MODULUS - 1}, got {seed!r}; pass a whole number"
        ) from None
    if not 0 <= value < MODULUS:
        raise InvalidArgumentError(
            f"seed must be in 0…{MODULUS - 1}, got {value}; pass seed % 2**32 if any stream will do"
        )
    return value


def seeds_from(seed: int, count: int) -> range:
    """seed, seed + 1, …: one for each of `count` texts. InvalidArgumentError where the last is above 2³²−1."""
    if check_seed(seed) + count > MODULUS:
        raise InvalidArgumentError(
            f"seed {seed} with {count} texts: each draws with one more, up to {MODULUS - 1}; "
            f"use a seed of at most {MODULUS - count}"
        )
    return range(seed, seed + count)


class SeededRng:
    """state ← (1664525·state + 1013904223) mod 2³²; a seed of 0 starts at state 1."""

    def __init__(self, seed: SupportsIndex) -> None:
        self.state = check_seed(seed) or 1

    def next(self) -> float:
        """The next uniform number in [0, 1): the advanced state / 2³², exact."""
        self.state = (MULTIPLIER * self.state + INCREMENT) % MODULUS
        return self.state / MODULUS

    @checked
    def gaussian(self, n: int, std: float = 1.0) -> npt.NDArray[np.float32]:
        """n normal samples of mean 0 and standard deviation std, float32 (n,); two draws a sample."""
        out = zeros("a draw", whole_number("n", n, 0))
        for start in range(0, n, CHUNK):
            part = out[start : start + CHUNK]
            part[...] = box_muller(self._draws(2 * part.size), float(std))
        return out

    def _draws(self, n: int) -> npt.NDArray[np.float64]:
        """The next n uniform numbers, float64 (n,)."""
        return self.states(n) / float(MODULUS)

    @checked
    def states(self, n: int) -> npt.NDArray[np.uint32]:
        """The next n states, n >= 1; the stream doubles by jumping ahead 1, 2, 4, … states."""
        states = np.empty(whole_number("n", n), np.uint32)
        states[:1] = (MULTIPLIER * self.state + INCREMENT) % MODULUS
        have, a, c = 1, MULTIPLIER, INCREMENT  # state[i + have] = a·state[i] + c
        while have < n:
            more = min(have, n - have)
            states[have : have + more] = states[:more] * np.uint32(a) + np.uint32(c)  # wraps at 2³², as it should
            have, a, c = have + more, a * a % MODULUS, (a * c + c) % MODULUS
        self.state = int(states[-1])
        return states


def box_muller(uniforms: npt.NDArray[np.float64], std: float) -> npt.NDArray[np.float32]:
    """float64 (2n,) uniforms in pairs → float32 (n,): std·sqrt(−2·ln u1)·cos(2π·u2), rounded once."""
    u1, u2 = np.maximum(uniforms[0::2], SMALLEST_UNIFORM), uniforms[1::2]
    exact: npt.NDArray[np.float64] = std * np.sqrt(-2.0 * np.log(u1)) * np.cos(2 * math.pi * u2)
    out = exact.astype(np.float32)
    # NumPy's vectorised log and cos may be off by an ulp, depending on the processor. Where that could
    # change the float32 (about once in 10⁸ samples), the C library decides, as it did for the reference.
    unsure = np.flatnonzero((exact * (1 + 2e-15)).astype(np.float32) != (exact * (1 - 2e-15)).astype(np.float32))
    for i in unsure:
        out[i] = std * math.sqrt(-2.0 * math.log(u1[i])) * math.cos(2 * math.pi * u2[i])
    return out
