"""From what a user pasted or dropped to windows of token ids, with refusals that say what to do.

No model and no store here: bytes and strings in, strings and lists of ids out.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evermind_web.batch import Example
from evermind_web.errors import InvalidArgumentError
from evermind_web.ops import IGNORE

# Below this a text has too few words to learn from, or to hold anything out of.
MIN_CHARACTERS = 200
# More than the longest training reads; keeps a dropped 1 GB file from filling the memory of the page.
MAX_BYTES = 64 * 1024 * 1024
WINDOW = 64
SCORED_WINDOW = 512  # tokens scored at once
BATCH = 8
HELD_OUT_FRACTION = 0.1
MAX_HELD_OUT = 32 * WINDOW

_BYTE_ORDER_MARKS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


def read_text(data: str | bytes, name: str = "the text") -> str:
    """`data` as a string with "\\n" line ends. Raises InvalidArgumentError for anything that is not text."""
    if isinstance(data, bytes):
        data = _decode(data, name)
    data = checked_text(data)
    # NUL and other control characters do not occur in prose; a pasted binary shows them at once.
    odd = sum(1 for c in data[:4096] if ord(c) < 32 and c not in "\t\n\r\f\x1b")
    if odd * 50 > min(len(data), 4096):
        raise InvalidArgumentError(f"{_start(name)} looks like a binary file, not text. Choose a .txt or .md file.")
    return data.replace("\r\n", "\n").replace("\r", "\n")


def checked_text(text: Any) -> str:
    """`text`, if it is one. Raises InvalidArgumentError for anything else."""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"The text must be a string, got {type(text).__name__}.")
    return text


def _decode(data: bytes, name: str) -> str:
    if len(data) > MAX_BYTES:
        size = f"{len(data) / 1e6:.0f} MB"
        raise InvalidArgumentError(f"{_start(name)} is {size}; at most 64 MB can be read. Choose a shorter part of it.")
    encoding = next((e for mark, e in _BYTE_ORDER_MARKS if data.startswith(mark)), "utf-8")
    if encoding == "utf-8" and b"\x00" in data[:65536]:
        raise InvalidArgumentError(f"{_start(name)} looks like a binary file, not text. Choose a .txt or .md file.")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"{_start(name)} is not UTF-8 text (byte {error.start} does not fit). "
            "Save it as UTF-8 in an editor, or choose a .txt or .md file."
        ) from None


def _start(name: str) -> str:
    """`name` as the start of a sentence: a file name stays as it is, "the text" gets its capital."""
    return name[0].upper() + name[1:] if name.startswith("the ") else name


def check_learnable(text: str) -> None:
    """Raise InvalidArgumentError unless `text` is long enough to learn something from."""
    stripped = text.strip()
    if not stripped:
        raise InvalidArgumentError("There is no text yet. Paste some, drop a .txt or .md file, or take the sample.")
    if len(stripped) < MIN_CHARACTERS:
        words = len(stripped.split())
        have = f"{words} {'word' if words == 1 else 'words'} ({len(stripped)} characters)"
        raise InvalidArgumentError(
            f"This text is too short to learn from: it has {have}. "
            f"Use at least {MIN_CHARACTERS} characters; a few pages work best."
        )


def excerpt(text: str, characters: int, slices: int = 16) -> str:
    """At most about `characters` of `text`: whole, or evenly spread slices that begin and end at line ends."""
    if len(text) <= characters:
        return text
    size = characters // slices
    stride = (len(text) - size) // (slices - 1)
    parts = []
    for start in range(0, stride * slices, stride):
        part = text[start : start + size]
        first, last = part.find("\n") if start else -1, part.rfind("\n")
        # A text without line ends is cut where it is.
        parts.append(part[first + 1 : last] if first < last else part)
    return "\n".join(parts)


@dataclass(frozen=True)
class Split:
    """Token ids for learning and ids held out to measure with; `unigram` in nats per token."""

    train: list[int]
    held_out: list[int]
    unigram: float


def split(ids: Sequence[int], part: float = HELD_OUT_FRACTION, most: int = MAX_HELD_OUT) -> Split:
    """Hold out the end of `ids`: this part, at most so many. Raises InvalidArgumentError for fewer than 2 ids."""
    if len(ids) < 2:
        raise InvalidArgumentError(f"need at least 2 tokens, got {len(ids)}. Use a longer text.")
    count = min(int(len(ids) * part), most)
    cut = len(ids) - count if count >= 8 else len(ids)
    train = list(ids[:cut])
    return Split(train, list(ids[cut:]) or train[-MAX_HELD_OUT:], unigram_entropy(ids))


def unigram_entropy(ids: Sequence[int]) -> float:
    """Nats per token that guessing by frequency alone would cost."""
    total = len(ids)
    return -sum(n / total * math.log(n / total) for n in Counter(ids).values())


def windows_in_order(ids: Sequence[int]) -> list[list[int]]:
    """`ids` cut into neighbouring windows of 64 for measuring; a last one of a single id is left out."""
    return [w for w in (list(ids[i : i + WINDOW]) for i in range(0, len(ids), WINDOW)) if len(w) > 1]


def scored_windows(ids: Sequence[int], reach: int) -> Iterator[Example]:
    """Every token but the first is scored once, with at least `reach` tokens (all that the model can see) before it."""
    array = np.asarray(ids, np.int32)
    for start in range(0, len(array) - 1, SCORED_WINDOW):
        first, last = max(0, start - reach), min(start + SCORED_WINDOW, len(array) - 1)
        targets = array[first + 1 : last + 1].copy()
        targets[: start - first] = IGNORE
        yield Example(array[first:last], targets)


def training_windows(
    ids: Sequence[int], steps: int, seed: int, line_starts: Sequence[int], bos: int
) -> list[list[int]]:
    """`steps` × 8 windows of equal length (64, or all of a shorter text), in the order to train on.

    Each pass over the text begins at another offset and is shuffled. The first window of every step
    starts at a line and has `bos` in front, so that the model can also begin with an empty prompt.
    """
    rng = random.Random(seed)
    length = min(WINDOW, len(ids))
    pool: list[int] = []
    result: list[list[int]] = []
    for _ in range(steps):
        start = rng.choice(line_starts) if line_starts else 0
        start = max(0, min(start, len(ids) - length + 1))
        result.append([bos, *ids[start : start + length - 1]])
        while len(result) % BATCH:
            if not pool:
                pool = list(range(rng.randrange(min(length, len(ids) - length + 1)), len(ids) - length + 1, length))
                rng.shuffle(pool)
            at = pool.pop()
            result.append(list(ids[at : at + length]))
    return result
