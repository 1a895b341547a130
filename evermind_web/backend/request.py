"""Choosing a backend: by name, by object, or the default."""

from __future__ import annotations

from evermind_web.backend.base import Backend
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.errors import InvalidArgumentError

_default: Backend | None = None


def set_default_backend(backend: Backend | None) -> None:
    """What models are made on when they are not told; None goes back to NumPy."""
    global _default
    _default = backend


def resolve_backend(backend: str | Backend | None) -> Backend:
    """A backend from what the user gave: None (the default), "numpy", the name of the default, or a Backend.

    Raises InvalidArgumentError for a name that has to be requested first.
    """
    if isinstance(backend, str):
        if backend == "numpy":
            return NumpyBackend()
        if _default is not None and _default.name == backend:
            return _default
        raise InvalidArgumentError(
            f'backend must be "numpy" or a Backend, got {backend!r}; open a device with `await request_backend({backend!r})` first'
        )
    return backend or _default or NumpyBackend()
