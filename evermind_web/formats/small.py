"""Small checkpoints: a header of sizes, then the parameters to the end of the file.

    u32: magic, version (1 f32, 2 fp16), the sizes; then every parameter in order

Little-endian, no CRC, so the length must be exact. `lmbc` and `moe0` say what sizes and parameters theirs have.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evermind_web.errors import ConfigMismatchError, FormatError
from evermind_web.formats.arch import TensorSpec
from evermind_web.formats.sniff import check_length, not_a, truncated
from evermind_web.formats.values import ITEM_BYTES, check_version, decode_values, encode_values, version_of


class SmallFormat(NamedTuple):
    """One kind of them. count: parameters of given sizes, told without making the tensors that a header claims."""

    what: str
    file: str
    magic: bytes
    fields: tuple[str, ...]
    count: Callable[..., int]
    spec: Callable[..., Sequence[TensorSpec]]

    @property
    def header_bytes(self) -> int:
        """Where the parameters begin."""
        return 8 + 4 * len(self.fields)

    def write(self, sizes: Sequence[int], flat: npt.ArrayLike, fp16: bool) -> bytes:
        """The file of a packed float32 vector. Errors as in write_evl0."""
        header = self.magic + struct.pack(f"<{1 + len(self.fields)}I", version_of(fp16), *sizes)
        return header + encode_values(flat, self.count(*sizes), fp16, lambda: self.spec(*sizes), self.what)

    def read(self, data: bytes, sizes: Sequence[int] | None) -> tuple[tuple[int, ...], npt.NDArray[np.float32]]:
        """(sizes, packed float32 vector); with `sizes` the header must agree (ConfigMismatchError)."""
        if data[:4] != self.magic[: len(data[:4])]:
            raise not_a(f"a {self.what}", data, f"{self.file} (bytes {self.magic.hex(' ')} first)")
        if len(data) < self.header_bytes:
            raise truncated(self.what, len(data), self.header_bytes, at_least=True)
        version, *found = struct.unpack_from(f"<{1 + len(self.fields)}I", data, 4)
        check_version(self.what, version)
        stored = dict(zip(self.fields, found, strict=True))
        if sizes is not None and found != list(sizes):
            wrong = [f"{name} {a} instead of {b}" for (name, a), b in zip(stored.items(), sizes, strict=True) if a != b]
            raise ConfigMismatchError(
                f"config mismatch: the {self.what} has {', '.join(wrong)}; make a model of its shape"
            )
        if min(found) < 1:
            raise FormatError(f"{self.what} is damaged: its sizes are {stored}, none may be 0")
        check_length(self.what, len(data), self.header_bytes + ITEM_BYTES[version] * self.count(*found))
        return tuple(found), decode_values(data, self.header_bytes, version)
