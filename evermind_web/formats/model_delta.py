"""Sparse deltas of a model against a checkpoint: what `EvermindLM.export_delta` and `.load_delta` do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evermind_web.errors import ConfigMismatchError
from evermind_web.formats.arch import Arch, param_count_of
from evermind_web.formats.delta import apply_row_delta, compute_row_delta, deserialize_row_delta, serialize_row_delta
from evermind_web.formats.evl0 import read_evl0, write_evl0
from evermind_web.formats.values import fingerprint_of

F32 = NDArray[np.float32]


def row_size_of(arch: Arch) -> int:
    """d_model where it divides the number of parameters, else 1."""
    return arch.d_model if param_count_of(arch) % arch.d_model == 0 else 1


def delta_against(arch: Arch, base: bytes, packed: F32, eps: float = 0.0) -> bytes:
    """EVD0 bytes: the rows of `packed` that differ from the checkpoint `base` by more than eps.

    ConfigMismatchError if base is of another shape, FormatError if it is damaged.
    """
    _, before = read_evl0(base, arch)
    return serialize_row_delta(compute_row_delta(before, packed, row_size_of(arch), eps))


def checkpoint_with_delta(arch: Arch, base: bytes, delta: bytes, fingerprint: str | None = None) -> bytes:
    """The EVL0 checkpoint that delta makes of base; both are verified before anything is used.

    fingerprint: of the base that the delta was made against; ConfigMismatchError for another one.
    """
    _, before = read_evl0(base, arch)
    if fingerprint is not None and fingerprint != fingerprint_of(before):
        raise ConfigMismatchError(
            f"the delta was made against base {fingerprint[:12]}…, this base is {fingerprint_of(before)[:12]}…; "
            "load that base"
        )
    return write_evl0(arch, apply_row_delta(before, deserialize_row_delta(delta)))
