"""MoE0: the checkpoint of one shared-expert mixture of experts.

    u32 × 6: magic 0x4d6f4530 (on disk `30 45 6f 4d`), version (1 f32, 2 fp16), D, H, E, k; then the parameters

Parameters in order: wr (E, D); the shared expert's w1 (H, D), b1 (H), w2 (D, H), b2 (D); then those of expert 0 … E−1.
Little-endian, no CRC, so the length must be exact.
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

MAGIC_BYTES = struct.pack("<I", 0x4D6F4530)
HEADER_BYTES = 24
FIELDS = ("model_dim", "hidden_dim", "num_experts", "top_k")


def moe_tensor_spec(model_dim: int, hidden_dim: int, num_experts: int) -> list[TensorSpec]:
    """Names and shapes of the parameters, in order."""
    d, h = model_dim, hidden_dim
    spec = [TensorSpec("wr", (num_experts, d))]
    for expert in ("shared", *(f"expert{e}" for e in range(num_experts))):
        shapes = (("w1", (h, d)), ("b1", (h,)), ("w2", (d, h)), ("b2", (d,)))
        spec += [TensorSpec(f"{expert}.{part}", shape) for part, shape in shapes]
    return spec


def write_moe0(dims: Sequence[int], flat: npt.ArrayLike, fp16: bool = False) -> bytes:
    """Checkpoint bytes; dims = (D, H, E, k), flat the packed float32 vector. Errors as in write_evl0."""
    d, h, e, k = dims
    header = MAGIC_BYTES + struct.pack("<5I", version_of(fp16), d, h, e, k)
    return header + encode_values(flat, _param_count(d, h, e), fp16, lambda: moe_tensor_spec(d, h, e), "MoE checkpoint")


@checked
def read_moe0(
    data: bytes, dims: Sequence[int] | None = None
) -> tuple[tuple[int, int, int, int], npt.NDArray[np.float32]]:
    """((D, H, E, k), packed float32 vector); with `dims` the header must agree (ConfigMismatchError)."""
    if data[:4] != MAGIC_BYTES[: len(data[:4])]:
        raise not_a("a MoE checkpoint", data, "a MoE0 file (bytes 30 45 6f 4d first)")
    if len(data) < HEADER_BYTES:
        raise truncated("MoE checkpoint", len(data), HEADER_BYTES, at_least=True)
    version, d, h, e, k = struct.unpack_from("<5I", data, 4)
    check_version("MoE checkpoint", version)
    stored = (d, h, e, k)
    if dims is not None and stored != tuple(dims):
        wrong = [f"{name} {a} instead of {b}" for name, a, b in zip(FIELDS, stored, dims, strict=True) if a != b]
        raise ConfigMismatchError(
            f"config mismatch: the MoE checkpoint has {', '.join(wrong)}; make a model of its shape"
        )
    if min(stored) < 1:
        raise FormatError(
            f"MoE checkpoint is damaged: its sizes are {dict(zip(FIELDS, stored, strict=True))}, none may be 0"
        )
    check_length("MoE checkpoint", len(data), HEADER_BYTES + ITEM_BYTES[version] * _param_count(d, h, e))
    return stored, decode_values(data, HEADER_BYTES, version)


def _param_count(d: int, h: int, e: int) -> int:
    return e * d + (e + 1) * (2 * h * d + h + d)
