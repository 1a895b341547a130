"""Added tokens: strings that are one id of their own, found in the text before it is cut and merged.

Special ones (`<|endoftext|>` and the like) are control tokens. They are recognised only when the caller asks for it,
because text typed by a user must not be able to issue them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import regex

Segment = str | int  # text still to be encoded, or the id of an added token


@dataclass(frozen=True)
class AddedToken:
    """One entry of `added_tokens` in a tokenizer.json; the flags have its meaning."""

    id: int
    content: str
    special: bool = True
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


class AddedTokenFinder:
    """Cuts text at added tokens: those matched as typed first, then those matched in normalised text."""

    def __init__(self, tokens: Sequence[AddedToken], normalize: Callable[[str], str] | None) -> None:
        self._normalize = normalize
        self._as_typed = _Matcher([(t.content, t) for t in tokens if not t.normalized])
        self._in_normalized = _Matcher(
            [(normalize(t.content) if normalize else t.content, t) for t in tokens if t.normalized]
        )

    def segments(self, text: str, allow_special: bool) -> list[Segment]:
        """Text and ids in order; without `allow_special` special tokens stay text."""
        found: list[Segment] = []
        for segment in self._as_typed.cut(text, allow_special):
            if isinstance(segment, int):
                found.append(segment)
            else:
                normal = self._normalize(segment) if self._normalize else segment
                found.extend(self._in_normalized.cut(normal, allow_special))
        return found


class _Matcher:
    def __init__(self, tokens: Sequence[tuple[str, AddedToken]]) -> None:
        self._tokens = {content: token for content, token in tokens if content}
        self._any_ordinary = any(not token.special for token in self._tokens.values())
        longest_first = sorted(self._tokens, key=len, reverse=True)
        self._pattern = regex.compile("|".join(regex.escape(content) for content in longest_first))

    def cut(self, text: str, allow_special: bool) -> list[Segment]:
        if not self._tokens or not (allow_special or self._any_ordinary):
            return [text] if text else []
        segments: list[Segment] = []
        end = 0
        for match in self._pattern.finditer(text):
            token = self._tokens[match[0]]
            start, stop = match.span()
            if start < end or (token.special and not allow_special):
                continue
            if token.single_word and (_WORD.match(text[start - 1 : start]) or _WORD.match(text[stop : stop + 1])):
                continue
            if token.lstrip:
                start = max(end, len(text[:start].rstrip()))
            if token.rstrip:
                stop = len(text) - len(text[stop:].lstrip())
            if start > end:
                segments.append(text[end:start])
            segments.append(token.id)
            end = stop
        if end < len(text):
            segments.append(text[end:])
        return segments


_WORD = regex.compile(r"\w")
