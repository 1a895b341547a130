"""GGUF version 3, written only: a container for tools that read GGUF; no such tool runs this architecture.

    u32 "GGUF", u32 3, u64 tensors, u64 key-values, key-values, tensor infos, zeros to a multiple of 32, data

A string is u64 length + UTF-8. Dimensions are stored fastest first, so reversed. Tensors start at multiples of 32.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from evermind_web.checks import utf8
from evermind_web.formats.arch import Arch
from evermind_web.quant import quantize_fp16

ALIGNMENT = 32
TYPE_U32, TYPE_STRING = 4, 8  # of key-values
TYPE_F32, TYPE_F16 = 0, 1  # of tensors
KEYS = (  # in the order of Arch
    "vocab_size",
    "embedding_length",
    "block_count",
    "conv_kernel",
    "feed_forward_length",
    "expert_count",
    "expert_used_count",
)


def write_gguf(arch: Any, tensors: Sequence[Any], name: str = "Evermind", fp16: bool = False) -> bytes:
    """A GGUF file of named tensors (.name, .shape, .data), f32 or fp16.

    InvalidArgumentError names the tensor that has a finite value fp16 cannot hold, or the text that no file can.
    """
    pairs = [_text_pair("general.architecture", "evermind"), _text_pair("general.name", name)]
    pairs += [_number_pair(f"evermind.{key}", value) for key, value in zip(KEYS, Arch.of(arch), strict=True)]
    pairs.append(_number_pair("general.alignment", ALIGNMENT))
    infos, data = bytearray(), bytearray()
    for tensor in tensors:
        values = np.asarray(tensor.data, "<f4")
        data += bytes(-len(data) % ALIGNMENT)
        infos += _text(tensor.name) + struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
        infos += struct.pack("<IQ", TYPE_F16 if fp16 else TYPE_F32, len(data))
        data += quantize_fp16(values, tensor.name).astype("<u2").tobytes() if fp16 else values.tobytes()
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(pairs)) + b"".join(pairs) + infos
    return bytes(header + bytes(-len(header) % ALIGNMENT) + data)


def _text(value: str) -> bytes:
    encoded = utf8(value)
    return struct.pack("<Q", len(encoded)) + encoded


def _text_pair(key: str, value: str) -> bytes:
    return _text(key) + struct.pack("<I", TYPE_STRING) + _text(value)


def _number_pair(key: str, value: int) -> bytes:
    return _text(key) + struct.pack("<II", TYPE_U32, value)
