"""Decodes ids as they are generated, without ever cutting a character in two."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from operator import index
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evermind_web.tokenizer.bpe import BPETokenizer


class StreamDecoder:
    """Text from ids that arrive one by one.

    A token may end in the middle of a UTF-8 character; its bytes are kept until the rest arrives. All texts
    together, `finish()` included, equal `tokenizer.decode` of all ids.
    """

    def __init__(self, tokenizer: BPETokenizer, skip_special_tokens: bool = False) -> None:
        engine = tokenizer.engine
        self._skipped = engine.special_ids if skip_special_tokens else frozenset()
        self._bytes = engine.byte_decoder()
        self._text = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: int | Iterable[int]) -> str:
        """The text that is complete with these ids; may be empty."""
        many = ids if isinstance(ids, Iterable) else (ids,)
        data = b"".join([self._bytes.push(i) for i in map(index, many) if i not in self._skipped])
        return self._text.decode(data)

    def finish(self) -> str:
        """What is left, with U+FFFD for a character that never became complete; the decoder is then as new."""
        rest = self._text.decode(self._bytes.finish(), final=True)
        self._text.reset()
        return rest
