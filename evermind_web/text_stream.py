"""From token ids to text as it is written: whole characters only, and an end at a stop string."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence

from evermind_web.errors import InvalidArgumentError
from evermind_web.tokenizer import StreamDecoder


def check_stop_strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Stop strings as a tuple; an empty one, which would stop at once, is refused."""
    strings = () if stop is None else (stop,) if isinstance(stop, str) else stop
    if not isinstance(strings, Collection) or not all(isinstance(s, str) for s in strings):
        raise InvalidArgumentError(f"stop must be a text or a list of texts, got {stop!r}; stop_tokens takes ids")
    if "" in strings:
        raise InvalidArgumentError("a stop string must not be empty")
    return tuple(strings)


async def text_pieces(
    tokens: AsyncIterator[int], decoder: StreamDecoder, stop: tuple[str, ...] = ()
) -> AsyncIterator[str]:
    """Pieces of text that never split a character; the text ends before the first stop string.

    What could still become a stop string is held back until it is decided.
    """
    held = ""
    async for token in tokens:
        held += decoder.feed(token)
        found = [at for at in (held.find(s) for s in stop) if at >= 0]
        if found:
            if min(found):
                yield held[: min(found)]
            return
        keep = max((_overlap(held, s) for s in stop), default=0)
        ready, held = held[: len(held) - keep], held[len(held) - keep :]
        if ready:
            yield ready
    held += decoder.finish()
    found = [at for at in (held.find(s) for s in stop) if at >= 0]
    held = held[: min(found)] if found else held
    if held:
        yield held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of text that is a beginning of stop."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
