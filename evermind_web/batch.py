"""Ragged batches: token lists become rows, one sequence after another. All checks of token ids live here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evermind_web.errors import InvalidArgumentError
from evermind_web.ops import IGNORE

I32 = NDArray[np.int32]
MAX_ROWS = 4096  # rows run at once, unless a single sequence is longer: bounds the memory of a window


@dataclass(frozen=True, slots=True)
class Batch:
    """N rows: token ids, places within their sequences, targets (IGNORE: not scored), weights of their losses."""

    tokens: I32
    pos: I32
    targets: I32
    weights: NDArray[np.float32]
    rows: int  # before padding


def check_tokens(tokens: Sequence[int] | NDArray[Any], vocab_size: int) -> I32:
    """Ids as int32 (T); InvalidArgumentError for anything but a flat list of whole numbers in the vocabulary."""
    array = np.asarray(tokens)
    if array.size == 0:
        return np.zeros(0, np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"tokens must be a flat list of int ids, got {array.dtype} of shape {array.shape}; encode the text first"
        )
    bad = np.flatnonzero((array < 0) | (array >= vocab_size))
    if bad.size:
        at = int(bad[0])
        raise InvalidArgumentError(
            f"token id {int(array[at])} outside vocab 0..{vocab_size - 1} (at position {at}); "
            "use the tokenizer that the model was made for"
        )
    return array.astype(np.int32)


def make_batch(sequences: Sequence[I32], weights: Sequence[float], multiple: int = 1) -> Batch:
    """Next-token prediction on checked sequences; each scored row of sequence i has the loss weight weights[i].

    Padded to a multiple of `multiple` rows with rows that count nothing.
    """
    rows = sum(len(s) for s in sequences)
    size = max(-(-rows // multiple) * multiple, 1)
    tokens, pos = np.zeros(size, np.int32), np.zeros(size, np.int32)
    targets, scale = np.full(size, IGNORE, np.int32), np.zeros(size, np.float32)
    at = 0
    for sequence, weight in zip(sequences, weights, strict=True):
        end = at + len(sequence)
        tokens[at:end] = sequence
        pos[at:end] = np.arange(len(sequence), dtype=np.int32)
        if len(sequence) > 1:
            targets[at : end - 1] = sequence[1:]
            scale[at : end - 1] = weight
        at = end
    return Batch(tokens, pos, targets, scale, rows)


def sequence_batches(sequences: Sequence[I32], total: int, multiple: int = 1) -> list[Batch]:
    """Batches of at most MAX_ROWS rows whose losses add up to Σ(mean loss of a sequence) / total."""
    groups: list[list[I32]] = []
    rows = 0
    for sequence in sequences:
        if not groups or rows + len(sequence) > MAX_ROWS:
            groups.append([])
            rows = 0
        groups[-1].append(sequence)
        rows += len(sequence)
    return [make_batch(g, [1 / max(1, (len(s) - 1) * total) for s in g], multiple) for g in groups]
