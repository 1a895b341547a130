"""One low-rank adapter on one matrix, on the host: the maths, and the file of the reference (FORMAT 10)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evermind_web.checks import checked, zeros
from evermind_web.errors import InvalidArgumentError
from evermind_web.flat_model import Parameter
from evermind_web.formats.lora_blob import read_lora, write_lora
from evermind_web.params import F32
from evermind_web.rng import SeededRng

DEFAULT_SEED = 0x4C6F5241


def check_rank(rank: Any, rows: int, cols: int, name: str = "") -> int:
    """The rank of an adapter on a matrix (rows,cols), the one rule of making and loading: 1 ≤ rank ≤ min(rows,cols)."""
    where = f"{name}: " if name else ""
    if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)) or rank < 1:
        raise InvalidArgumentError(f"{where}rank must be a whole number from 1 on, got {rank!r}")
    if rank > min(rows, cols):
        how = "give it a lower one in rank_pattern" if name else "choose a lower rank"
        raise InvalidArgumentError(f"{where}rank {rank} exceeds min(in {cols}, out {rows}); {how}")
    return int(rank)


class LoRAAdapter:
    """delta (rows,cols) = scale · B (rows,rank) A (rank,cols); B starts at 0, A normal with std 1/sqrt(cols).

    scale = alpha/rank, or alpha/sqrt(rank) with use_rslora. `name` is that of the matrix, for messages.
    Raises InvalidArgumentError unless 1 ≤ rank ≤ min(rows, cols), alpha is a finite number and memory can hold it.
    """

    @checked
    def __init__(
        self,
        rows: int,
        cols: int,
        rank: int = 8,
        alpha: float | None = None,
        seed: int = DEFAULT_SEED,
        use_rslora: bool = False,
        name: str = "",
    ) -> None:
        self.rank = check_rank(rank, rows, cols, name)
        self.rows, self.cols, self.use_rslora, self.name = int(rows), int(cols), bool(use_rslora), name
        self.alpha = float(rank if alpha is None else alpha)
        if not math.isfinite(self.alpha):
            raise InvalidArgumentError(f"alpha must be a finite number, got {alpha!r}")
        self.B: F32 = zeros("an adapter", self.rows, self.rank)
        self.A: F32 = (
            SeededRng(seed).gaussian(self.rank * self.cols, 1 / math.sqrt(self.cols)).reshape(self.rank, self.cols)
        )
        self._gB, self._gA = (zeros("a gradient", *factor.shape) for factor in (self.B, self.A))

    @property
    def scale(self) -> float:
        """alpha / rank, or alpha / sqrt(rank)."""
        return self.alpha / (math.sqrt(self.rank) if self.use_rslora else self.rank)

    def delta(self) -> F32:
        """What is added to the matrix, float32 (rows,cols)."""
        return np.asarray((self.B * np.float32(self.scale)) @ self.A, np.float32)

    def apply_to(self, base: NDArray[np.float32]) -> F32:
        """base (rows,cols), or flat, + delta; a fresh array in the shape of base."""
        self._check(base, "base")
        return np.asarray(base, np.float32) + self.delta().reshape(np.shape(base))

    def accumulate_gradient(self, g: NDArray[np.float32]) -> None:
        """Gradients += for g, the gradient of the adapted matrix, (rows,cols) or flat.

        Inverts `merged = base + scale * B A`: gA += scale * Bᵀ g; gB += scale * g Aᵀ.
        """
        self._check(g, "gradient")
        full, scale = np.asarray(g, np.float32).reshape(self.rows, self.cols), np.float32(self.scale)
        self._gA += (self.B * scale).T @ full
        self._gB += scale * (full @ self.A.T)

    def _check(self, array: NDArray[Any], what: str) -> None:
        if np.size(array) != self.rows * self.cols:
            raise InvalidArgumentError(f"{what}: expected {(self.rows, self.cols)}, got shape {np.shape(array)}")

    def parameters(self) -> list[Parameter]:
        """B, A: live arrays."""
        return [Parameter("lora_B", self.B), Parameter("lora_A", self.A)]

    def gradients(self) -> list[Parameter]:
        """Gradients of B, A: live arrays."""
        return [Parameter("lora_B", self._gB), Parameter("lora_A", self._gA)]

    def zero_grad(self) -> None:
        """Set the gradients to 0."""
        self._gB[...] = 0
        self._gA[...] = 0

    def num_params(self) -> int:
        """rank * (rows + cols)."""
        return self.A.size + self.B.size

    def serialize(self) -> bytes:
        """A "LORA" file; alpha is rounded to float32 by the format, which knows alpha/rank only.

        An adapter of rsLoRA is written with the alpha that gives the same scale.
        """
        alpha = self.scale * self.rank if self.use_rslora else self.alpha
        return write_lora(self.rows, self.cols, self.rank, alpha, self.B, self.A)

    @classmethod
    def deserialize(cls, data: bytes) -> LoRAAdapter:
        """From a "LORA" file. Raises FormatError for anything that is not a whole one."""
        blob = read_lora(data)
        adapter = cls(blob.rows, blob.cols, blob.rank, blob.alpha)
        adapter.A[...], adapter.B[...] = blob.A.reshape(adapter.A.shape), blob.B.reshape(adapter.B.shape)
        return adapter
