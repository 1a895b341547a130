"""What a tokenizer is, as data: vocabulary, merges, special tokens, and how text is prepared.

`huggingface.py` reads and writes it, `engine.py` runs it, `BPETokenizer` is the face of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evermind_web.errors import FormatError
from evermind_web.tokenizer.added_tokens import AddedToken
from evermind_web.tokenizer.byte_alphabet import BYTE_ORDER, BYTE_TO_SYMBOL
from evermind_web.tokenizer.pretokenize import EVERMIND_PRE_TOKENIZER


@dataclass(frozen=True)
class SpecialNames:
    """The strings of the tokens with a role; the ids are looked up in the vocabulary and may be missing."""

    bos: str = "<|im_start|>"
    eos: str = "<|im_end|>"
    pad: str = "<|endoftext|>"
    unk: str = "<unk>"

    def replaced(self, bos: str | None, eos: str | None, pad: str | None, unk: str | None) -> SpecialNames:
        """A copy with the names that are given and not empty."""
        given = {"bos": bos, "eos": eos, "pad": pad, "unk": unk}
        return replace(self, **{role: name for role, name in given.items() if name})

    def all(self) -> tuple[str, str, str, str]:
        return (self.unk, self.bos, self.eos, self.pad)


@dataclass(frozen=True)
class TokenizerDefinition:
    """A complete byte-level BPE tokenizer.

    vocab: token -> id, added tokens included. merges: pairs in rank order. ignore_merges: a word that is in the
    vocabulary is that one id, before any merge is looked at. normalizer, pre_tokenizer, post_processor, decoder:
    as in a tokenizer.json. notes: what was assumed about a file that did not say it.
    """

    vocab: dict[str, int]
    merges: list[tuple[str, str]]
    added: tuple[AddedToken, ...]
    names: SpecialNames = field(default_factory=SpecialNames)
    ignore_merges: bool = True
    byte_fallback: bool = False
    normalizer: Mapping[str, Any] | None = None
    pre_tokenizer: Mapping[str, Any] = field(default_factory=lambda: EVERMIND_PRE_TOKENIZER)
    post_processor: Mapping[str, Any] | None = None
    decoder: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()


def fresh_vocab() -> dict[str, int]:
    """The vocabulary before any merge: four special tokens (ids 0-3) and the 256 byte symbols (4-259)."""
    tokens = [*SpecialNames().all(), *(BYTE_TO_SYMBOL[byte] for byte in BYTE_ORDER)]
    return {token: i for i, token in enumerate(tokens)}


def special_tokens(
    vocab: Mapping[str, int], names: SpecialNames, merges: Sequence[tuple[str, str]]
) -> tuple[AddedToken, ...]:
    """Added tokens for the named ones in `vocab`, in the order of their ids.

    A name that ordinary text can produce (a byte symbol, a merged string) is left alone: an end token that is
    simply the line break must still encode line breaks.
    """
    ordinary = set(BYTE_TO_SYMBOL) | {left + right for left, right in merges}
    found = {vocab[name]: name for name in names.all() if name in vocab and name not in ordinary}
    return tuple(AddedToken(i, found[i]) for i in sorted(found))


def checked_vocab(vocab: Any) -> dict[str, int]:
    """A copy of `vocab` (token -> id); FormatError unless the ids are distinct integers >= 0."""
    if not isinstance(vocab, Mapping):
        raise FormatError(f"vocab: expected an object token -> id, got {type(vocab).__name__}")
    owners: dict[int, str] = {}
    for token, i in vocab.items():
        if not isinstance(token, str) or isinstance(i, bool) or not isinstance(i, int) or i < 0:
            raise FormatError(f"vocab: token {token!r} has the id {i!r}; expected a string and an integer >= 0")
        if i in owners:
            raise FormatError(f"vocab: tokens {owners[i]!r} and {token!r} share the id {i}; every id may be used once")
        owners[i] = token
    return dict(vocab)


def checked_merges(merges: Any) -> list[tuple[str, str]]:
    """Merges given as "left right" strings or [left, right] pairs; blank lines and a "#version" header are skipped."""
    if isinstance(merges, (str, bytes, Mapping)) or not isinstance(merges, Iterable):
        raise FormatError(
            f"merges: expected a list of 'left right' strings or [left, right] pairs, got {type(merges).__name__}"
        )
    pairs: list[tuple[str, str]] = []
    for line, merge in enumerate(merges):
        parts = merge
        if isinstance(merge, str):
            stripped = merge.strip()
            if not stripped or (line == 0 and stripped.startswith("#version")):
                continue
            parts = stripped.split(" ")
        if not isinstance(parts, (list, tuple)) or len(parts) != 2 or not all(isinstance(p, str) and p for p in parts):
            raise FormatError(f"merges: entry {line} is {merge!r}; expected two symbols, 'left right'")
        pairs.append((parts[0], parts[1]))
    return pairs
