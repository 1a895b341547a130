"""Every error that this package raises on purpose.

Each message says what was wrong, what was expected, what was got, and what to do next. Bad values are
also `ValueError`s, so that code written for NumPy or PyTorch catches them as it is used to.
"""

from __future__ import annotations


class EvermindError(Exception):
    """Root of all errors of this package."""


class InvalidArgumentError(EvermindError, ValueError):
    """An argument has a wrong value, shape, dtype or length."""


class FormatError(EvermindError, ValueError):
    """Bytes that are not what they should be: truncated, damaged, of another kind or version."""


class ConfigMismatchError(EvermindError, ValueError):
    """A file is sound, but belongs to a model, base or tokenizer of another shape."""


class NonFiniteError(EvermindError, ArithmeticError):
    """A loss, gradient, weight or logit is NaN or infinite."""


class BackendError(EvermindError, RuntimeError):
    """A backend cannot do what was asked: a limit, a failed kernel, out of memory."""


class WebGPUUnavailableError(BackendError):
    """There is no usable WebGPU adapter."""


class DeviceLostError(BackendError):
    """The GPU device was lost; whatever was only in its memory is gone."""


class BlockingCallError(EvermindError, RuntimeError):
    """A blocking call was made where the runtime can only wait with `await`."""


class StorageError(EvermindError, RuntimeError):
    """The store could not read or write: full, blocked, missing or damaged."""


class StorageFullError(StorageError):
    """The store has no room for what was to be saved."""


class RecordNotFoundError(StorageError, KeyError):
    """The store has no record of that name."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""
