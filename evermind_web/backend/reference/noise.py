"""Random numbers drawn from where they are used: the same place in the same step always gets the same draw."""

from __future__ import annotations

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


def draws(noise: Array, count: int) -> U32:
    """uint32 (count), one for each element of a tensor, from the seed, step and salt in `noise` (64)."""
    words = np.ascontiguousarray(noise, "<i4").view(np.uint32)
    key: U32 = np.zeros(1, np.uint32)
    for name in ("seed", "step", "salt"):
        key = mix(key ^ words[NOISE[name]])
    return mix(key ^ np.arange(count, dtype=np.uint32))


def dropout(noise: Array, x: Array) -> None:
    """x (N,D) *= keep / (1 - p): an element is dropped where its draw is below the threshold p·2³²."""
    threshold = int(np.ascontiguousarray(noise, "<i4").view(np.uint32)[NOISE["threshold"]])
    keep = (draws(noise, x.size) >= np.uint32(threshold)).reshape(x.shape)
    x *= keep * x.dtype.type(1 / (1 - threshold / 2**32))


def uniform_noise(noise: Array, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """amplitude · u, u uniform in [-1, 1), in the given shape."""
    amplitude = np.ascontiguousarray(noise, "<i4").view(np.float32)[NOISE["amplitude"]]
    u = draws(noise, int(np.prod(shape))).astype(np.float32) * np.float32(2**-31) - np.float32(1)
    return np.asarray(amplitude * u.reshape(shape), np.float32)
