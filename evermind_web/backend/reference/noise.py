"""Random numbers drawn from where they are used: the same place in the same step always gets the same draw."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evermind_web.backend.base import Array
from evermind_web.ops import NOISE

U32 = NDArray[np.uint32]


def mix(x: U32) -> U32:
    """A 32-bit integer hash with low bias (Wellons' lowbias32): every input bit reaches every output bit."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return np.asarray(x ^ (x >> np.uint32(16)), np.uint32)


def draws(noise: Array, count: int, first: int = 0) -> U32:
    """uint32 (count), one for each place from `first` on, from the seed, step and salt in `noise` (64)."""
    words = np.ascontiguousarray(noise, "<i4").view(np.uint32)
    key: U32 = np.zeros(1, np.uint32)
    for name in ("seed", "step", "salt"):
        key = mix(key ^ words[NOISE[name]])
    return mix(key ^ np.arange(first, first + count, dtype=np.uint32))


def dropout(noise: Array, x: Array) -> None:
    """x (N,D) *= keep / (1 - p): an element is dropped where its draw is below the threshold p·2³²."""
    x *= drop_factors(noise, x.shape, x.dtype)


def drop_factors(noise: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """What dropout multiplies a tensor of that shape by: 0, or 1 / (1 - p)."""
    threshold = int(np.ascontiguousarray(noise, "<i4").view(np.uint32)[NOISE["threshold"]])
    if threshold == 0:
        return np.ones((1,) * len(shape), dtype)
    keep = (draws(noise, int(np.prod(shape))) >= np.uint32(threshold)).reshape(shape)
    return np.asarray(keep * dtype.type(1 / (1 - threshold / 2**32)))


ROUTER_PLACE = 1 << 31  # the router's draws lie behind those of the dropout on its input


def add_router_noise(noise: Array, logits: Array) -> None:
    """logits (N,E) += amplitude · u, u uniform in [-1, 1)."""
    amplitude = np.ascontiguousarray(noise, "<i4").view(np.float32)[NOISE["amplitude"]]
    if amplitude == 0:
        return
    u = draws(noise, logits.size, ROUTER_PLACE).astype(np.float32) * np.float32(2**-31) - np.float32(1)
    logits += (amplitude * u).reshape(logits.shape)
