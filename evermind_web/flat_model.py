"""A model as a flat vector of weights and one of gradients on a backend: what all models here have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evermind_web.backend.base import Backend, Buf
from evermind_web.checks import check_finite, checked, disposed
from evermind_web.environment import run_blocking
from evermind_web.errors import InvalidArgumentError
from evermind_web.flat_vector import FlatVector
from evermind_web.formats.values import fingerprint_of
from evermind_web.params import F32, ParamTable


@dataclass(frozen=True, slots=True)
class Parameter:
    """A named tensor. `data` is float32 in the tensor's shape: a live view on NumPy, a fresh copy on a GPU."""

    name: str
    data: F32

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of `data`."""
        return self.data.shape


class FlatModel:
    """Weights (P) and gradients (P), padded by `table`, on `backend`. Subclasses add the forward and the files.

    sizes: of the parts that the vectors are cut into (`flat_vector.part_sizes`); none: one part.
    """

    def __init__(self, backend: Backend, table: ParamTable, initial: F32, sizes: Sequence[int] = ()) -> None:
        self.backend, self.table = backend, table
        self.flat = FlatVector.alloc(backend, sizes or (table.padded_size,))
        self._bufs: list[Buf] = list(self.flat.parts)
        self.flat.write(initial)
        self.version = 0  # counts what wrote to the weights, so that copies of them know when they are old
        self._flat_grads: FlatVector | None = None
        self._fits = 0  # that read the weights now; below 0: something writes them

    def _new(self, shape: tuple[int, ...], dtype: str = "float32") -> Buf:
        self._bufs.append(self.backend.alloc(shape, dtype))
        return self._bufs[-1]

    @property
    def flat_grads(self) -> FlatVector:
        """The gradient vector (P), made on first use: a model that only writes needs none."""
        if self._flat_grads is None:
            self._flat_grads = self.flat.like()
            self._bufs += self._flat_grads.parts
        return self._flat_grads

    @property
    def num_parameters(self) -> int:
        """Number of weights."""
        return self.table.size

    async def _tensors(self, flat: FlatVector) -> list[Parameter]:
        live = getattr(self.backend, "array", None)
        if live is None:
            return [Parameter(spec.name, part) for spec, part in self.table.slices(await flat.read())]
        found = []
        for spec in self.table.specs:  # NumPy: the memory itself
            part, at = flat.place(spec.padded_offset)
            found.append(Parameter(spec.name, live(part)[at : at + spec.size].reshape(spec.shape)))
        return found

    async def parameters_async(self) -> list[Parameter]:
        """All tensors in canonical order, `.name` and `.data`."""
        return await self._tensors(self.flat)

    def parameters(self) -> list[Parameter]:
        """Blocking twin of `parameters_async`."""
        return run_blocking(self._tensors(self.flat))

    async def gradients_async(self) -> list[Parameter]:
        """The gradients, in the order of `parameters()`."""
        return await self._tensors(self.flat_grads)

    def gradients(self) -> list[Parameter]:
        """Blocking twin of `gradients_async`."""
        return run_blocking(self._tensors(self.flat_grads))

    def zero_grad(self) -> None:
        """Set all gradients to 0."""
        self.flat_grads.zero()

    @checked
    def set_parameter(self, name: str, array: NDArray[Any]) -> None:
        """Overwrite one tensor by its name.

        Raises InvalidArgumentError for an unknown name, another shape, NaN, or while a fit goes on.
        """
        spec = self.table.by_name.get(name)
        if spec is None:
            raise InvalidArgumentError(f"no parameter is named {name!r}; parameters() lists the names")
        values = np.asarray(array, np.float32)
        if values.shape != spec.shape:
            raise InvalidArgumentError(f"{name}: expected shape {spec.shape}, got {values.shape}")
        check_finite(name, values)
        with self.fitting():
            view = self.flat.view(spec.padded_offset, spec.shape)
            self.backend.write(view, values)
            self.backend.free(view)
            self.version += 1

    async def packed_weights_async(self) -> F32:
        """All weights as one packed float32 vector in canonical order: the body of a checkpoint."""
        return self.table.pack(await self.flat.read())

    @checked
    def load_packed(self, packed: F32) -> None:
        """Overwrite all weights with a packed vector (P) in canonical order.

        Raises InvalidArgumentError for anything else, or while a fit goes on.
        """
        vector = np.asarray(packed, np.float32)
        if vector.shape != (self.table.size,):
            raise InvalidArgumentError(f"packed weights: expected shape ({self.table.size},), got {vector.shape}")
        with self.fitting():
            self.flat.write(self.table.pad(vector))
            self.version += 1

    async def fingerprint_async(self) -> str:
        """SHA-256 (hex) of the packed little-endian float32 weights: what adapters name their base by."""
        return fingerprint_of(await self.packed_weights_async())

    def fingerprint(self) -> str:
        """Blocking twin of `fingerprint_async`."""
        return run_blocking(self.fingerprint_async())

    @contextmanager
    def fitting(self, frozen: bool = False) -> Iterator[None]:
        """Around what writes these weights; frozen: a fit that only reads them, of which there may be several at once.

        Raises InvalidArgumentError where another fit writes what this one reads, or the other way round.
        """
        if self._fits < 0 or (self._fits and not frozen):
            raise InvalidArgumentError(f"this {type(self).__name__} is in a fit already: wait for its end, or stop it")
        change = 1 if frozen else -1
        self._fits += change
        try:
            yield
        finally:
            self._fits -= change

    def dispose(self) -> None:
        """Give all memory back; the model must not be used afterwards. A second call does nothing."""
        for buf in self._bufs:
            self.backend.free(buf)
        self._bufs.clear()
        self._flat_grads = None
        self.backend = self.flat = disposed(type(self).__name__)
