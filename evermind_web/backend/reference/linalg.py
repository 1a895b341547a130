"""What most of the time goes to, in NumPy, or in faster kernels where the backend has some (see `backend/simd.py`)."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from evermind_web.backend.base import Array


class Kernels(Protocol):
    """Faster versions of some calls. All but `takes` and `matmul` return whether they did the work."""

    def takes(self, a: Array, b: Array) -> bool:
        """Whether `matmul` can multiply these two; all columns of its products are then summed in the same order."""
        ...

    def matmul(self, a: Array, b: Array, out: Array, accumulate: bool) -> None:
        """out (M,N) = or += a (M,K) b (K,N); rows of `out` are dense, and it overlaps neither."""
        ...

    def bias_relu(self, h: Array, b: Array) -> bool:
        """See `bias_relu` below."""
        ...

    def relu_mask(self, d: Array, h: Array) -> bool:
        """See `relu_mask` below."""
        ...

    def softmax_rows(self, x: Array, best: Array, total: Array) -> bool:
        """See `softmax_rows` below; best (N) and total (N) are written."""
        ...

    def sum_of_squares(self, x: Array, scale: float) -> float | None:
        """Σ (x·scale)² in float64, not finite if any x·scale is not; None: not done."""
        ...

    def adamw(
        self, p: Array, g: Array, m: Array, v: Array, group: Array, scales: tuple[float, float], hyper: dict[str, float]
    ) -> bool:
        """`optim.adamw_update` on the blocks of 64 whose group is not negative; g is multiplied by both scales."""
        ...


kernels: Kernels | None = None


def use(faster: Kernels | None) -> None:
    """Take these from now on for what they take; None: NumPy for everything."""
    global kernels
    kernels = faster


def matmul(a: Array, b: Array, out: Array | None = None, accumulate: bool = False) -> Array:
    """out (M,N) = a (M,K) b (K,N), or out += with `accumulate`; a new array without `out`, which overlaps neither."""
    if kernels is None or not kernels.takes(a, b):
        if out is None or not accumulate:
            return np.asarray(np.matmul(a, b, out=out))
        out += a @ b
        return out
    if out is None:
        out = np.empty((a.shape[0], b.shape[1]), a.dtype)
    elif out.dtype != a.dtype or out.strides[1] != out.itemsize:
        product = matmul(a, b)
        if accumulate:
            out += product
        else:
            out[...] = product
        return out
    kernels.matmul(a, b, out, accumulate)
    return out


def bias_relu(h: Array, b: Array) -> None:
    """h (N,H) = relu(h + b (H))."""
    if kernels is None or not kernels.bias_relu(h, b):
        h += b
        np.maximum(h, 0, out=h)


def relu_mask(d: Array, h: Array) -> None:
    """d (N,H) = d where h (N,H) > 0, else 0."""
    if kernels is None or not kernels.relu_mask(d, h):
        d *= h > 0


def softmax_rows(x: Array) -> Array:
    """x (N,V) = softmax of its rows; returns log Σ e^x of each row, float64 (N)."""
    best, total = np.empty(len(x), x.dtype), np.empty(len(x), np.float64)
    if kernels is None or not kernels.softmax_rows(x, best, total):
        x.max(axis=1, out=best)
        np.exp(x - best[:, None], out=x)
        x.sum(axis=1, dtype=np.float64, out=total)
        x /= total.astype(x.dtype)[:, None]
    return np.asarray(np.log(total) + best)
