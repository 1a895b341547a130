"""Cuts text into the pieces ("pre-tokens") that merges never cross.

Scope: our own pattern, and the pre-tokenizers of GPT-2, Llama-3 and Qwen style tokenizer.json files
(`ByteLevel`, `Split`, `Digits`, `Sequence`). Everything else is refused by name: a file whose text would be
cut in another way than its author's software does gives wrong ids without any error.

Which characters are letters and numbers is what the Unicode version of `regex` says; engines of different age
disagree about characters that were added in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import regex

from evermind_web.errors import FormatError
from evermind_web.tokenizer.json_lists import checked_list

# White space as JavaScript's \s has it: with U+FEFF, without U+0085 and U+001C-1F. Spelled out, because every
# regex engine has its own \s; the \u escapes are understood by Oniguruma, Rust, JavaScript and Python alike.
_SPACE = r"\t-\r \u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000\uFEFF"
EVERMIND_PATTERN = (
    r"'s|'t|'re|'ve|'m|'ll|'d"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}{1,3}"
    rf"| ?[^{_SPACE}\p{{L}}\p{{N}}]+[\r\n]*"
    rf"|[{_SPACE}]*[\r\n]+"
    rf"|[{_SPACE}]+(?![^{_SPACE}])"
    rf"|[{_SPACE}]+"
)
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace("{1,3}", "")

# What our own files say: the pattern above, then bytes.
EVERMIND_PRE_TOKENIZER: dict[str, Any] = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": EVERMIND_PATTERN}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    ],
}

Splitter = Callable[[str], list[str]]

_SURROGATE_PAIR = regex.compile("[\ud800-\udbff][\udc00-\udfff]")
_SURROGATE = regex.compile("[\ud800-\udfff]")


def repair_surrogates(text: str) -> str:
    """Join surrogate pairs into their character; a lone surrogate becomes U+FFFD.

    Text from JavaScript can hold both. U+FFFD is cut like any other symbol and encoded as EF BF BD, which is
    what the web platform does with a lone surrogate; Python alone would raise, or write '?'.
    """
    if text.isascii() or not _SURROGATE.search(text):
        return text
    joined = _SURROGATE_PAIR.sub(lambda pair: pair[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le"), text)
    return str(_SURROGATE.sub("\ufffd", joined))


def build_splitter(spec: Mapping[str, Any]) -> Splitter:
    """Make the function text -> pieces of a tokenizer.json `pre_tokenizer`.

    Raises FormatError, by name, for a type, an option or a regex construct that is not supported, and for a
    pre-tokenizer without a ByteLevel step (its vocabulary is not made of bytes).
    """
    steps = list(_flatten(spec))
    if not any(step.get("type") == "ByteLevel" for step in steps):
        names = [str(step.get("type")) for step in steps]
        raise FormatError(
            f"pre-tokenizer {' + '.join(names)} has no ByteLevel step: expected a byte-level BPE (GPT-2, Llama-3 "
            "or Qwen style); convert the tokenizer, or train one with BPETokenizer.train"
        )
    splitters = [splitter for step in steps for splitter in _step_splitters(step)]
    if not splitters:
        return lambda text: [text] if text else []
    if len(splitters) == 1:
        return splitters[0]

    def split(text: str) -> list[str]:
        pieces = [text]
        for splitter in splitters:
            pieces = [part for piece in pieces for part in splitter(piece)]
        return pieces

    return split


def _flatten(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if not isinstance(spec, Mapping):
        raise FormatError(f"pre-tokenizer: expected an object with a 'type', got {spec!r}")
    if spec.get("type") == "Sequence":
        return [leaf for child in checked_list(spec.get("pretokenizers"), "pretokenizers") for leaf in _flatten(child)]
    return [spec]


def _step_splitters(step: Mapping[str, Any]) -> list[Splitter]:
    kind = step.get("type")
    if kind == "ByteLevel":
        prefix: list[Splitter] = [_add_prefix_space] if step.get("add_prefix_space", True) else []
        return prefix + ([_pattern_splitter(GPT2_PATTERN)] if step.get("use_regex", True) else [])
    if kind == "Digits":
        return [_pattern_splitter(r"\p{N}" if step.get("individual_digits") else r"\p{N}+")]
    if kind == "Split":
        return [_split_step(step)]
    raise FormatError(
        f"pre-tokenizer {kind!r} is not supported: expected ByteLevel, Split, Digits or a Sequence of them"
    )


def _add_prefix_space(piece: str) -> list[str]:
    return [piece if piece.startswith(" ") else " " + piece]


def _split_step(step: Mapping[str, Any]) -> Splitter:
    pattern = step.get("pattern")
    if isinstance(pattern, Mapping) and isinstance(pattern.get("Regex"), str):
        source = pattern["Regex"]
    elif isinstance(pattern, Mapping) and isinstance(pattern.get("String"), str):
        source = regex.escape(pattern["String"])
    else:
        raise FormatError(
            f"pre-tokenizer Split: expected a pattern {{'Regex': ...}} or {{'String': ...}}, got {pattern!r}"
        )
    behavior, invert = step.get("behavior"), bool(step.get("invert", False))
    if behavior == "Isolated":  # inverting only swaps which pieces count as matches; all of them are kept
        return _pattern_splitter(source)
    if behavior == "Removed" and invert:  # keep the matches, as older conversions of tiktoken files say it
        return _pattern_splitter(source, keep_gaps=False)
    raise FormatError(
        f"pre-tokenizer Split with behavior {behavior!r} and invert {invert} is not supported: expected Isolated, "
        "or Removed with invert true"
    )


def _pattern_splitter(source: str, keep_gaps: bool = True) -> Splitter:
    """Pieces are the matches and, unless dropped, what lies between them."""
    _refuse_other_dialects(source)
    try:
        pattern = regex.compile(source)
    except regex.error as error:
        raise FormatError(f"pre-tokenizer regex {source!r} cannot be compiled: {error}") from error

    def split(text: str) -> list[str]:
        pieces, end = [], 0
        for match in _patient(pattern, text):
            start, stop = match.span()
            if start > end and keep_gaps:
                pieces.append(text[end:start])
            if stop > start:
                pieces.append(match[0])
            end = stop
        if end < len(text) and keep_gaps:
            pieces.append(text[end:])
        return pieces

    def find_all(text: str) -> list[str]:
        pieces: list[str] = pattern.findall(text)
        return pieces

    # These patterns leave no gap and capture no group, and `findall` is three times faster.
    return find_all if source in _GAPLESS else split


def _patient(pattern: regex.Pattern[str], text: str) -> Iterator[regex.Match[str]]:
    """The matches of a stranger's pattern. Raises FormatError where it would try for ever, or needs all memory."""
    try:
        yield from pattern.finditer(text, timeout=_SECONDS + _SECONDS_A_CHARACTER * len(text))
    except (TimeoutError, MemoryError):
        raise FormatError(
            f"pre-tokenizer regex {pattern.pattern[:200]!r} does not get through a text of {len(text)} characters: "
            "its repeats can be matched in too many ways; use a tokenizer.json of another source"
        ) from None


_SECONDS, _SECONDS_A_CHARACTER = 1.0, 2e-5  # of processor time; real patterns take less than 1e-6 s a character
_GAPLESS = frozenset({EVERMIND_PATTERN, GPT2_PATTERN, LLAMA3_PATTERN, QWEN2_PATTERN})
# Escapes that mean the same to Oniguruma (which runs these files elsewhere) and to `regex`.
_SHARED_ESCAPE = regex.compile(r"\\(?:[sSpPrntfvx]|u[0-9A-Fa-f]{4}|[^A-Za-z0-9])")
_ESCAPE = regex.compile(r"\\.", regex.DOTALL)
# Set intersection, conditionals, and a counted repeat that is possessive in one engine and repeated in another.
_OTHER_DIALECT = regex.compile(r"&&|\(\?\(|\{[0-9]*,?[0-9]*\}\+")


def _refuse_other_dialects(source: str) -> None:
    for escape in _ESCAPE.finditer(source):
        if not _SHARED_ESCAPE.match(source, escape.start()):
            raise FormatError(
                f"pre-tokenizer regex uses {escape[0]!r}, which differs between regex engines: "
                f"expected the pattern of a GPT-2, Llama-3 or Qwen style file, got {source!r}"
            )
    if _OTHER_DIALECT.search(source):
        raise FormatError(f"pre-tokenizer regex uses a construct that differs between regex engines: {source!r}")
