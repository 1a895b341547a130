"""Reads and writes the tokenizer.json of Hugging Face `tokenizers`.

Our files say exactly how we cut text, so that `tokenizers` gives the same ids. Files of others are read as they say
it; a file that does not say how text is cut, or carries the signature of the reference engine (which writes another
pre-tokenizer than it uses), is read with our pattern, and a note says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from evermind_web import strict_json
from evermind_web.errors import FormatError
from evermind_web.tokenizer.added_tokens import AddedToken
from evermind_web.tokenizer.definition import (
    SpecialNames,
    TokenizerDefinition,
    checked_merges,
    checked_vocab,
    special_tokens,
)
from evermind_web.tokenizer.json_lists import checked_list
from evermind_web.tokenizer.pretokenize import EVERMIND_PRE_TOKENIZER

_ROLES_KEY = "evermind_special_tokens"  # ours; other readers ignore it
_BYTE_LEVEL_DECODER = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


def parse_text(text: str) -> Any:
    """JSON text of a tokenizer.json; FormatError if it is not JSON."""
    try:
        return strict_json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise FormatError(
            f"tokenizer.json is not JSON ({error}); expected the file that a byte-level BPE tokenizer was saved as"
        ) from error


def parse(
    spec: Any, bos: str | None = None, eos: str | None = None, pad: str | None = None, unk: str | None = None
) -> TokenizerDefinition:
    """The tokenizer that a tokenizer.json object, or its `model` alone, describes.

    Args:
        spec: {"model": {"vocab", "merges", ...}, ...} or {"vocab", "merges"}.
        bos, eos, pad, unk: names of the tokens with a role, where they differ from what the file says.

    Raises:
        FormatError: no vocabulary or merges, another model type, or parts that this package does not support.
    """
    if not isinstance(spec, Mapping):
        raise FormatError(f"tokenizer.json: expected an object, got {type(spec).__name__}")
    model = spec.get("model", spec)
    _check_model(model)
    vocab, merges = checked_vocab(model["vocab"]), checked_merges(model["merges"])
    listed = _added_tokens(spec.get("added_tokens"), vocab)
    names = _names(spec, vocab, listed).replaced(bos, eos, pad, unk)
    known = {token.content for token in listed}
    added = (*listed, *(token for token in special_tokens(vocab, names, merges) if token.content not in known))

    pre_tokenizer, notes = _pre_tokenizer(spec, model, vocab)
    return TokenizerDefinition(
        vocab=vocab,
        merges=merges,
        added=added,
        names=names,
        ignore_merges=bool(model.get("ignore_merges", bool(notes))),
        byte_fallback=bool(model.get("byte_fallback", False)),
        normalizer=spec.get("normalizer"),
        pre_tokenizer=pre_tokenizer,
        post_processor=None if notes else spec.get("post_processor"),
        decoder=None if notes else spec.get("decoder"),
        notes=notes,
    )


def render(definition: TokenizerDefinition) -> str:
    """The tokenizer.json text of a tokenizer: two-space indent, UTF-8 characters as they are."""
    by_id = sorted(definition.vocab.items(), key=lambda item: item[1])
    spec: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_render_added(token) for token in sorted(definition.added, key=lambda token: token.id)],
        "normalizer": definition.normalizer,
        "pre_tokenizer": definition.pre_tokenizer,
        "post_processor": definition.post_processor,
        "decoder": definition.decoder or _BYTE_LEVEL_DECODER,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": definition.byte_fallback,
            "ignore_merges": definition.ignore_merges,
            "vocab": dict(by_id),
            "merges": [f"{left} {right}" for left, right in definition.merges],
        },
    }
    if definition.names != SpecialNames():
        spec[_ROLES_KEY] = asdict(definition.names)
    return json.dumps(spec, ensure_ascii=False, indent=2)


def _check_model(model: Any) -> None:
    if not isinstance(model, Mapping):
        raise FormatError(f"tokenizer.json: expected 'model' to be an object, got {type(model).__name__}")
    kind = model.get("type", "BPE")
    if kind != "BPE":
        raise FormatError(f"tokenizer.json: model type {kind!r} is not supported; expected a byte-level 'BPE'")
    for key in ("vocab", "merges"):
        if key not in model:
            raise FormatError(
                f"tokenizer.json: the model has no {key!r}; expected a BPE model with 'vocab' and 'merges'"
            )
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise FormatError(
                f"tokenizer.json: {key} {model[key]!r} is not supported; expected a byte-level BPE without it"
            )


def _added_tokens(entries: Any, vocab: dict[str, int]) -> tuple[AddedToken, ...]:
    """The file's added tokens; those that the model's vocabulary lacks are put into it."""
    tokens: list[AddedToken] = []
    owners = {i: token for token, i in vocab.items()}
    for entry in checked_list(entries, "added tokens"):
        if (
            not isinstance(entry, Mapping)
            or not isinstance(entry.get("content"), str)
            or type(entry.get("id")) is not int
        ):
            raise FormatError(f"tokenizer.json: added token {entry!r}; expected an object with 'id' and 'content'")
        content, i = entry["content"], entry["id"]
        if vocab.get(content, i) != i or owners.get(i, content) != content or i < 0:
            raise FormatError(
                f"tokenizer.json: added token {content!r} has the id {i}, which the vocabulary gives to another token"
            )
        vocab[content], owners[i] = i, content
        tokens.append(
            AddedToken(i, content, bool(entry.get("special")), **{flag: bool(entry.get(flag)) for flag in _FLAGS})
        )
    return tuple(tokens)


def _names(spec: Mapping[str, Any], vocab: Mapping[str, int], added: tuple[AddedToken, ...]) -> SpecialNames:
    """Roles as our files state them; else the default names; else what the post-processor puts around a text."""
    stated = spec.get(_ROLES_KEY)
    if isinstance(stated, Mapping):
        roles = [stated.get(role) for role in ("bos", "eos", "pad", "unk")]
        if not all(isinstance(name, str) for name in roles):
            raise FormatError(f"tokenizer.json: {_ROLES_KEY} {stated!r}; expected the names of bos, eos, pad and unk")
        return SpecialNames().replaced(*roles)
    names = SpecialNames()
    first, last = _template(spec.get("post_processor"))
    known = {token.content for token in added}
    return names.replaced(
        first if names.bos not in vocab and first in known else None,
        last if names.eos not in vocab and last in known else None,
        None,
        None,
    )


def _template(post_processor: Any) -> tuple[str | None, str | None]:
    """The special tokens before and after the text in a TemplateProcessing."""
    if not isinstance(post_processor, Mapping):
        return None, None
    if post_processor.get("type") == "Sequence":
        found = [_template(child) for child in checked_list(post_processor.get("processors"), "post-processors")]
        return next((pair for pair in found if pair != (None, None)), (None, None))
    pieces = post_processor.get("single") if post_processor.get("type") == "TemplateProcessing" else None
    if not isinstance(pieces, list) or not pieces:
        return None, None
    return _special_name(pieces[0]), _special_name(pieces[-1])


def _special_name(piece: Any) -> str | None:
    token = piece.get("SpecialToken") if isinstance(piece, Mapping) else None
    name = token.get("id") if isinstance(token, Mapping) else None
    return name if isinstance(name, str) else None


def _pre_tokenizer(
    spec: Mapping[str, Any], model: Mapping[str, Any], vocab: Mapping[str, int]
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    stated = spec.get("pre_tokenizer")
    if stated is None:
        return EVERMIND_PRE_TOKENIZER, (
            "the file does not say how text is cut into words: read with the pattern of this package",
        )
    reference = (
        all(vocab.get(name) == i for i, name in enumerate(SpecialNames().all())) and "ignore_merges" not in model
    )
    if reference:
        return EVERMIND_PRE_TOKENIZER, (
            "the file was written by the reference engine: read with the pattern that it really uses",
        )
    return stated, ()


def _render_added(token: AddedToken) -> dict[str, Any]:
    flags = {flag: getattr(token, flag) for flag in _FLAGS}
    return {"id": token.id, "content": token.content, **flags, "special": token.special}
