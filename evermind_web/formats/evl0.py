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

from evermind_web.errors import ConfigMismatchError, FormatError, InvalidArgumentError
from evermind_web.formats.arch import FIELDS, Arch, evermind_tensor_spec, param_count_of
from evermind_web.formats.crc import TRAILER_BYTES, append_crc_trailer, check_guarded_length, strip_crc_trailer
from evermind_web.formats.sniff import not_a, truncated
from evermind_web.quant import dequantize_fp16, quantize_fp16

MAGIC = 0x45564C30
MAGIC_BYTES = struct.pack("<I", MAGIC)
HEADER_BYTES = 36
VERSION_F32, VERSION_FP16 = 1, 2
ITEM_BYTES = {VERSION_F32: 4, VERSION_FP16: 2}


def write_evl0(config: Any, flat: npt.NDArray[np.float32], fp16: bool = False) -> bytes:
    """Checkpoint bytes of a packed float32 vector (P,) in canonical order.

    config: (V, D, L, K, H, E, k), or an object with those fields. With fp16, a finite value that fp16 cannot hold
    raises InvalidArgumentError with its tensor's name.
    """
    arch = Arch.of(config)
    values = np.ascontiguousarray(flat, dtype="<f4").ravel()
    if values.size != param_count_of(arch):
        raise InvalidArgumentError(
            f"a model of {dict(arch._asdict())} has {param_count_of(arch)} parameters, got {values.size}"
        )
    header = struct.pack("<9I", MAGIC, VERSION_FP16 if fp16 else VERSION_F32, *arch)
    return append_crc_trailer(header + (_fp16_body(arch, values) if fp16 else values.tobytes()))


def read_evl0(data: bytes, config: Any = None) -> tuple[Arch, npt.NDArray[np.float32]]:
    """(architecture, packed float32 vector (P,), a fresh writable array) of a checkpoint.

    With `config` the header must agree with it (ConfigMismatchError). FormatError for anything that is not a whole,
    undamaged checkpoint of a known version; the CRC is verified first.
    """
    arch, version, body = inspect_evl0(data, config)
    stored = np.frombuffer(body, "<f4" if version == VERSION_F32 else "<u2", offset=HEADER_BYTES)
    return arch, stored.astype(np.float32) if version == VERSION_F32 else dequantize_fp16(stored.astype(np.uint16))


def inspect_evl0(data: bytes, config: Any = None) -> tuple[Arch, int, bytes]:
    """(architecture, version, header and parameters without trailer), all checks of read_evl0 done, nothing decoded."""
    if data[:4] != MAGIC_BYTES[: len(data[:4])]:
        raise not_a("a checkpoint", data, "an EVL0 file (bytes 30 4c 56 45 first)")
    if len(data) < HEADER_BYTES:
        raise truncated("checkpoint", len(data), HEADER_BYTES + TRAILER_BYTES, at_least=True)
    body, has_trailer = strip_crc_trailer(data, "checkpoint")
    version, *words = struct.unpack_from("<8I", data, 4)
    if version not in ITEM_BYTES:
        raise FormatError(
            f"checkpoint version {version} is unknown: expected 1 (f32) or 2 (fp16); a newer release may read it"
        )
    arch = Arch(*words)
    if config is not None:
        check_same_arch(arch, Arch.of(config))
    need = HEADER_BYTES + ITEM_BYTES[version] * param_count_of(arch)
    check_guarded_length("checkpoint", len(data), need, has_trailer)
    return arch, version, body


def check_same_arch(stored: Arch, expected: Arch) -> None:
    """ConfigMismatchError that lists the fields in which a checkpoint differs from the model."""
    wrong = [
        f"{field} {have} instead of {want}"
        for field, have, want in zip(FIELDS, stored, expected, strict=True)
        if have != want
    ]
    if wrong:
        raise ConfigMismatchError(
            f"config mismatch: the checkpoint has {', '.join(wrong)}; make a model of the checkpoint's shape to load it"
        )


def _fp16_body(arch: Arch, values: npt.NDArray[np.float32]) -> bytes:
    try:
        return quantize_fp16(values).astype("<u2").tobytes()
    except InvalidArgumentError:
        start = 0
        for spec in evermind_tensor_spec(arch):  # slow path: find out which tensor it is and let that one raise
            quantize_fp16(values[start : start + spec.size], spec.name)
            start += spec.size
        raise
