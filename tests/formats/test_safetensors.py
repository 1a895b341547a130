"""safetensors: the reference's bytes, the official library, and headers that lie (CK1, CK4, CK6, CK8)."""

from __future__ import annotations

import json
import pickle
import struct
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from evermind_web.errors import FormatError, InvalidArgumentError
from evermind_web.formats.safetensors_io import (
    NamedTensor,
    read_arrays,
    read_metadata,
    safetensors_to_tensors,
    tensors_to_safetensors,
    write_arrays,
)
from tests.golden_data import load_case


def tensor(name: str, *shape: int) -> NamedTensor:
    values = np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)
    return NamedTensor(name, shape, values)


def file_of(header: Any, data: bytes = b"") -> bytes:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape: list[Any], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


# ── right files ──
def test_free_tensors_are_the_reference_bytes() -> None:
    case = load_case("export", "safetensors_free")
    tensors = [NamedTensor(t["name"], tuple(t["shape"]), np.array(t["data"], np.float32)) for t in case["tensors"]]
    assert tensors_to_safetensors(tensors) == case.raw("bytes")  # integer-like names first in the header
    read = {t.name: t for t in safetensors_to_tensors(case.raw("bytes"))}
    for want in case["read_back"]:
        assert read[want["name"]].data.shape == tuple(want["shape"])
        assert read[want["name"]].data.ravel().tolist() == want["data"]


def test_the_official_library_reads_ours() -> None:
    tensors = [tensor("a", 2, 3), tensor("b.weight", 4), tensor("scalar"), tensor("empty", 0, 5)]
    loaded = safetensors.numpy.load(tensors_to_safetensors(tensors, metadata={"format": "pt", "note": "é"}))
    assert {name: a.tolist() for name, a in loaded.items()} == {t.name: t.data.tolist() for t in tensors}
    half = safetensors.numpy.load(tensors_to_safetensors(tensors, fp16=True))
    assert all(half[t.name].tobytes() == t.data.astype(np.float16).tobytes() for t in tensors)


def test_we_read_the_official_library() -> None:
    arrays: dict[str, Any] = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": np.ones(3, np.float16)}
    data = safetensors.numpy.save(arrays, metadata={"k": "v"})
    read = {t.name: t.data for t in safetensors_to_tensors(data)}
    assert all(read[name].dtype == np.float32 for name in arrays)
    assert all(np.array_equal(read[name], array) for name, array in arrays.items())
    assert read_metadata(data) == {"k": "v"}
    read["x"][0, 0] = 9  # a writable copy


def test_other_dtypes_survive() -> None:
    arrays = {code: np.arange(4).astype(code) for code in ("<f8", "<i8", "<i4", "<u4", "<u2", "i1", "u1")}
    data = write_arrays([(name, (2, 2), array) for name, array in arrays.items()], {"step": "3"})
    tensors, metadata = read_arrays(data)
    assert metadata == {"step": "3"}
    for t in tensors:
        assert t.data.dtype == arrays[t.name].dtype
        assert t.data.ravel().tolist() == [0, 1, 2, 3]


def test_dtype_spellings_of_the_reference() -> None:
    data = struct.pack("<2f", 1, 2)
    for spelling in ("F32", "f32", "FLOAT32", "float32"):
        (read,) = safetensors_to_tensors(file_of({"x": entry([2], 0, 8, spelling)}, data))
        assert read.data.tolist() == [1, 2]


def test_writing_refuses_wrong_tensors() -> None:
    with pytest.raises(InvalidArgumentError, match="'a': expected 6 elements for shape"):
        tensors_to_safetensors([NamedTensor("a", (2, 3), np.zeros(5, np.float32))])
    with pytest.raises(InvalidArgumentError, match="'a' is used twice"):
        tensors_to_safetensors([tensor("a", 1), tensor("a", 1)])


def test_ck6_fp16_overflow_names_the_tensor() -> None:
    with pytest.raises(InvalidArgumentError, match=r"lora_B does not fit fp16: element 0 is 65520"):
        tensors_to_safetensors([NamedTensor("lora_B", (1,), np.array([65520.0], np.float32))], fp16=True)


# ── wrong files ──
GOOD = tensors_to_safetensors([tensor("a", 2, 3), tensor("b", 4)])


@pytest.mark.parametrize("keep", [0, 7, 8, 20, len(GOOD) // 2, len(GOOD) - 1])
def test_ck1_truncated(keep: int) -> None:
    with pytest.raises(FormatError, match=rf"safetensors file truncated: have {keep} of"):
        safetensors_to_tensors(GOOD[:keep])


def test_ck1_too_long() -> None:
    with pytest.raises(FormatError, match="4 bytes too many"):
        safetensors_to_tensors(GOOD + bytes(4))


def test_ck1_and_ck8_other_files_are_named() -> None:
    with pytest.raises(FormatError, match=r"looks like an HTML page"):
        safetensors_to_tensors(b"<!DOCTYPE html><html></html>")
    with pytest.raises(FormatError, match=r"not a safetensors file \(looks like pickle\)"):
        safetensors_to_tensors(pickle.dumps([1, 2, 3]))
    with pytest.raises(FormatError, match=r"looks like an EVL0 model checkpoint"):
        safetensors_to_tensors(b"0LVE" + bytes(60))


LIES: dict[str, tuple[Any, bytes, str]] = {
    "product wraps to 0 in 32 bits": ({"big": entry([65536, 65536], 0, 0)}, b"", "'big'.*takes 17179869184 bytes"),
    "2**31 rows": ({"big": entry([2**31, 2], 0, 0)}, b"", "'big'.*takes 17179869184 bytes"),
    "an empty tensor with absurd dimensions": ({"big": entry([0, 2**62, 2**62], 0, 0)}, b"", "'big'"),
    "negative": ({"n": entry([-2, -2], 0, 16)}, bytes(16), "'n': shape"),
    "fraction": ({"n": entry([1.0], 0, 4)}, bytes(4), "'n': shape"),
    "bool": ({"n": entry([True], 0, 4)}, bytes(4), "'n': shape"),
    "rank": ({"n": entry([1] * 33, 0, 4)}, bytes(4), "'n': shape"),
    "overlap": ({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, bytes(12), "'b': span .* overlaps 'a'"),
    "hole": ({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, bytes(12), "'b': span .* leaves a hole after 'a'"),
    "past the end": ({"a": entry([4], 0, 16)}, bytes(12), "'a': safetensors file truncated"),
    "span against shape": ({"a": entry([2], 0, 4)}, bytes(4), "'a': shape .* takes 8 bytes, its span has 4"),
    "backwards": ({"a": entry([1], 4, 0)}, bytes(4), "'a': data_offsets"),
    "negative span": ({"a": entry([1], -4, 0)}, bytes(4), "'a': data_offsets"),
    "no offsets": ({"a": {"dtype": "F32", "shape": [1]}}, bytes(4), "'a': data_offsets None"),
    "no entry": ({"a": 3}, b"", "'a': dtype None"),
    "dtype": ({"a": entry([0], 0, 0, "I64")}, b"", "'a': dtype 'I64' is not supported: expected one of F32, F16"),
    "metadata": ({"__metadata__": {"a": 1}}, b"", "metadata must map strings"),
    "json": ("{bad", b"", "no valid JSON"),
    "twice": ('{"a":1,"a":2}', b"", "a name occurs twice"),
    "deep": ('{"a":' + "[" * 100_000 + "]" * 100_000 + "}", b"", "no valid JSON"),
}


@pytest.mark.parametrize("what", LIES)
def test_ck4_headers_that_lie(what: str) -> None:
    header, data, message = LIES[what]
    with pytest.raises(FormatError, match=message):
        safetensors_to_tensors(file_of(header, data))


def test_ck4_header_that_is_no_utf8() -> None:
    text = b'{"\xff":1}'
    with pytest.raises(FormatError, match="no valid JSON"):
        safetensors_to_tensors(struct.pack("<Q", len(text)) + text)
