"""The matrix product of all operations: NumPy's, or faster ones where the backend has some (see `backend/simd.py`)."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from evermind_web.backend.base import Array


class Products(Protocol):
    """Faster products of some matrices."""

    def takes(self, a: Array, b: Array) -> bool:
        """Whether the product of these two is one of them."""
        ...

    def matmul(self, a: Array, b: Array, out: Array, accumulate: bool) -> None:
        """out (M,N) = or += a (M,K) b (K,N); rows of `out` are dense, and it overlaps neither."""
        ...


_products: Products | None = None


def use(products: Products | None) -> None:
    """Take these from now on for what they take; None: NumPy's for everything."""
    global _products
    _products = products


def matmul(a: Array, b: Array, out: Array | None = None, accumulate: bool = False) -> Array:
    """out (M,N) = a (M,K) b (K,N), or out += with `accumulate`; a new array without `out`, which overlaps neither."""
    if _products is None or not _products.takes(a, b):
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
    _products.matmul(a, b, out, accumulate)
    return out
