"""`BPETokenizer`: byte-level byte pair encoding, trained here or read from a tokenizer.json."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from evermind_web.checks import checked, whole_number
from evermind_web.errors import FormatError, InvalidArgumentError
from evermind_web.tokenizer import huggingface
from evermind_web.tokenizer.byte_alphabet import to_symbols
from evermind_web.tokenizer.definition import (
    SpecialNames,
    TokenizerDefinition,
    checked_merges,
    checked_vocab,
    fresh_vocab,
    special_tokens,
)
from evermind_web.tokenizer.engine import TokenizerEngine
from evermind_web.tokenizer.learn import learn_merges
from evermind_web.tokenizer.pretokenize import EVERMIND_PRE_TOKENIZER, build_splitter, repair_surrogates
from evermind_web.tokenizer.stream import StreamDecoder, token_ids

_BASE_VOCAB = 4 + 256  # special tokens and bytes
_PROGRESS_STEPS = 100  # calls of on_progress per training: enough for a bar, too few to cost anything


class BPETokenizer:
    """Text to token ids and back, without loss: every text is made of bytes, and every byte has a token.

    A new object is empty; `train`, `load`, `load_huggingface`, `from_str` or `from_file` fill it. Replacing the
    contents is all or nothing: if it fails, what was there before stays.
    """

    def __init__(self) -> None:
        self._definition: TokenizerDefinition | None = None
        self._engine: TokenizerEngine | None = None

    # ── filling ──────────────────────────────────────────────────────────────
    @checked
    def train(
        self,
        corpus: str | Iterable[str],
        num_merges: int | None = None,
        min_pair_freq: int = 2,
        *,
        vocab_size: int | None = None,
        on_progress: Callable[[int, int], object] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> None:
        """Learn merges from text.

        Args:
            corpus: one text or several; an empty one gives the plain byte vocabulary.
            num_merges: how many merges to learn at most (200 if neither this nor `vocab_size` is given).
            min_pair_freq: a pair that occurs less often is not merged; >= 1.
            vocab_size: instead of `num_merges`, the size to stop at: 4 special tokens + 256 bytes + merges.
            on_progress: called as on_progress(merges done, merges to do), about a hundred times and at the end,
                where both are the number learned.
            should_stop: asked before each merge; once true, training ends and keeps what was learned.

        Raises:
            InvalidArgumentError: text that is no str, counts out of range, `vocab_size` below 260, or both sizes.
        """
        limit = _merge_limit(num_merges, vocab_size)
        whole_number("min_pair_freq", min_pair_freq)
        word_counts = _count_words(corpus)
        vocab = fresh_vocab()

        def is_enough(done: int) -> bool:
            if on_progress and done < limit and done % max(1, limit // _PROGRESS_STEPS) == 0:
                on_progress(done, limit)
            return done >= limit or (should_stop is not None and should_stop())

        merges = learn_merges(word_counts, vocab, is_enough, min_pair_freq)
        self._become(TokenizerDefinition(vocab, merges, special_tokens(vocab, SpecialNames(), merges)))
        if on_progress:
            on_progress(len(merges), len(merges))

    def load(self, vocab: Mapping[str, int], merges: Sequence[str | Sequence[str]]) -> None:
        """Take over a vocabulary (vocab.json) and merges in rank order (the lines of merges.txt).

        Raises FormatError if a byte has no token (they are listed) or a merge is not two symbols.
        """
        tokens, pairs = checked_vocab(vocab), checked_merges(merges)
        self._become(TokenizerDefinition(tokens, pairs, special_tokens(tokens, SpecialNames(), pairs)))

    @checked
    def load_huggingface(
        self,
        spec: Mapping[str, Any],
        bos: str | None = None,
        eos: str | None = None,
        pad: str | None = None,
        unk: str | None = None,
    ) -> None:
        """Take over a parsed tokenizer.json (or only its `model`): GPT-2, Llama-3 and Qwen style byte-level BPE.

        Args:
            spec: the JSON object. Pre-tokenizer, Unicode normaliser, added tokens, `ignore_merges` and
                `byte_fallback` are honoured; what was assumed is in `notes`, and a UserWarning.
            bos, eos, pad, unk: names of those tokens; None or "" keeps `<|im_start|>`, `<|im_end|>`,
                `<|endoftext|>`, `<unk>`, or what the file's template puts around a text.

        Raises FormatError for other model types and unsupported parts (by name), ids that are not distinct
        integers, and bytes without a token (they are listed).
        """
        self._become(huggingface.parse(spec, bos, eos, pad, unk))

    @classmethod
    @checked
    def from_str(cls, text: str) -> BPETokenizer:
        """The tokenizer of a tokenizer.json text; raises as `load_huggingface`, and FormatError for other text."""
        tokenizer = cls()
        tokenizer._become(huggingface.parse(huggingface.parse_text(text)))
        return tokenizer

    @classmethod
    @checked
    def from_file(cls, path: str | Path) -> BPETokenizer:
        """The tokenizer of a tokenizer.json file."""
        try:
            text = Path(path).read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise FormatError(f"{path} is not UTF-8 text; expected a tokenizer.json") from error
        return cls.from_str(text)

    def to_str(self) -> str:
        """The tokenizer.json text; Hugging Face `tokenizers` gives the same ids with it."""
        return huggingface.render(self.definition)

    @checked
    def save(self, path: str | Path) -> None:
        """Write `to_str()` to a file, UTF-8."""
        Path(path).write_text(self.to_str(), encoding="utf-8", newline="\n")

    # ── using ────────────────────────────────────────────────────────────────
    @checked
    def encode(self, text: str, add_bos: bool = False, add_eos: bool = False, allow_special: bool = False) -> list[int]:
        """Token ids of `text`; of "" the empty list.

        Args:
            add_bos, add_eos: put the begin or end token around it, where the vocabulary has one.
            allow_special: take `<|endoftext|>` and the like in the text for control tokens. Off by default: in
                text that a user typed they are ordinary characters.
        """
        ids = self.engine.encode(text, allow_special)
        if add_bos and self.bos_id is not None:
            ids.insert(0, self.bos_id)
        if add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    @checked
    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Text of token ids; bytes that are not UTF-8 become U+FFFD, ids without a token give nothing."""
        wanted = token_ids(ids)
        if skip_special_tokens:
            wanted = [i for i in wanted if i not in self.engine.special_ids]
        return self.engine.decode_bytes(wanted).decode("utf-8", "replace")

    @checked
    def stream_decoder(self, skip_special_tokens: bool = False) -> StreamDecoder:
        """A decoder for ids that arrive one by one."""
        return StreamDecoder(self, skip_special_tokens)

    @checked
    def pad_or_truncate(self, ids: Sequence[int], max_len: int, side: Literal["left", "right"] = "right") -> list[int]:
        """Exactly `max_len` ids: the first ones, or all and the pad id (0 if there is none) on `side`."""
        kept = token_ids(ids)[: whole_number("max_len", max_len, 0)]
        padding = [0 if self.pad_id is None else self.pad_id] * (max_len - len(kept))
        return padding + kept if side == "left" else kept + padding

    # ── looking ──────────────────────────────────────────────────────────────
    @property
    def vocab(self) -> Mapping[str, int]:
        """Token -> id, read only; tokens are spelled in byte symbols, special tokens as they are."""
        return MappingProxyType(self._definition.vocab if self._definition else {})

    @property
    def merges(self) -> list[str]:
        """Merges "left right" in rank order."""
        return [f"{left} {right}" for left, right in (self._definition.merges if self._definition else ())]

    @property
    def vocab_size(self) -> int:
        """Rows that a model needs for this tokenizer: the highest id + 1."""
        return max(self.vocab.values(), default=-1) + 1

    @property
    def bos_id(self) -> int | None:
        """Id of the begin token, or None."""
        return self._id_of("bos")

    @property
    def eos_id(self) -> int | None:
        """Id of the end token, or None."""
        return self._id_of("eos")

    @property
    def pad_id(self) -> int | None:
        """Id of the padding token, or None."""
        return self._id_of("pad")

    @property
    def unk_id(self) -> int | None:
        """Id of the unknown token, or None; encoding never produces it."""
        return self._id_of("unk")

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of the control tokens."""
        return self.engine.special_ids

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed about an imported file."""
        return self._definition.notes if self._definition else ()

    @property
    def definition(self) -> TokenizerDefinition:
        """The tokenizer as data; InvalidArgumentError if it is still empty."""
        if self._definition is None:
            raise InvalidArgumentError(_EMPTY)
        return self._definition

    @property
    def engine(self) -> TokenizerEngine:
        """What encodes and decodes; InvalidArgumentError if the tokenizer is still empty."""
        if self._engine is None:
            raise InvalidArgumentError(_EMPTY)
        return self._engine

    def __repr__(self) -> str:
        return f"BPETokenizer(vocab_size={self.vocab_size}, merges={len(self.merges)})"

    def _become(self, definition: TokenizerDefinition) -> None:
        engine = TokenizerEngine(definition)
        self._definition, self._engine = definition, engine
        for note in definition.notes:
            warnings.warn(f"tokenizer: {note}", stacklevel=3)

    def _id_of(self, role: str) -> int | None:
        return self.vocab.get(getattr(self._definition.names, role)) if self._definition else None


_EMPTY = "the tokenizer is empty: call train, load or load_huggingface first, or use BPETokenizer.from_file"


def _merge_limit(num_merges: int | None, vocab_size: int | None) -> int:
    """How many merges are to be learned at most."""
    if vocab_size is None:
        return 200 if num_merges is None else whole_number("num_merges", num_merges, 0)
    if num_merges is not None:
        raise InvalidArgumentError(
            f"num_merges {num_merges} and vocab_size {vocab_size} are given: expected one of them"
        )
    if whole_number("vocab_size", vocab_size) < _BASE_VOCAB:
        raise InvalidArgumentError(
            f"vocab_size: expected at least {_BASE_VOCAB} (4 special tokens and 256 bytes), got {vocab_size}; "
            "with fewer, some text could not be encoded"
        )
    return vocab_size - _BASE_VOCAB


def _count_words(corpus: str | Iterable[str]) -> dict[str, int]:
    """Words spelled in byte symbols -> occurrences, in first-seen order."""
    texts = [corpus] if isinstance(corpus, str) else corpus
    if isinstance(texts, (bytes, Mapping)) or not isinstance(texts, Iterable):
        raise InvalidArgumentError(f"corpus: expected a str or a list of str, got {type(corpus).__name__}")
    split = build_splitter(EVERMIND_PRE_TOKENIZER)
    counts: dict[str, int] = {}
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidArgumentError(
                f"corpus: expected texts of type str, got {type(text).__name__} at position {position}"
            )
        for word in split(repair_surrogates(text)):
            counts[word] = counts.get(word, 0) + 1
    return {to_symbols(word.encode("utf-8")): count for word, count in counts.items()}
