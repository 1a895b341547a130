"""GGUF and ONNX: the reference's bytes."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from evermind_web.errors import InvalidArgumentError
from evermind_web.formats.arch import evermind_tensor_spec
from evermind_web.formats.evl0 import read_evl0
from evermind_web.formats.gguf import write_gguf
from evermind_web.formats.onnx import write_onnx
from evermind_web.formats.protobuf import int_field, varint
from evermind_web.formats.safetensors_io import NamedTensor
from tests.golden_data import load_case


def model_of(name: str) -> tuple[tuple[int, ...], list[NamedTensor]]:
    arch, flat = read_evl0(load_case("export", name).raw("checkpoint"))
    tensors, start = [], 0
    for spec in evermind_tensor_spec(arch):
        tensors.append(NamedTensor(spec.name, spec.shape, flat[start : start + spec.size].reshape(spec.shape)))
        start += spec.size
    return arch, tensors


@pytest.mark.parametrize("name", ["export_main", "export_second"])
def test_onnx_is_the_reference_file(name: str) -> None:
    case = load_case("export", name)
    arch, tensors = model_of(name)
    assert write_onnx(arch, tensors, "p", "7") == case.raw("onnx_named")
    if case.has("onnx"):
        assert write_onnx(arch, tensors, "builderforce-memory-engine") == case.raw("onnx")


@pytest.mark.parametrize("name", ["export_main", "export_second"])
def test_gguf_is_the_reference_file(name: str) -> None:
    case = load_case("export", name)
    arch, tensors = model_of(name)
    assert write_gguf(arch, tensors) == case.raw("gguf")
    got, want = write_gguf(arch, tensors, "Näme", fp16=True), case.raw("gguf_fp16")
    data = 2 * sum(-(-t.data.size // 16) * 16 for t in tensors[:-1]) + 2 * tensors[-1].data.size
    assert len(got) == len(want)
    assert got[:-data] == want[:-data]
    codes = [np.frombuffer(b, "<u2", offset=len(b) - data).astype(int) for b in (got, want)]
    assert set((codes[0] - codes[1]).tolist()) == {0, 1}  # nearest against truncated


def test_gguf_fp16_overflow_names_the_tensor() -> None:
    arch, tensors = model_of("export_second")
    tensors[1].data[0, 0] = 1e6
    with pytest.raises(InvalidArgumentError, match=r"layers\.0\.conv\.weight does not fit fp16"):
        write_gguf(arch, tensors, fp16=True)
    assert write_onnx(arch, tensors)  # always float32


def test_varints() -> None:
    assert [varint(n).hex() for n in (0, 1, 127, 128, 300, 2**32)] == ["00", "01", "7f", "8001", "ac02", "8080808010"]
    assert int_field(8, 0) == struct.pack("BB", 0x40, 0)  # zeros are written
