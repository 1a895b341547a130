"""A model as one flat vector of weights and one of gradients on a backend: what all models here have in common."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evermind_web.backend.base import Backend, Buf
from evermind_web.environment import run_blocking
from evermind_web.errors import InvalidArgumentError
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
    """Weights (P) and gradients (P), padded by `table`, on `backend`. Subclasses add the forward and the files."""

    def __init__(self, backend: Backend, table: ParamTable, initial: F32) -> None:
        self.backend, self.table = backend, table
        self._bufs: list[Buf] = []
        self.flat = self._new((table.padded_size,))
        backend.write(self.flat, initial)
        self._flat_grads: Buf | None = None

    def _new(self, shape: tuple[int, ...], dtype: str = "float32") -> Buf:
        self._bufs.append(self.backend.alloc(shape, dtype))
        return self._bufs[-1]

    @property
    def flat_grads(self) -> Buf:
        """The gradient vector (P), made on first use: a model that only writes needs none."""
        if self._flat_grads is None:
            self._flat_grads = self._new((self.table.padded_size,))
        return self._flat_grads

    @property
    def num_parameters(self) -> int:
        """Number of weights."""
        return self.table.size

    async def _tensors(self, flat: Buf) -> list[Parameter]:
        live = getattr(self.backend, "array", None)  # NumPy: the memory itself
        vector = live(flat) if live is not None else (await self.backend.read(flat))[0]
        return [Parameter(spec.name, part) for spec, part in self.table.slices(vector)]

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
        self.backend.zero(self.flat_grads)

    def set_parameter(self, name: str, array: NDArray[Any]) -> None:
        """Overwrite one tensor by its name. Raises InvalidArgumentError for an unknown name or another shape."""
        spec = self.table.by_name.get(name)
        if spec is None:
            raise InvalidArgumentError(f"no parameter is named {name!r}; parameters() lists the names")
        values = np.asarray(array, np.float32)
        if values.shape != spec.shape:
            raise InvalidArgumentError(f"{name}: expected shape {spec.shape}, got {values.shape}")
        view = self.backend.view(self.flat, spec.padded_offset, spec.shape)
        self.backend.write(view, values)
        self.backend.free(view)

    async def packed_weights_async(self) -> F32:
        """All weights as one packed float32 vector in canonical order: the body of a checkpoint."""
        (vector,) = await self.backend.read(self.flat)
        return self.table.pack(vector)

    def load_packed(self, packed: F32) -> None:
        """Overwrite all weights with a packed float32 vector in canonical order."""
        self.backend.write(self.flat, self.table.pad(packed))

    async def fingerprint_async(self) -> str:
        """SHA-256 (hex) of the packed little-endian float32 weights: what adapters name their base by."""
        packed = await self.packed_weights_async()
        return hashlib.sha256(np.asarray(packed, "<f4").tobytes()).hexdigest()

    def fingerprint(self) -> str:
        """Blocking twin of `fingerprint_async`."""
        return run_blocking(self.fingerprint_async())

    def dispose(self) -> None:
        """Give all memory back; the model must not be used afterwards. A second call does nothing."""
        for buf in self._bufs:
            self.backend.free(buf)
        self._bufs.clear()
        self._flat_grads = None
