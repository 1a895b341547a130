"""A padded vector on a backend, in as few buffers as its limit allows.

All weights of a model, their gradients and AdamW's moments are such vectors. A device may not hold one in a single
buffer (WebGPU promises 128 MiB to a binding); then it lies in parts, cut only between *units*: what an operation binds
as one, which is a tensor or the whole mixture of a layer. Vectors of one model are cut alike.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from evermind_web.backend.base import Array, Backend, Buf, Reading
from evermind_web.errors import BackendError

BYTES = 4  # of an element


def part_sizes(units: Iterable[tuple[str, int]], backend: Backend) -> list[int]:
    """Elements of each part of a vector of these units (name, elements), in order: the fewest that the backend holds.

    Raises BackendError for a unit that is too large for a buffer; nothing was allocated then.
    """
    limit = backend.max_buffer_bytes
    sizes: list[int] = []
    for name, size in units:
        if BYTES * size > limit:
            raise BackendError(
                f"{name} needs {BYTES * size} bytes in one buffer, limit {limit} of {backend.adapter_name}; choose "
                "smaller sizes (evermind_web.sizing.suggest_config knows what fits), or another backend"
            )
        if sizes and BYTES * (sizes[-1] + size) <= limit:
            sizes[-1] += size
        else:
            sizes.append(size)
    return sizes


@dataclass(frozen=True, slots=True)
class FlatVector:
    """A vector (P) whose elements lie one after another in `parts`, each a buffer of one dimension."""

    backend: Backend
    parts: tuple[Buf, ...]

    @classmethod
    def alloc(cls, backend: Backend, sizes: Sequence[int]) -> FlatVector:
        """Zeros, in parts of so many elements."""
        return cls(backend, tuple(backend.alloc((size,)) for size in sizes))

    def like(self) -> FlatVector:
        """Zeros, cut as this one."""
        return self.alloc(self.backend, [part.size for part in self.parts])

    @property
    def size(self) -> int:
        """P."""
        return sum(part.size for part in self.parts)

    @property
    def whole(self) -> Buf:
        """The only buffer (P) of a small model, whose operations take all of its weights as one operand."""
        (part,) = self.parts
        return part

    def place(self, offset: int) -> tuple[Buf, int]:
        """The part that element `offset` of the vector lies in, and its place there."""
        ends = list(accumulate(part.size for part in self.parts))
        index = bisect_right(ends, offset)
        return self.parts[index], offset - ([0, *ends][index])

    def view(self, offset: int, shape: Sequence[int]) -> Buf:
        """A window from element `offset` on, a multiple of `layout.ALIGN`, inside one unit; the caller frees it."""
        part, at = self.place(offset)
        return self.backend.view(part, at, shape)

    def write(self, vector: Array) -> None:
        """Queue an upload of all elements (P)."""
        at = 0
        for part in self.parts:
            self.backend.write(part, vector[at : at + part.size])
            at += part.size

    async def read(self) -> Array:
        """All elements (P), fresh."""
        return (await read_all(self))[0]

    def zero(self) -> None:
        """Queue filling with zeros."""
        for part in self.parts:
            self.backend.zero(part)

    def copy_from(self, other: FlatVector) -> None:
        """Queue taking over the elements of a vector that is cut alike."""
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            self.backend.copy(theirs, 0, mine, 0, mine.size)

    def free(self) -> None:
        """Give the memory back."""
        for part in self.parts:
            self.backend.free(part)


async def read_all(*vectors: FlatVector) -> list[Array]:
    """The elements of vectors as they all are now: what is queued while this waits does not show.

    Part by part: no buffer that the device allows is too small for the way back, and the host holds little twice.
    """
    started = [[vector.backend.start_read(part) for part in vector.parts] for vector in vectors]
    try:
        return [await _joined(readings) for readings in started]
    finally:
        for readings in started:
            for reading in readings:
                reading.cancel()


async def _joined(readings: Sequence[Reading[list[Array]]]) -> Array:
    arrays = [(await reading)[0] for reading in readings]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
