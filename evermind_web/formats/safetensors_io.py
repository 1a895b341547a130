"""safetensors: a JSON header with names, dtypes, shapes and spans, then the raw little-endian data.

    u64 header length, header (compact JSON, padded with spaces to a multiple of 8), data

The reader trusts nothing: every span must lie in the file, agree with dtype and shape, touch no other span and leave
no hole. Errors name the tensor. Sizes are Python ints, so no product wraps.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from evermind_web import strict_json
from evermind_web.checks import checked, utf8
from evermind_web.errors import FormatError, InvalidArgumentError
from evermind_web.formats.sniff import not_a, truncated
from evermind_web.quant import quantize_fp16

WHAT = "safetensors file"
METADATA = "__metadata__"
DTYPES = {  # names in the file → NumPy; what is not here is refused by name
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "U32": "<u4",
    "U16": "<u2",
    "I8": "|i1",
    "U8": "|u1",
}
ALIASES = {"FLOAT32": "F32", "FLOAT16": "F16"}
NAMES = {np.dtype(code): name for name, code in DTYPES.items()}
MAX_RANK = 32
MAX_BYTES = 2**31 - 1  # of one array where a pointer has 32 bits, as in a browser


class NamedTensor(NamedTuple):
    """A tensor with its name; data has that shape."""

    name: str
    shape: tuple[int, ...]
    data: npt.NDArray[Any]


@runtime_checkable
class Named(Protocol):
    """Anything with a name, a shape and float data."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def data(self) -> Any: ...


# ── writing ──────────────────────────────────────────────────────────────────
@checked
def tensors_to_safetensors(
    tensors: Iterable[Named], fp16: bool = False, metadata: Mapping[str, str] | None = None
) -> bytes:
    """A file of float tensors (objects with .name, .shape, .data), F32 or, with fp16, F16.

    InvalidArgumentError names the tensor that has a wrong length, a name used twice, or a value fp16 cannot hold.
    """
    entries = []
    for tensor in tensors:
        values = np.asarray(tensor.data, dtype="<f4")
        half = quantize_fp16(values, tensor.name).view(np.float16).astype("<f2") if fp16 else values
        entries.append((str(tensor.name), tuple(int(n) for n in tensor.shape), half))
    return write_arrays(entries, metadata)


def write_arrays(
    entries: Iterable[tuple[str, tuple[int, ...], npt.NDArray[Any]]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """A file of (name, shape, array) in any dtype of DTYPES; data in the given order."""
    header: dict[str, Any] = {}
    parts: list[memoryview] = []  # joined below without another copy of each
    end = 0
    for name, shape, array in entries:
        dtype = NAMES.get(array.dtype.newbyteorder("<"))
        if name in header or name == METADATA:
            raise InvalidArgumentError(f"tensor name {name!r} is used twice or reserved; give each tensor its own")
        if dtype is None or array.size != math.prod(shape):
            raise InvalidArgumentError(
                f"tensor {name!r}: expected {math.prod(shape)} elements for shape {list(shape)} in one of"
                f" {', '.join(DTYPES)}, got {array.size} of {array.dtype}"
            )
        parts.append(np.ascontiguousarray(array, DTYPES[dtype]).data)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + parts[-1].nbytes]}
        end += parts[-1].nbytes
    text = _header_text(header, metadata)
    return b"".join([struct.pack("<Q", len(text)), text, *parts])


def _header_text(header: dict[str, Any], metadata: Mapping[str, str] | None) -> bytes:
    """Names that look like integers come first, ascending, as in a JavaScript object."""
    numeric = sorted((name for name in header if _is_array_index(name)), key=int)
    ordered: dict[str, Any] = {name: header[name] for name in numeric}
    if metadata:
        ordered[METADATA] = {str(key): str(value) for key, value in metadata.items()}
    ordered |= header
    text = utf8(json.dumps(ordered, separators=(",", ":"), ensure_ascii=False))
    return text + b" " * (-len(text) % 8)


def _is_array_index(name: str) -> bool:
    return len(name) <= 10 and name.isascii() and name.isdigit() and str(int(name)) == name and int(name) < 2**32 - 1


# ── reading ──────────────────────────────────────────────────────────────────
@checked
def safetensors_to_tensors(data: bytes) -> list[NamedTensor]:
    """Float tensors (F32 or F16) of a file, as fresh float32 arrays of the stored shapes, in header order."""
    tensors, _ = read_arrays(data, only=("F32", "F16"))
    return [t._replace(data=t.data.astype(np.float32)) for t in tensors]


@checked
def read_metadata(data: bytes) -> dict[str, str]:
    """The file's free-form metadata, {} where there is none."""
    return _parse_header(data)[1]


def read_arrays(data: bytes, only: Iterable[str] = tuple(DTYPES)) -> tuple[list[NamedTensor], dict[str, str]]:
    """Every tensor in its stored dtype (read-only views of data), and the metadata; FormatError if unsound."""
    header, metadata, start = _parse_header(data)
    allowed = tuple(only)
    spans, tensors = [], []
    for name, entry in header.items():
        dtype, shape, begin, end = _check_entry(name, entry, allowed)
        if start + end > len(data):
            raise FormatError(f"tensor {name!r}: {truncated(WHAT, len(data), start + end)}")
        spans.append((begin, end, name))
        array = (
            np.frombuffer(data, DTYPES[dtype], count=math.prod(shape), offset=start + begin) if end > begin else None
        )
        tensors.append(
            NamedTensor(name, shape, np.zeros(shape, DTYPES[dtype]) if array is None else array.reshape(shape))
        )
    _check_spans(spans, len(data) - start)
    return tensors, metadata


def _parse_header(data: bytes) -> tuple[dict[str, Any], dict[str, str], int]:
    """(entries by name, metadata, where the data starts)."""
    if len(data) < 8:
        raise truncated(WHAT, len(data), 10, at_least=True)
    if data[8:9] not in (b"{", b""):
        raise not_a(f"a {WHAT}", data, "a header length and JSON")
    (length,) = struct.unpack_from("<Q", data)
    if 8 + length > len(data):
        raise truncated(WHAT, len(data), 8 + length, at_least=True)
    try:
        header = strict_json.loads(data[8 : 8 + length].decode("utf-8"), _unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{WHAT} is damaged: its header is no valid JSON ({error}); fetch or export it again"
        ) from None
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise FormatError(f"{WHAT} is damaged: its metadata must map strings to strings")
    return header, metadata, 8 + length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a name occurs twice")
    return out


def _check_entry(name: str, entry: Any, allowed: tuple[str, ...]) -> tuple[str, tuple[int, ...], int, int]:
    """(dtype, shape, begin, end) of one header entry, sound in itself."""

    def natural(value: Any) -> bool:
        return type(value) is int and value >= 0  # bool is no size

    entry = entry if isinstance(entry, dict) else {}
    dtype, shape, span = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or ALIASES.get(dtype.upper(), dtype.upper()) not in allowed:
        raise FormatError(f"tensor {name!r}: dtype {dtype!r} is not supported: expected one of {', '.join(allowed)}")
    dtype = ALIASES.get(dtype.upper(), dtype.upper())
    if not isinstance(shape, list) or len(shape) > MAX_RANK or not all(map(natural, shape)):
        raise FormatError(f"tensor {name!r}: shape {shape!r} is not a list of at most {MAX_RANK} sizes ≥ 0")
    if not isinstance(span, list) or len(span) != 2 or not all(map(natural, span)) or span[0] > span[1]:
        raise FormatError(f"tensor {name!r}: data_offsets {span!r} are not [begin, end] with 0 ≤ begin ≤ end")
    need = math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
    if need != span[1] - span[0] or math.prod(n for n in shape if n) > MAX_BYTES:
        raise FormatError(
            f"tensor {name!r}: shape {shape} of {dtype} takes {need} bytes, its span has {span[1] - span[0]}"
        )
    return dtype, tuple(shape), span[0], span[1]


def _check_spans(spans: list[tuple[int, int, str]], size: int) -> None:
    """Every byte of the data belongs to exactly one tensor."""
    position, last = 0, "the header"
    for begin, end, name in sorted(spans):
        if begin != position:
            how = "overlaps" if begin < position else "leaves a hole after"
            raise FormatError(f"tensor {name!r}: span [{begin}, {end}] {how} {last!r}, which ends at {position}")
        position, last = end, name
    if position != size:
        raise FormatError(
            f"{WHAT} has {size - position} bytes too many after its last tensor; fetch or export it again"
        )
