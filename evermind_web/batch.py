"""Ragged batches: token lists become rows, one sequence after another. All checks of token ids live here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evermind_web.checks import whole_number
from evermind_web.errors import InvalidArgumentError
from evermind_web.layout import padded
from evermind_web.ops import IGNORE

I32 = NDArray[np.int32]
Tokens = Sequence[int] | NDArray[Any]
MAX_ROWS = 4096  # rows run at once, unless a single sequence is longer: bounds the memory of a window
KEPT_ROWS = 1 << 21  # rows whose batches are kept for the next epoch: 16 bytes each


@dataclass(frozen=True)
class Example:
    """Token ids (T) with the id to predict after each, `targets` (T); −100 (`ops.IGNORE`) leaves a position out."""

    tokens: Tokens
    targets: Tokens


@dataclass(frozen=True, slots=True)
class Item:
    """A checked sequence: token ids (T) and targets (T), int32."""

    tokens: I32
    targets: I32

    @property
    def scored(self) -> int:
        """Number of positions with a target."""
        return int(np.count_nonzero(self.targets != IGNORE))


@dataclass(frozen=True, slots=True)
class Batch:
    """N rows. `ids` (3, padded N) int32 is what is uploaded: token ids, places within their sequences, targets.

    A target of IGNORE is not scored. weights (N): the rows' shares of the loss; rows: their number before padding.
    """

    ids: I32
    weights: NDArray[np.float32]
    rows: int

    @property
    def tokens(self) -> I32:
        """Token ids (N)."""
        return self.ids[0, : len(self.weights)]

    @property
    def pos(self) -> I32:
        """Places within their sequences (N)."""
        return self.ids[1, : len(self.weights)]

    @property
    def targets(self) -> I32:
        """Targets (N)."""
        return self.ids[2, : len(self.weights)]


def flat_ids(tokens: Tokens) -> NDArray[Any]:
    """Whole numbers (T), of any integer dtype; InvalidArgumentError for anything but a flat list of them."""
    try:
        array = np.asarray(tokens)
    except ValueError:  # lists of several lengths
        array = np.zeros((0, 0), object)
    if array.ndim == 1 and array.size == 0:
        return np.zeros(0, np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        got = f"{array.dtype} of shape {array.shape}" if array.dtype.kind in "iufb" else type(tokens).__name__
        raise InvalidArgumentError(f"tokens must be a flat list of int ids, got {got}; encode the text first")
    return array


def check_tokens(tokens: Tokens, vocab_size: int) -> I32:
    """Ids as int32 (T); InvalidArgumentError for anything but a flat list of whole numbers in the vocabulary."""
    array = flat_ids(tokens)
    bad = np.flatnonzero((array < 0) | (array >= vocab_size))
    if bad.size:
        at = int(bad[0])
        raise InvalidArgumentError(
            f"token id {int(array[at])} outside vocab 0..{vocab_size - 1} (at position {at}); "
            "use the tokenizer that the model was made for"
        )
    return array.astype(np.int32)


def next_token_item(ids: I32) -> Item:
    """A checked sequence that predicts its own next tokens; its last position has no target."""
    targets = np.full(len(ids), IGNORE, np.int32)
    targets[:-1] = ids[1:]
    return Item(ids, targets)


def check_item(sequence: Tokens | Example, vocab_size: int) -> Item:
    """A token list or an Example as an Item. Raises InvalidArgumentError as `check_tokens`, and for other lengths."""
    if not isinstance(sequence, Example):
        return next_token_item(check_tokens(sequence, vocab_size))
    tokens, targets = check_tokens(sequence.tokens, vocab_size), np.asarray(sequence.targets)
    if targets.shape != tokens.shape:
        raise InvalidArgumentError(f"targets must be as long as tokens ({len(tokens)}), got shape {targets.shape}")
    check_tokens(targets[targets != IGNORE], vocab_size)
    return Item(tokens, targets.astype(np.int32))


def check_items(sequences: Sequence[Tokens | Example], vocab_size: int) -> list[Item]:
    """`check_item` of each; InvalidArgumentError also for what is no list of sequences."""
    if isinstance(sequences, (str, bytes, Example)) or not isinstance(sequences, Iterable):
        raise InvalidArgumentError(
            f"sequences must be a list of token lists or Examples, got {type(sequences).__name__}; see pack_windows"
        )
    return [check_item(sequence, vocab_size) for sequence in sequences]


def make_batch(items: Sequence[Item], weights: Sequence[float], multiple: int = 1) -> Batch:
    """One batch; each scored row of item i has the loss weight weights[i].

    Padded to a multiple of `multiple` rows with rows that count nothing.
    """
    lengths = [len(item.tokens) for item in items]
    rows = sum(lengths)
    size = max(-(-rows // multiple) * multiple, 1)
    ids, scale = np.zeros((3, padded(size)), np.int32), np.zeros(size, np.float32)
    ids[2] = IGNORE
    if rows:
        np.concatenate([item.tokens for item in items], out=ids[0, :rows])
        np.concatenate([item.targets for item in items], out=ids[2, :rows])
        ends = np.cumsum(lengths)
        ids[1, :rows] = np.arange(rows) - np.repeat(ends - lengths, lengths)
        scale[:rows] = np.repeat(np.asarray(weights, np.float32), lengths)
    return Batch(ids, scale, rows)


def item_batches(items: Sequence[Item], weights: Sequence[float], multiple: int = 1) -> list[Batch]:
    """Batches of at most MAX_ROWS rows (one longer item alone), in order."""
    groups: list[list[int]] = []
    rows = 0
    for i, item in enumerate(items):
        if not groups or rows + len(item.tokens) > MAX_ROWS:
            groups.append([])
            rows = 0
        groups[-1].append(i)
        rows += len(item.tokens)
    return [make_batch([items[i] for i in g], [weights[i] for i in g], multiple) for g in groups]


class Window(Sequence[Item]):
    """The items of one optimizer step. It comes again in every epoch, so what is made of it is kept, within bounds."""

    def __init__(self, items: Sequence[Item], keep: bool = True) -> None:
        self.items = tuple(items)
        self.scored = sum(item.scored for item in items)
        self._keep = keep
        self._batches: list[Batch] | None = None

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    def batches(self, weights: Callable[[Sequence[Item]], Sequence[float]], multiple: int) -> list[Batch]:
        """`item_batches` of the items with the loss weights that `weights` gives; always call it with the same."""
        batches = self._batches
        if batches is None:
            batches = item_batches(self.items, weights(self.items), multiple)
            if self._keep:
                self._batches = batches
        return batches


def cut_windows(items: Sequence[Item], size: int) -> list[Window]:
    """Windows of `size` items in order, the last one perhaps shorter."""
    windows, rows = list[Window](), 0
    for i in range(0, len(items), size):
        chosen = items[i : i + size]
        rows += sum(len(item.tokens) for item in chosen)
        windows.append(Window(chosen, keep=rows <= KEPT_ROWS))
    return windows


def sequence_weights(items: Sequence[Item]) -> list[float]:
    """Loss weights that make the sum over all rows the mean, over the scored items, of each item's mean."""
    scored = [item.scored for item in items]
    total = sum(count > 0 for count in scored)
    return [1 / (count * total) if count else 0.0 for count in scored]


def token_weights(items: Sequence[Item]) -> list[float]:
    """Loss weights that make the sum over all rows the mean over all scored positions."""
    total = sum(item.scored for item in items)
    return [1 / total if total else 0.0] * len(items)


def pack_windows(ids: Tokens, window: int, stride: int | None = None) -> list[Example]:
    """A long text as Examples of `window` tokens, each transition scored once (with the default stride).

    T+1 tokens give exactly one window of T; a shorter text gives one shorter window. A smaller `stride` lets windows
    overlap; what overlaps is scored again. Raises InvalidArgumentError for fewer than 2 tokens.
    """
    array, step = flat_ids(ids), whole_number("window", window)
    if stride is not None:
        step = whole_number("stride", stride)
    if len(array) < 2:
        raise InvalidArgumentError(f"need at least 2 tokens, got {len(array)}; give a longer text")
    starts = range(0, len(array) - 1, step)
    return [Example(array[i : i + window][: len(array) - 1 - i], array[i + 1 : i + window + 1]) for i in starts]
