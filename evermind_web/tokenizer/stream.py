"""Decodes ids as they are generated, without ever cutting a character in two."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from operator import index
from typing import TYPE_CHECKING

from evermind_web.checks import check_value
from evermind_web.errors import InvalidArgumentError

if TYPE_CHECKING:
    from evermind_web.tokenizer.bpe import BPETokenizer


def token_ids(ids: Iterable[int]) -> list[int]:
    """The ids as ints; InvalidArgumentError for what is no list of whole numbers: True and False are none."""
    try:
        many = list(ids)
        if bool in set(map(type, many)):
            raise TypeError
        return list(map(index, many))
    except TypeError:
        raise InvalidArgumentError(f"ids must be a list of whole numbers, got {ids!r:.60}; encode gives one") from None


class StreamDecoder:
    """Text from ids that arrive one by one.

    A token may end in the middle of a UTF-8 character; its bytes are kept until the rest arrives. All texts
    together, `finish()` included, equal `tokenizer.decode` of all ids.
    """

    def __init__(self, tokenizer: BPETokenizer, skip_special_tokens: bool = False) -> None:
        if not hasattr(tokenizer, "engine"):
            raise InvalidArgumentError(f"tokenizer must be a BPETokenizer, got {tokenizer!r:.60}")
        check_value("skip_special_tokens", skip_special_tokens, bool, "StreamDecoder")
        engine = tokenizer.engine
        self._skipped = engine.special_ids if skip_special_tokens else frozenset()
        self._bytes = engine.byte_decoder()
        self._text = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: int | Iterable[int]) -> str:
        """The text that is complete with these ids; may be empty."""
        many = token_ids(ids if isinstance(ids, Iterable) else (ids,))
        data = b"".join([self._bytes.push(i) for i in many if i not in self._skipped])
        return self._text.decode(data)

    def finish(self) -> str:
        """What is left, with U+FFFD for a character that never became complete; the decoder is then as new."""
        rest = self._text.decode(self._bytes.finish(), final=True)
        self._text.reset()
        return rest
