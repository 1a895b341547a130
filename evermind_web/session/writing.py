"""Who writes and how: the pieces of a text as they come, and what a model makes of a text token by token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

import numpy as np

from evermind_web.generation import GenerationConfig
from evermind_web.language_model import LanguageModel
from evermind_web.tokenizer import BPETokenizer, StreamDecoder

# Characters of a text that are read, its end: far more than any model of the page sees, and encoded within a second.
MAX_READ = 20_000
# A view of tokens is for looking at: more of them only take time.
MAX_SHOWN_TOKENS = 256
ALTERNATIVES = 5


def begin(tokenizer: BPETokenizer) -> list[int]:
    """The beginning-of-text token; an imported tokenizer may lack one, then a line end."""
    return [tokenizer.bos_id] if tokenizer.bos_id is not None else tokenizer.encode("\n")


async def pieces(
    writer: LanguageModel, tokenizer: BPETokenizer, prompt: str, config: GenerationConfig, stopping: Callable[[], bool]
) -> AsyncIterator[str]:
    """The text that continues `prompt`, each piece as soon as its characters are whole, until `stopping()`."""
    ids = tokenizer.encode(prompt[-MAX_READ:]) or begin(tokenizer)
    decoder = StreamDecoder(tokenizer, skip_special_tokens=True)
    async with aclosing(writer.stream_async(ids, **asdict(config))) as stream:
        async for token in stream:
            if piece := decoder.feed(token):
                yield piece
            await asyncio.sleep(0)
            if stopping():
                break
    if rest := decoder.finish():
        yield rest


async def token_shares(writer: LanguageModel, tokenizer: BPETokenizer, text: str) -> list[dict[str, Any]]:
    """The last tokens of `text`: {text, p, others: [[text, p], …]}, p the probability that the model gave it there."""
    ids = [*begin(tokenizer), *tokenizer.encode(text[-MAX_READ:])][-MAX_SHOWN_TOKENS - 1 :]
    logits = await writer.forward_async(ids)
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shown = []
    for token, row in zip(ids[1:], shares[:-1], strict=True):
        best = np.argsort(-row)[:ALTERNATIVES]
        others = [[tokenizer.decode([int(i)]), float(row[i])] for i in best]
        shown.append({"text": tokenizer.decode([token]), "p": float(row[token]), "others": others})
    return shown


async def expert_shares(writer: LanguageModel, ids: list[int]) -> list[list[float]]:
    """For each layer, what part of its choices for `ids` each routed expert got."""
    return [[round(float(part), 4) for part in row] for row in await writer.expert_use_async(ids)]
