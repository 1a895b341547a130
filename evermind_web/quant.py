"""Narrow number formats for storage: fp16 and int8, per tensor and per channel.

fp16 rounds to nearest even. A finite value that fp16 cannot hold is refused by name, never turned into infinity,
unless the caller asks for infinity (gradients under a loss scaler do). All results are NumPy arrays or Python numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from evermind_web.checks import checked
from evermind_web.errors import InvalidArgumentError

INT8_MAX = 127
SMALLEST_SCALE = float(np.float32(2.0**-149))

Float32Array = npt.NDArray[np.float32]


# ── fp16 ─────────────────────────────────────────────────────────────────────
@checked
def quantize_fp16(
    values: npt.ArrayLike, name: str = "values", overflow: Literal["raise", "inf"] = "raise"
) -> npt.NDArray[np.uint16]:
    """fp16 codes of float values (rounded to float32 first), uint16 of the same shape.

    NaN and infinities stay what they are. A finite |x| ≥ 65520 raises InvalidArgumentError that names `name` and
    the first such element, or becomes infinity with overflow="inf".
    """
    array = np.asarray(values)
    with np.errstate(over="ignore"):
        half = array.astype(np.float32).astype(np.float16)
    if overflow == "raise":
        bad = np.flatnonzero(np.isinf(half) & np.isfinite(array))
        if bad.size:
            raise InvalidArgumentError(
                f"{name} does not fit fp16: element {int(bad[0])} is {float(array.flat[int(bad[0])]):g}, the largest"
                f" fp16 number is 65504 ({bad.size} of {array.size} elements are too large); keep float32"
            )
    return half.view(np.uint16)


@checked
def dequantize_fp16(codes: npt.ArrayLike) -> Float32Array:
    """float32 values of fp16 codes (integers 0…65535), same shape; every fp16 number is exact in float32."""
    array = _codes(codes, "fp16 codes", np.uint16)
    return np.ascontiguousarray(array).view(np.float16).astype(np.float32).reshape(array.shape)


def float_to_fp16(x: float) -> int:
    """fp16 code of one number; InvalidArgumentError for a finite |x| ≥ 65520."""
    return int(quantize_fp16(x, "the number"))


@checked
def fp16_to_float(code: int) -> float:
    """The number that an fp16 code stands for."""
    return float(dequantize_fp16(np.array([code]))[0])


def round_fp16(x: float) -> float:
    """The fp16 number nearest to x; InvalidArgumentError for a finite |x| ≥ 65520."""
    return fp16_to_float(float_to_fp16(x))


@checked
def count_lost_to_zero(values: npt.ArrayLike, codes: npt.ArrayLike) -> int:
    """How many non-zero values have the fp16 code of zero: what saving as fp16 wiped out."""
    array = np.asarray(values)
    halves = _codes(codes, "fp16 codes", np.uint16)
    if halves.size != array.size:
        raise InvalidArgumentError(
            f"there are {array.size} values and {halves.size} codes; give the codes of these values"
        )
    return int(np.count_nonzero((array != 0) & ((halves.reshape(array.shape) & 0x7FFF) == 0)))


# ── int8 ─────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Int8Tensor:
    """data int8 (n,), one float64 scale: x ≈ data·scale."""

    data: npt.NDArray[np.int8]
    scale: float


@dataclass(frozen=True)
class Int8Channels:
    """data int8 (n,), scales float32 (channels,): x ≈ data·scale of its block of n/channels elements."""

    data: npt.NDArray[np.int8]
    scales: Float32Array


@checked
def quantize_int8(values: npt.ArrayLike) -> Int8Tensor:
    """Symmetric int8 with one scale max|x|/127 (1 for zeros); InvalidArgumentError if a value is not finite."""
    array = _finite(values, "quantize_int8").ravel()
    scale = float(np.abs(array).max(initial=0.0)) / INT8_MAX or 1.0
    return Int8Tensor(_to_int8(array.astype(np.float64) / scale), scale)


@checked
def dequantize_int8(data: npt.ArrayLike, scale: float) -> Float32Array:
    """float32(data·scale), same shape."""
    return (_codes(data, "int8 data", np.int8).astype(np.float64) * float(scale)).astype(np.float32)


@checked
def quantize_int8_per_channel(values: npt.ArrayLike, num_channels: int) -> Int8Channels:
    """Like quantize_int8 for num_channels equal contiguous blocks; scales are float32 and the division uses them."""
    array = _finite(values, "quantize_int8_per_channel").ravel()
    blocks = _blocks(array, num_channels).astype(np.float64)
    largest = np.abs(blocks).max(axis=1, initial=0.0)
    scales = (largest / INT8_MAX).astype(np.float32)
    # A block of subnormals may have a scale below the smallest float32; with that one every element is exact.
    scales = np.where(largest == 0, np.float32(1), np.maximum(scales, np.float32(SMALLEST_SCALE)))
    return Int8Channels(_to_int8(blocks / scales[:, None].astype(np.float64)).ravel(), scales)


@checked
def dequantize_int8_per_channel(data: npt.ArrayLike, scales: npt.ArrayLike, num_channels: int) -> Float32Array:
    """float32(data·scale of its channel), flat (n,)."""
    factors = np.asarray(scales, dtype=np.float64).ravel()
    if factors.size != num_channels:
        raise InvalidArgumentError(f"expected {num_channels} scales, one per channel, got {factors.size}")
    blocks = _blocks(_codes(data, "int8 data", np.int8).ravel(), num_channels).astype(np.float64)
    return (blocks * factors[:, None]).astype(np.float32).ravel()


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a number of values takes in each format."""

    fp32: int
    fp16: int
    int8: int


@checked
def estimate_memory(n: int) -> MemoryEstimate:
    """Bytes of n values in fp32, fp16 and int8 (scales not counted)."""
    return MemoryEstimate(4 * n, 2 * n, n)


def _codes(values: npt.ArrayLike, what: str, kind: type[np.uint16] | type[np.int8]) -> npt.NDArray[Any]:
    """The whole numbers that `kind` can hold, as that; InvalidArgumentError for any other."""
    array, limits = np.asarray(values), np.iinfo(kind)
    whole = array.dtype.kind in "iu"
    if array.size and not (whole and limits.min <= int(array.min()) and int(array.max()) <= limits.max):
        raise InvalidArgumentError(f"{what} must be integers in {limits.min}…{limits.max}, got {array.dtype} values")
    return array.astype(kind, copy=False)


def _finite(values: npt.ArrayLike, what: str) -> Float32Array:
    array = np.asarray(values, dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        raise InvalidArgumentError(
            f"{what}: element {int(bad[0])} is {float(array.flat[int(bad[0])])}; int8 needs finite values"
            f" ({bad.size} of {array.size} are not)"
        )
    return array


def _blocks(array: npt.NDArray[Any], num_channels: int) -> npt.NDArray[Any]:
    if num_channels < 1 or array.size % num_channels:
        raise InvalidArgumentError(f"{array.size} values cannot be cut into {num_channels} equal channels")
    return array.reshape(num_channels, -1)


def _to_int8(x: npt.NDArray[np.float64]) -> npt.NDArray[np.int8]:
    """Nearest integer, halves upward (exactly, unlike floor(x + 0.5)), clamped to −128…127."""
    down = np.floor(x)
    nearest: npt.NDArray[np.float64] = down + (x - down >= 0.5)
    return nearest.clip(-INT8_MAX - 1, INT8_MAX).astype(np.int8)
