"""Parameter vectors inside checkpoints: version 1 stores float32, version 2 fp16 codes; little-endian."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from evermind_web.errors import FormatError, InvalidArgumentError
from evermind_web.formats.arch import TensorSpec
from evermind_web.quant import dequantize_fp16, quantize_fp16

VERSION_F32, VERSION_FP16 = 1, 2
ITEM_BYTES = {VERSION_F32: 4, VERSION_FP16: 2}


def version_of(fp16: bool) -> int:
    """The version word of a file."""
    return VERSION_FP16 if fp16 else VERSION_F32


def check_version(what: str, version: int) -> None:
    """FormatError for a version that this release does not know."""
    if version not in ITEM_BYTES:
        raise FormatError(
            f"{what} version {version} is unknown: expected 1 (f32) or 2 (fp16); a newer release may read it"
        )


def encode_values(
    values: npt.ArrayLike, count: int, fp16: bool, spec: Callable[[], Sequence[TensorSpec]], what: str
) -> bytes:
    """Bytes of a flat float32 vector (count,); InvalidArgumentError names the tensor that fp16 cannot hold."""
    flat = np.ascontiguousarray(values, dtype="<f4").ravel()
    if flat.size != count:
        raise InvalidArgumentError(f"{what}: a model of this shape has {count} parameters, got {flat.size}")
    if not fp16:
        return flat.tobytes()
    try:
        return quantize_fp16(flat, what).astype("<u2").tobytes()
    except InvalidArgumentError:
        start = 0
        for tensor in spec():  # slow path: find out which tensor it is and let that one raise
            quantize_fp16(flat[start : start + tensor.size], tensor.name)
            start += tensor.size
        raise


def fingerprint_of(packed: npt.ArrayLike) -> str:
    """SHA-256 (hex) of a packed vector as little-endian float32: what adapters and deltas know a base by."""
    return hashlib.sha256(np.asarray(packed, "<f4").tobytes()).hexdigest()


def decode_values(body: bytes, offset: int, version: int) -> npt.NDArray[np.float32]:
    """The vector from `offset` to the end of body, a fresh writable float32 array."""
    if version == VERSION_F32:
        return np.frombuffer(body, "<f4", offset=offset).astype(np.float32)
    return dequantize_fp16(np.frombuffer(body, "<u2", offset=offset).astype(np.uint16))
