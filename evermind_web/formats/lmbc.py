"""LMBC: the checkpoint of a limbic model.

    u32 × 5: magic 0x4c4d4243 (on disk `43 42 4d 4c`), version (1 f32, 2 fp16), I, H, K; then the parameters

Parameters in order: win (H, I), ws (H, K), aLogit (H), woutState (K, H), boutState (K), woutReward (H), boutReward (1).
Little-endian, no CRC, so the length must be exact. The reward weight is not stored.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from evermind_web.checks import checked
from evermind_web.errors import ConfigMismatchError, FormatError
from evermind_web.formats.arch import TensorSpec
from evermind_web.formats.sniff import check_length, not_a, truncated
from evermind_web.formats.values import ITEM_BYTES, check_version, decode_values, encode_values, version_of

MAGIC_BYTES = struct.pack("<I", 0x4C4D4243)
HEADER_BYTES = 20
FIELDS = ("input_dim", "hidden_dim", "state_dim")


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


def write_lmbc(dims: Sequence[int], flat: npt.ArrayLike, fp16: bool = False) -> bytes:
    """Checkpoint bytes; dims = (I, H, K), flat the packed float32 vector. Errors as in write_evl0."""
    i, h, k = dims
    header = MAGIC_BYTES + struct.pack("<4I", version_of(fp16), i, h, k)
    spec = limbic_tensor_spec(i, h, k)
    return header + encode_values(flat, sum(t.size for t in spec), fp16, lambda: spec, "limbic checkpoint")


@checked
def read_lmbc(data: bytes, dims: Sequence[int] | None = None) -> tuple[tuple[int, int, int], npt.NDArray[np.float32]]:
    """((I, H, K), packed float32 vector); with `dims` the header must agree (ConfigMismatchError)."""
    if data[:4] != MAGIC_BYTES[: len(data[:4])]:
        raise not_a("a limbic checkpoint", data, "an LMBC file (bytes 43 42 4d 4c first)")
    if len(data) < HEADER_BYTES:
        raise truncated("limbic checkpoint", len(data), HEADER_BYTES, at_least=True)
    version, i, h, k = struct.unpack_from("<4I", data, 4)
    check_version("limbic checkpoint", version)
    stored = (i, h, k)
    if dims is not None and stored != tuple(dims):
        wrong = [f"{name} {a} instead of {b}" for name, a, b in zip(FIELDS, stored, dims, strict=True) if a != b]
        raise ConfigMismatchError(
            f"config mismatch: the limbic checkpoint has {', '.join(wrong)}; make a model of its shape"
        )
    if min(stored) < 1:
        raise FormatError(
            f"limbic checkpoint is damaged: its sizes are {dict(zip(FIELDS, stored, strict=True))}, none may be 0"
        )
    count = sum(t.size for t in limbic_tensor_spec(i, h, k))
    check_length("limbic checkpoint", len(data), HEADER_BYTES + ITEM_BYTES[version] * count)
    return stored, decode_values(data, HEADER_BYTES, version)
