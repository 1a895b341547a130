"""LMBC: the checkpoint of a limbic model, a small checkpoint (see small.py) with the sizes I, H, K.

Parameters in order: win (H, I), ws (H, K), aLogit (H), woutState (K, H), boutState (K), woutReward (H), boutReward (1).
The reward weight is not stored.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from evermind_web.checks import checked
from evermind_web.formats.arch import TensorSpec
from evermind_web.formats.small import SmallFormat

MAGIC_BYTES = struct.pack("<I", 0x4C4D4243)  # on disk "CBML"


def limbic_tensor_spec(input_dim: int, hidden_dim: int, state_dim: int) -> list[TensorSpec]:
    """Names and shapes of the parameters, in order."""
    return [
        TensorSpec("win", (hidden_dim, input_dim)),
        TensorSpec("ws", (hidden_dim, state_dim)),
        TensorSpec("aLogit", (hidden_dim,)),
        TensorSpec("woutState", (state_dim, hidden_dim)),
        TensorSpec("boutState", (state_dim,)),
        TensorSpec("woutReward", (hidden_dim,)),
        TensorSpec("boutReward", (1,)),
    ]


def _count(*sizes: int) -> int:
    return sum(tensor.size for tensor in limbic_tensor_spec(*sizes))


_FORMAT = SmallFormat(
    "limbic checkpoint",
    "an LMBC file",
    MAGIC_BYTES,
    ("input_dim", "hidden_dim", "state_dim"),
    _count,
    limbic_tensor_spec,
)


def write_lmbc(dims: Sequence[int], flat: npt.ArrayLike, fp16: bool = False) -> bytes:
    """Checkpoint bytes; dims = (I, H, K), flat the packed float32 vector. Errors as in write_evl0."""
    return _FORMAT.write(dims, flat, fp16)


@checked
def read_lmbc(data: bytes, dims: Sequence[int] | None = None) -> tuple[tuple[int, int, int], npt.NDArray[np.float32]]:
    """((I, H, K), packed float32 vector); with `dims` the header must agree (ConfigMismatchError)."""
    sizes, flat = _FORMAT.read(data, dims)
    return cast(tuple[int, int, int], sizes), flat
