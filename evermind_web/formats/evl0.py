"""EVL0: the model checkpoint. Header, the flat parameter vector, CRC trailer.

    bytes 0…35   u32 × 9: magic 0x45564c30 (on disk `30 4c 56 45`), version (1 f32, 2 fp16), V, D, L, K, H, E, k
    from 36      every parameter in canonical order, f32 or u16 fp16 codes
    last 8       CRC trailer (see crc.py); a file of exact length without one is accepted

All little-endian. The seed is not stored. Nothing is allocated before the sizes agree with the bytes that are there.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from evermind_web.checks import checked
from evermind_web.errors import ConfigMismatchError, FormatError
from evermind_web.formats.arch import FIELDS, Arch, evermind_tensor_spec, param_count_of
from evermind_web.formats.crc import TRAILER_BYTES, append_crc_trailer, check_guarded_length, strip_crc_trailer
from evermind_web.formats.sniff import not_a, truncated
from evermind_web.formats.values import ITEM_BYTES, check_version, decode_values, encode_values, version_of

MAGIC = 0x45564C30
MAGIC_BYTES = struct.pack("<I", MAGIC)
HEADER_BYTES = 36


def write_evl0(config: Any, flat: npt.NDArray[np.float32], fp16: bool = False) -> bytes:
    """Checkpoint bytes of a packed float32 vector (P,) in canonical order.

    config: (V, D, L, K, H, E, k), or an object with those fields. With fp16, a finite value that fp16 cannot hold
    raises InvalidArgumentError with its tensor's name.
    """
    arch = Arch.of(config)
    header = struct.pack("<9I", MAGIC, version_of(fp16), *arch)
    body = encode_values(flat, param_count_of(arch), fp16, lambda: evermind_tensor_spec(arch), "checkpoint")
    return append_crc_trailer(header + body)


def read_evl0(data: bytes, config: Any = None) -> tuple[Arch, npt.NDArray[np.float32]]:
    """(architecture, packed float32 vector (P,), a fresh writable array) of a checkpoint.

    With `config` the header must agree with it (ConfigMismatchError). FormatError for anything that is not a whole,
    undamaged checkpoint of a known version; the CRC is verified first.
    """
    arch, version, body = inspect_evl0(data, config)
    return arch, decode_values(body, HEADER_BYTES, version)


@checked
def inspect_evl0(data: bytes, config: Any = None) -> tuple[Arch, int, bytes]:
    """(architecture, version, header and parameters without trailer), all checks of read_evl0 done, nothing decoded."""
    if data[:4] != MAGIC_BYTES[: len(data[:4])]:
        raise not_a("a checkpoint", data, "an EVL0 file (bytes 30 4c 56 45 first)")
    if len(data) < HEADER_BYTES:
        raise truncated("checkpoint", len(data), HEADER_BYTES + TRAILER_BYTES, at_least=True)
    body, has_trailer = strip_crc_trailer(data, "checkpoint")
    version, *words = struct.unpack_from("<8I", data, 4)
    check_version("checkpoint", version)
    arch = Arch(*words)
    if config is not None:
        check_same_arch(arch, Arch.of(config))
    check_sizes(arch)
    need = HEADER_BYTES + ITEM_BYTES[version] * param_count_of(arch)
    check_guarded_length("checkpoint", len(data), need, has_trailer)
    return arch, version, body


def check_sizes(arch: Arch) -> None:
    """FormatError for a shape that no model has. A width of 0 would let a few bytes claim billions of tensors."""
    small = [name for name, size in zip(FIELDS, arch, strict=True) if size < 1 and name != "num_layers"]
    if small or arch.top_k > arch.num_experts:
        raise FormatError(
            f"checkpoint is damaged: {', '.join(f'{name} is 0' for name in small)}"
            if small
            else f"checkpoint is damaged: top_k {arch.top_k} of {arch.num_experts} experts"
        )


def check_same_arch(stored: Arch, expected: Arch) -> None:
    """ConfigMismatchError that lists the fields in which a checkpoint differs from the model."""
    wrong = [f"{name} {a} instead of {b}" for name, a, b in zip(FIELDS, stored, expected, strict=True) if a != b]
    if wrong:
        raise ConfigMismatchError(
            f"config mismatch: the checkpoint has {', '.join(wrong)}; make a model of the checkpoint's shape to load it"
        )
