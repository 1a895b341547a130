"""Products of float32 matrices, and a few passes, by SIMD kernels (`simd/kernels.wat`) on NumPy's memory, in Pyodide.

NumPy has no BLAS there and multiplies at 1–3 GFLOP/s; the kernels reach ten times that. They are loaded once, and
used only if they agree with NumPy. Where anything is amiss NumPy does the work, as it does in CPython with its BLAS.
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

# As the kernel takes them
ADAMW = (
    *("beta1", "one_minus_beta1", "beta2", "one_minus_beta2", "bias_correction1", "bias_correction2"),
    *("eps", "lr", "weight_decay"),
)

# Why there are no kernels, for whoever wonders: "" while there are, or before anyone asked.
problem = ""


class Arranged:
    """NumPy's own products, both matrices copied so that the depth lies dense: its plain loops run 2–5 times faster."""

    def takes(self, a: Array, b: Array) -> bool:
        """See `linalg.Kernels`, as for all below. The order holds: each element is one plain sum over the depth."""
        return a.ndim == b.ndim == 2 and a.dtype == b.dtype and len(a) > 3 and a.size * b.shape[1] >= SMALLEST

    def matmul(self, a: Array, b: Array, out: Array, accumulate: bool) -> None:
        product = np.matmul(np.ascontiguousarray(a), np.ascontiguousarray(b.T).T)
        np.add(out, product, out=out) if accumulate else np.copyto(out, product)

    def bias_relu(self, h: Array, b: Array) -> bool:
        return False

    def relu_mask(self, d: Array, h: Array) -> bool:
        return False

    def softmax_rows(self, x: Array, best: Array, total: Array) -> bool:
        return False

    def sum_of_squares(self, x: Array, scale: float) -> float | None:
        return None

    def adamw(
        self, p: Array, g: Array, m: Array, v: Array, group: Array, scales: tuple[float, float], hyper: dict[str, float]
    ) -> bool:
        return False


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

    def bias_relu(self, h: Array, b: Array) -> bool:
        """See `linalg.Kernels`, as for all below."""
        fits = _dense(h) and _dense(b) and h.shape[1] % 4 == 0
        if fits:
            self._exports.bias_relu(id(h), id(b), *h.shape)
        return fits

    def relu_mask(self, d: Array, h: Array) -> bool:
        fits = _dense(d) and _dense(h) and d.size % 4 == 0
        if fits:
            self._exports.relu_mask(id(d), id(h), d.size)
        return fits

    def softmax_rows(self, x: Array, best: Array, total: Array) -> bool:
        fits = _dense(x) and x.shape[1] >= 4
        if fits:
            self._exports.softmax_rows(id(x), *x.shape, id(best), id(total))
        return fits

    def sum_of_squares(self, x: Array, scale: float) -> float | None:
        return float(self._exports.sum_of_squares(id(x), x.size, scale)) if _dense(x) and x.size % 4 == 0 else None

    def adamw(
        self, p: Array, g: Array, m: Array, v: Array, group: Array, scales: tuple[float, float], hyper: dict[str, float]
    ) -> bool:
        fits = all(_dense(x) for x in (p, g, m, v, group)) and p.size == 64 * group.size
        if fits:
            numbers = (hyper[name] for name in ADAMW)
            self._exports.adamw(id(p), id(g), id(m), id(v), id(group), group.size, *scales, *numbers)
        return fits

    def check(self) -> None:
        """Compare with NumPy. Raises EvermindError naming what differs first."""
        draw = np.random.default_rng(1)
        self._check_products(draw)
        self._check_passes(draw)

    def _check_passes(self, draw: np.random.Generator) -> None:
        x, h = _matrix(draw, 5, 12, False), _matrix(draw, 5, 12, False)
        done, masked, best, total = x.copy(), x.copy(), np.empty(5, np.float32), np.empty(5, np.float64)
        relu, b = x.copy(), h[0].copy()
        self.softmax_rows(done, best, total)
        self.relu_mask(masked, h)
        self.bias_relu(relu, b)
        e = np.exp(x - x.max(axis=1, keepdims=True))
        pairs: dict[str, tuple[Any, Any]] = {
            "softmax": (done, e / e.sum(axis=1, keepdims=True)),
            "relu_mask": (masked, x * (h > 0)),
            "bias_relu": (relu, np.maximum(x + b, 0)),
            "sum_of_squares": (self.sum_of_squares(x, 0.5), np.sum(np.square(x * 0.5))),
            **self._adamw_pairs(draw),
        }
        for name, (ours, expected) in pairs.items():
            if not np.abs(np.subtract(ours, expected)).max() <= TOLERANCE:
                raise EvermindError(f"the SIMD kernel {name} differs from NumPy")

    def _adamw_pairs(self, draw: np.random.Generator) -> dict[str, tuple[Any, Any]]:
        """One step from m = v = 0, the first block decayed, the second left alone."""
        p, g, m, v = draw.random((4, 128), np.float32)
        m[:], v[:] = 0, 0
        numbers = dict(zip(ADAMW, (0.5, 0.5, 0.75, 0.25, 0.5, 0.25, 1e-3, 0.125, 0.5), strict=True))
        after = p.copy()
        after[:64] -= 0.125 * (g[:64] / (g[:64] + 1e-3) + 0.5 * p[:64])
        self.adamw(p, g, m, v, np.array([1, -1], np.float32), (1.0, 1.0), numbers)
        return {"adamw": (p, after)}

    def _check_products(self, draw: np.random.Generator) -> None:
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


def _dense(x: Array) -> bool:
    """Whether this is a filled float32 array without gaps, rows after rows."""
    return x.dtype == FLOAT32 and x.flags.c_contiguous and x.size > 0


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


def faster() -> Kernels | Arranged | None:
    """What `linalg.use` should be given here: the kernels, or what helps NumPy without BLAS; None in CPython."""
    return kernels() or (Arranged() if environment.IN_BROWSER else None)
