"""What every language model here can do with some weights: forward, loss, gradients, evaluation, generation.

`EvermindLM` brings its own weights, `LoraModel` and `EvermindLMLoRA` those of a base with adapters. Each method that
reads the device has a twin `…_async`; the plain one blocks (on a GPU in a browser it needs JSPI).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing
from threading import RLock
from typing import Any, Protocol, TypeVar

import numpy as np

from evermind_web import generation, ops
from evermind_web.backend.base import Array, Backend
from evermind_web.batch import (
    I32,
    Batch,
    Example,
    Item,
    Tokens,
    check_items,
    check_tokens,
    item_batches,
    make_batch,
    next_token_item,
    sequence_weights,
)
from evermind_web.checks import whole_number
from evermind_web.environment import run_blocking
from evermind_web.errors import InvalidArgumentError
from evermind_web.formats.arch import Arch
from evermind_web.generation import Chunk, GenerationConfig, NewToken
from evermind_web.network import Grads, Noise, RowPool, Tape, Views, backward, forward
from evermind_web.params import F32
from evermind_web.rng import seeds_from
from evermind_web.text_stream import check_stop_strings, text_pieces
from evermind_web.tokenizer import StreamDecoder

T = TypeVar("T")


class Codec(Protocol):
    """What turns text into token ids and back: a BPETokenizer, or anything like it."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...

    def stream_decoder(self) -> StreamDecoder: ...


class LanguageModel:
    """Work on `backend` with the weights that `views_async` gives, for the shape `config`."""

    def __init__(self, backend: Backend, config: Arch) -> None:
        self.backend, self.config = backend, config
        self._pools: dict[bool, RowPool[Tape]] = {}
        self._turn = RLock()
        self.loss, self.hyper = backend.alloc((1,)), backend.alloc((ops.HYPER_SIZE,))
        self._open = True
        self.set_hyper({})

    async def views_async(self) -> Views:
        """The weights to work with, ready for use until the next call."""
        raise NotImplementedError

    def alone(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it to its end; other threads that use this model wait: buffers are shared between its passes."""
        with self._turn:
            return run_blocking(coroutine)

    # ---- what the trainers use: queued, nothing waits ----

    def set_hyper(self, values: dict[str, float] | F32) -> None:
        """Upload the step scalars: by name (`ops.HYPER`; scales default to 1, all others to 0), or the vector (16)."""
        vector = ops.hyper_vector(values) if isinstance(values, dict) else values
        self.backend.write(self.hyper, vector)

    def tape(self, rows: int, shared_layers: bool) -> Tape:
        """Buffers for a pass over exactly `rows` rows."""
        if shared_layers not in self._pools:
            self._pools[shared_layers] = RowPool(
                lambda count: Tape(self.backend, self.config, count, shared_layers), Tape.free
            )
        return self._pools[shared_layers].get(rows)

    def queue_gradients(
        self, batch: Batch, weights: Views, grads: Grads, checkpoint: bool = False, noise: Noise | None = None
    ) -> None:
        """Queue forward and backward of one batch: `loss` += and gradients +=. noise: of a training step."""
        tape = self.tape(len(batch.tokens), shared_layers=checkpoint)
        tape.load(batch, noise)

        def build() -> None:
            forward(tape, weights)
            backward(tape, weights, grads, self.hyper, self.loss)

        drawn = noise and (noise.dropout > 0, noise.router_noise > 0, noise.balance_coef > 0)
        self.backend.replay(("gradients", tape.ids.id, weights.serial, grads.serial, self.loss.id, drawn), build)

    def check_sequence(self, tokens: Tokens) -> I32:
        """Ids as int32 (T); InvalidArgumentError names an id outside the vocabulary."""
        return check_tokens(tokens, self.config.vocab_size)

    # ---- forward, loss ----

    async def forward_async(self, tokens: Tokens) -> F32:
        """Logits float32 (T,V) of token ids (T)."""
        ids = self.check_sequence(tokens)
        vocab = self.config.vocab_size
        if not len(ids):
            return np.zeros((0, vocab), np.float32)
        weights = await self.views_async()
        batch = make_batch([next_token_item(ids)], [0.0], self.backend.row_multiple)
        tape = self.tape(len(batch.tokens), shared_layers=True)
        tape.load(batch)
        logits = self.backend.alloc((len(batch.tokens), vocab))
        try:
            weights.embedding.logits(forward(tape, weights), logits)
            (out,) = await self.backend.read(logits)
        finally:
            self.backend.free(logits)
        return np.asarray(out[: len(ids)], np.float32)

    def forward(self, tokens: Tokens) -> F32:
        """Blocking twin of `forward_async`."""
        return self.alone(self.forward_async(tokens))

    async def expert_use_async(self, tokens: Tokens) -> F32:
        """float32 (L,E): of the choices that each layer makes for token ids (T), the part that each routed expert got.

        Rows add up to 1. Raises InvalidArgumentError for no tokens.
        """
        ids = self.check_sequence(tokens)
        if not len(ids):
            raise InvalidArgumentError("no tokens, so no expert was chosen; give at least one")
        batch, experts = make_batch([next_token_item(ids)], [0.0], self.backend.row_multiple), self.config.num_experts
        counts = [np.bincount(c[: len(ids)].ravel(), minlength=experts) for c in await self._choices(batch)]
        return np.asarray(np.array(counts) / (len(ids) * self.config.top_k), np.float32)

    async def _choices(self, batch: Batch) -> list[Array]:
        """The experts (N,k) that each layer chooses for the rows of a batch."""
        views, tape = await self.views_async(), self.tape(len(batch.tokens), shared_layers=False)
        tape.load(batch)
        forward(tape, views)
        return await self.backend.read(*(t.experts for t in tape.layers))

    def expert_use(self, tokens: Tokens) -> F32:
        """Blocking twin of `expert_use_async`."""
        return self.alone(self.expert_use_async(tokens))

    async def evaluate_items(self, items: Sequence[Item], weights: Sequence[float]) -> float:
        """Σ over the items of weight × the sum of their cross-entropies (nats): a mean, by the weights given."""
        views = await self.views_async()
        self.backend.zero(self.loss)
        for batch in item_batches(items, weights, self.backend.row_multiple):
            tape = self.tape(len(batch.tokens), shared_layers=True)
            tape.load(batch)
            views.embedding.loss(forward(tape, views), tape.targets, tape.weights, self.loss)
            self.backend.flush()
        (loss,) = await self.backend.read(self.loss)
        return float(loss[0])

    async def evaluate_async(self, sequences: Sequence[Tokens | Example]) -> float:
        """Mean over the sequences of their mean cross-entropy (nats); those with nothing to predict do not count.

        Raises InvalidArgumentError if there is nothing to predict at all.
        """
        items = [item for item in check_items(sequences, self.config.vocab_size) if item.scored]
        if not items:
            raise InvalidArgumentError("nothing to evaluate: no sequence has 2 tokens; give a longer text")
        return await self.evaluate_items(items, sequence_weights(items))

    def evaluate(self, sequences: Sequence[Tokens | Example]) -> float:
        """Blocking twin of `evaluate_async`."""
        return self.alone(self.evaluate_async(sequences))

    # ---- generation ----

    def _chunks(self, prompt: Tokens, options: dict[str, Any], texts: int = 1) -> AsyncGenerator[Chunk, None]:
        """All checks are made here, before the first token is asked for."""
        config = GenerationConfig(**options)
        ids = self.check_sequence(prompt)
        if not len(ids):
            raise InvalidArgumentError("prompt has no tokens; give at least one (the page starts from the BOS token)")
        config.bias(self.config.vocab_size)
        seeds_from(config.seed, whole_number("num_return_sequences", texts))
        return self._continue(ids, config, texts)

    async def _continue(self, ids: I32, config: GenerationConfig, texts: int) -> AsyncGenerator[Chunk, None]:
        views = await self.views_async()
        written = generation.chunks(self.backend, self.config, views, ids, config, texts)
        async with aclosing(written):
            async for chunk in written:
                yield chunk

    def stream_tokens_async(self, prompt: Tokens, **options: Any) -> AsyncGenerator[NewToken, None]:
        """New tokens one by one, each with its log-probability; options, checked here, as in `generate_async`."""
        return _one_by_one(self._chunks(prompt, options), NewToken)

    def stream_tokens(self, prompt: Tokens, **options: Any) -> Iterator[NewToken]:
        """Blocking twin of `stream_tokens_async`."""
        return drain(self.stream_tokens_async(prompt, **options))

    def stream_async(self, prompt: Tokens, **options: Any) -> AsyncGenerator[int, None]:
        """New token ids one by one, the stop token included; options, checked here, as in `generate_async`."""
        return _one_by_one(self._chunks(prompt, options), lambda token, _: token)

    def stream(self, prompt: Tokens, **options: Any) -> Iterator[int]:
        """Blocking twin of `stream_async`."""
        return drain(self.stream_async(prompt, **options))

    async def generate_async(self, prompt: Tokens, **options: Any) -> list[int]:
        """New ids after the prompt, the stop token included. Options are those of `GenerationConfig`.

        The cost of a token does not depend on the length of the text. Raises InvalidArgumentError for an empty
        prompt or a bad setting, NonFiniteError for NaN logits.
        """
        return [token async for chunk in self._chunks(prompt, options) for token in chunk.ids[0]]

    def generate(
        self,
        prompt: Tokens,
        max_new_tokens: int = 12,
        temperature: float = 0.0,
        seed: int = 1,
        stop_token: int | None = None,
        **options: Any,
    ) -> list[int]:
        """Blocking twin of `generate_async`."""
        options |= {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
        return self.alone(self.generate_async(prompt, stop_token=stop_token, **options))

    async def generate_many_async(self, prompt: Tokens, num_return_sequences: int, **options: Any) -> list[list[int]]:
        """Several continuations of one prompt, written side by side; number i is what seed + i gives.

        Raises InvalidArgumentError also where the last seed would be above 2³²−1: seeds do not wrap.
        """
        chunks = self._chunks(prompt, options, num_return_sequences)
        texts: list[list[int]] = [[] for _ in range(num_return_sequences)]
        async for chunk in chunks:
            for text, ids in zip(texts, chunk.ids, strict=True):
                text += ids
        return texts

    def generate_many(self, prompt: Tokens, num_return_sequences: int, **options: Any) -> list[list[int]]:
        """Blocking twin of `generate_many_async`."""
        return self.alone(self.generate_many_async(prompt, num_return_sequences, **options))

    def stream_text_async(
        self, prompt: str, codec: Codec, stop: str | Sequence[str] | None = None, **options: Any
    ) -> AsyncIterator[str]:
        """The text that follows `prompt`, in pieces that never split a character, up to the first `stop` string."""
        strings, ids = check_stop_strings(stop), self.check_codec(codec).encode(prompt)
        return text_pieces(self.stream_async(ids, **options), codec.stream_decoder(), strings)

    def stream_text(self, prompt: str, codec: Codec, **options: Any) -> Iterator[str]:
        """Blocking twin of `stream_text_async`."""
        return drain(self.stream_text_async(prompt, codec, **options))

    def generate_text(self, prompt: str, codec: Codec, stop: str | Sequence[str] | None = None, **options: Any) -> str:
        """The text that follows `prompt` (which is not part of it), up to the first `stop` string."""
        if stop is None:  # any codec will do
            ids = self.generate(self.check_codec(codec).encode(prompt), **options)
            return codec.decode(ids)
        return "".join(self.stream_text(prompt, codec, stop=stop, **options))

    def check_codec(self, codec: Codec) -> Codec:
        """The codec itself; InvalidArgumentError if it is none, or can give ids that this model has no row for."""
        if isinstance(codec, str) or not (hasattr(codec, "encode") and hasattr(codec, "decode")):
            raise InvalidArgumentError(f"codec must be a tokenizer, got {codec!r}; such as BPETokenizer.from_file(…)")
        size = getattr(codec, "vocab_size", None)
        if isinstance(size, int) and size > self.config.vocab_size:
            raise InvalidArgumentError(
                f"the tokenizer has {size} tokens, the model {self.config.vocab_size} rows; "
                "use the tokenizer that the model was made for"
            )
        return codec

    def free_tapes(self) -> None:
        """Give back what passes over many tokens take; the next one makes it anew."""
        for pool in self._pools.values():
            pool.free()
        self._pools.clear()

    def _free_work(self) -> None:
        """Give tapes, loss and hyper back; a second call does nothing."""
        self.free_tapes()
        if self._open:
            self._open = False
            self.backend.free(self.loss)
            self.backend.free(self.hyper)


async def _one_by_one(chunks: AsyncGenerator[Chunk, None], made: Callable[[int, float], T]) -> AsyncGenerator[T, None]:
    """`made` of each id and log-probability of the first text."""
    async with aclosing(chunks):
        async for chunk in chunks:
            for token, logprob in zip(chunk.ids[0], chunk.logprobs[0].tolist(), strict=False):
                yield made(token, logprob)


def drain(items: AsyncIterator[T]) -> Iterator[T]:
    """The items of an async iterator, waited for one by one with `run_blocking`."""
    while True:
        try:
            yield run_blocking(_next(items))
        except StopAsyncIteration:
            return


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)
