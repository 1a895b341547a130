"""Products of float32 matrices by SIMD kernels (`simd/kernels.wat`) on NumPy's own memory, in Pyodide.

NumPy has no BLAS there and multiplies at 1–3 GFLOP/s; the kernels reach ten times that. They are loaded once, and
used only if they agree with NumPy; in CPython, and where anything is amiss, there are none and NumPy does the work.
"""

from __future__ import annotations

import base64
import functools
from typing import Any

import numpy as np

from evermind_web import environment, resources
from evermind_web.backend.base import Array
from evermind_web.errors import EvermindError

WORKSPACE = 128 + 64 * 256 * 4 + 256 * 512 * 4  # bytes: a tile, and packed slices of both matrices
SMALLEST = 4096  # multiplications; fewer take NumPy less time than the call takes
FLOAT32 = np.dtype(np.float32)
# (M,K,N) and how A, B and C lie, chosen to meet every branch: edges of tiles and slices, each kind of packing
CHECKS = ((5, 300, 19), (4, 8, 8), (67, 21, 521))
TOLERANCE = 1e-5

# Why there are no kernels, for whoever wonders: "" while there are, or before anyone asked.
problem = ""


class Kernels:
    """The loaded module. `variant` is "relaxed" (fused multiply-add where the processor has it) or "strict"."""

    def __init__(self, exports: Any, variant: str) -> None:
        self.variant = variant
        self._exports = exports
        self._workspace = np.zeros(WORKSPACE, np.uint8)
        address = int(self._workspace.__array_interface__["data"][0])
        if exports.data(id(self._workspace)) != address:
            raise EvermindError("NumPy keeps an array's address elsewhere than expected")
        exports.use_workspace(address)
        self._gemm = exports.gemm  # bound once: looking it up takes longer than the call

    def takes(self, a: Array, b: Array) -> bool:
        """Whether the product of these two is one for the kernels: float32 matrices, large enough."""
        if a.dtype != FLOAT32 or b.dtype != FLOAT32 or a.ndim != 2 or b.ndim != 2:
            return False
        rows, depth = a.shape
        return rows > 3 and rows * depth * b.shape[1] >= SMALLEST and b.shape[0] == depth

    def matmul(self, a: Array, b: Array, out: Array, accumulate: bool) -> None:
        """out (M,N) = or += a (M,K) b (K,N): float32, any strides, but rows of `out` dense; M, N, K ≥ 1."""
        (rows, depth), cols, step = a.shape, b.shape[1], out.strides[0]
        self._gemm(rows, cols, depth, id(a), *a.strides, id(b), *b.strides, id(out), step, accumulate)

    def check(self) -> None:
        """Compare with NumPy. Raises EvermindError naming the first shape that differs."""
        draw = np.random.default_rng(1)
        for M, K, N in CHECKS:
            for turned_a, turned_b in ((False, False), (False, True), (True, False)):
                a, b = _matrix(draw, M, K, turned_a), _matrix(draw, K, N, turned_b)
                out = _matrix(draw, M, N + 3, False)[:, :N]
                start = out.copy()
                for accumulate in (False, True):
                    expected = np.matmul(a, b, dtype=np.float64) + (start if accumulate else 0)
                    out[...] = start
                    self.matmul(a, b, out, accumulate)
                    if not np.abs(out - expected).max() <= TOLERANCE * K**0.5:
                        raise EvermindError(f"the SIMD product of ({M},{K}) and ({K},{N}) differs from NumPy's")


def _matrix(draw: np.random.Generator, rows: int, cols: int, turned: bool) -> Array:
    """Uniform numbers in [-1, 1), float32; `turned`: the columns lie dense in memory."""
    shape = (cols, rows) if turned else (rows, cols)
    values = draw.random(shape, np.float32) * np.float32(2) - np.float32(1)
    return values.T if turned else values


@functools.cache
def kernels() -> Kernels | None:
    """The kernels, loaded and checked at the first call; None in CPython and where they cannot be used."""
    global problem
    if not environment.IN_BROWSER:
        return None
    for variant in ("relaxed", "strict"):
        try:
            module = base64.b64decode(resources.read_text("simd", variant))
            loaded = Kernels(environment.load_wasm_library(module), variant)
            loaded.check()
        except Exception as error:  # whatever it is, NumPy does the same work
            problem = f"{variant}: {error}"
        else:
            problem = ""
            return loaded
    return None
