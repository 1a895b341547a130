"""MoE0: the checkpoint of one shared-expert mixture of experts, a small checkpoint (see small.py) with D, H, E, k.

Parameters in order: wr (E, D); the shared expert's w1 (H, D), b1 (H), w2 (D, H), b2 (D); then those of expert 0 … E−1.
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

MAGIC_BYTES = struct.pack("<I", 0x4D6F4530)  # on disk "0EoM"


def moe_tensor_spec(model_dim: int, hidden_dim: int, num_experts: int) -> list[TensorSpec]:
    """Names and shapes of the parameters, in order."""
    d, h = model_dim, hidden_dim
    spec = [TensorSpec("wr", (num_experts, d))]
    for expert in ("shared", *(f"expert{e}" for e in range(num_experts))):
        shapes = (("w1", (h, d)), ("b1", (h,)), ("w2", (d, h)), ("b2", (d,)))
        spec += [TensorSpec(f"{expert}.{part}", shape) for part, shape in shapes]
    return spec


def moe_param_count(d: int, h: int, e: int, _: int = 0) -> int:
    """Number of parameters for D, H, E; k does not matter."""
    return e * d + (e + 1) * (2 * h * d + h + d)


_FORMAT = SmallFormat(
    "MoE checkpoint", "a MoE0 file", MAGIC_BYTES, ("model_dim", "hidden_dim", "num_experts", "top_k"), moe_param_count,
    lambda d, h, e, _: moe_tensor_spec(d, h, e),
)  # fmt: skip


def write_moe0(dims: Sequence[int], flat: npt.ArrayLike, fp16: bool = False) -> bytes:
    """Checkpoint bytes; dims = (D, H, E, k), flat the packed float32 vector. Errors as in write_evl0."""
    return _FORMAT.write(dims, flat, fp16)


@checked
def read_moe0(
    data: bytes, dims: Sequence[int] | None = None
) -> tuple[tuple[int, int, int, int], npt.NDArray[np.float32]]:
    """((D, H, E, k), packed float32 vector); with `dims` the header must agree (ConfigMismatchError)."""
    sizes, flat = _FORMAT.read(data, dims)
    return cast(tuple[int, int, int, int], sizes), flat
