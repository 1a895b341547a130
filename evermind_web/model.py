"""EvermindLM: the language model, its weights and gradients on a backend, and its checkpoints.

Each method that reads the device has a twin `…_async`; the plain one blocks (on a GPU in a browser it needs JSPI).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from evermind_web import generation, ops
from evermind_web.backend.base import Backend, Buf
from evermind_web.backend.request import resolve_backend
from evermind_web.batch import (
    I32,
    Batch,
    Example,
    Item,
    Tokens,
    check_item,
    check_tokens,
    item_batches,
    make_batch,
    next_token_item,
    sequence_weights,
)
from evermind_web.environment import run_blocking
from evermind_web.errors import InvalidArgumentError
from evermind_web.flat_model import FlatModel
from evermind_web.formats.arch import evermind_tensor_spec
from evermind_web.formats.evl0 import read_evl0, write_evl0
from evermind_web.formats.model_delta import checkpoint_with_delta, delta_against
from evermind_web.generation import GenerationConfig, NewToken
from evermind_web.network import Noise, Tape, TapePool, Views, backward, cut, forward, views_of
from evermind_web.params import F32, ParamTable, check_arch, initial_weights, whole_number
from evermind_web.text_stream import check_stop_strings, text_pieces
from evermind_web.tokenizer import StreamDecoder

DEFAULT_SEED = 0x45564C4D
T = TypeVar("T")


class Codec(Protocol):
    """What turns text into token ids and back: a BPETokenizer, or anything like it."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...

    def stream_decoder(self) -> StreamDecoder: ...


class EvermindLM(FlatModel):
    """Tied embedding; layers of causal depthwise convolution and a shared-expert top-k mixture of experts.

    `backend`: None (the default backend), "numpy", or what `request_backend` returned. Weights are fresh, from
    `seed` (0…2³²−1), bit for bit those of the reference. Raises InvalidArgumentError for an impossible shape.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 64,
        num_layers: int = 2,
        conv_kernel: int = 3,
        hidden_dim: int | None = None,
        num_experts: int = 4,
        top_k: int = 2,
        seed: int = DEFAULT_SEED,
        backend: str | Backend | None = None,
    ) -> None:
        hidden = 2 * whole_number("d_model", d_model) if hidden_dim is None else hidden_dim
        self.config = check_arch((vocab_size, d_model, num_layers, conv_kernel, hidden, num_experts, top_k))
        table = ParamTable(evermind_tensor_spec(self.config))
        initial = initial_weights(table, d_model, seed)  # before anything is allocated on the device
        super().__init__(resolve_backend(backend), table, initial)
        self.weights = cut(self.backend, self.config, table, self.flat)
        self._grads: Views | None = None
        self._pools: dict[bool, TapePool] = {}
        self.loss, self.hyper = self._new((1,)), self._new((ops.HYPER_SIZE,))
        self.set_hyper({})

    # ---- what the trainers use: queued, nothing waits ----

    @property
    def grads(self) -> Views:
        """Views into the gradient vector."""
        if self._grads is None:
            self._grads = cut(self.backend, self.config, self.table, self.flat_grads)
        return self._grads

    def set_hyper(self, values: dict[str, float]) -> None:
        """Upload the step scalars (`ops.HYPER`); gradient scales default to 1, all others to 0."""
        self.backend.write(self.hyper, ops.hyper_vector(values))

    def tape(self, rows: int, shared_layers: bool) -> Tape:
        """Buffers for a pass over exactly `rows` rows."""
        if shared_layers not in self._pools:
            self._pools[shared_layers] = TapePool(self.backend, self.config, shared_layers)
        return self._pools[shared_layers].get(rows)

    def accumulate(
        self,
        batch: Batch,
        checkpoint: bool = False,
        emb: Buf | None = None,
        demb: Buf | None = None,
        noise: Noise | None = None,
    ) -> None:
        """Queue forward and backward of one batch: `loss` += and gradients +=.

        emb, demb: another embedding (V,D) and a place for its gradient, for adapters. noise: of a training step.
        """
        weights, grads = self.weights, self.grads
        if emb is not None and demb is not None:
            weights, grads = Views(emb, weights.layers), Views(demb, grads.layers)
        tape = self.tape(len(batch.tokens), shared_layers=checkpoint)
        tape.load(batch, noise)
        forward(tape, weights)
        backward(tape, weights, grads, self.hyper, self.loss)

    def check_sequence(self, tokens: Tokens) -> I32:
        """Ids as int32 (T); InvalidArgumentError names an id outside the vocabulary."""
        return check_tokens(tokens, self.config.vocab_size)

    # ---- forward, loss, gradients ----

    async def forward_async(self, tokens: Tokens, *, emb: Buf | None = None) -> F32:
        """Logits float32 (T,V) of token ids (T)."""
        ids = self.check_sequence(tokens)
        vocab = self.config.vocab_size
        if not len(ids):
            return np.zeros((0, vocab), np.float32)
        batch = make_batch([next_token_item(ids)], [0.0], self.backend.row_multiple)
        tape = self.tape(len(batch.tokens), shared_layers=True)
        tape.load(batch)
        logits = self.backend.alloc((len(batch.tokens), vocab))
        try:
            weights = self.weights if emb is None else Views(emb, self.weights.layers)
            ops.head_logits(self.backend, (forward(tape, weights), weights.emb), (logits,))
            (out,) = await self.backend.read(logits)
        finally:
            self.backend.free(logits)
        return np.asarray(out[: len(ids)], np.float32)

    def forward(self, tokens: Tokens) -> F32:
        """Blocking twin of `forward_async`."""
        return run_blocking(self.forward_async(tokens))

    async def loss_and_backward_async(self, tokens: Tokens | Example, *, checkpoint: bool = False) -> float:
        """Mean cross-entropy (nats) of ids (T) for their next tokens; its gradient is added to `gradients()`.

        An `Example` has targets of its own. 0.0, and no gradient, where nothing is to be predicted. checkpoint=True
        recomputes each layer in the backward pass: the same numbers with the memory of one layer.
        """
        item = check_item(tokens, self.config.vocab_size)
        if not item.scored:
            return 0.0
        self.backend.zero(self.loss)
        for batch in item_batches([item], [1 / item.scored], self.backend.row_multiple):
            self.accumulate(batch, checkpoint)
        (loss,) = await self.backend.read(self.loss)
        return float(loss[0])

    def loss_and_backward(self, tokens: Tokens | Example) -> float:
        """Blocking twin of `loss_and_backward_async`."""
        return run_blocking(self.loss_and_backward_async(tokens))

    def loss_and_backward_checkpointed(self, tokens: Tokens | Example) -> float:
        """`loss_and_backward` with activation checkpointing."""
        return run_blocking(self.loss_and_backward_async(tokens, checkpoint=True))

    async def evaluate_items(self, items: Sequence[Item], weights: Sequence[float], emb: Buf | None = None) -> float:
        """Σ over the items of weight × the sum of their cross-entropies (nats): a mean, by the weights given."""
        views = self.weights if emb is None else Views(emb, self.weights.layers)
        self.backend.zero(self.loss)
        for batch in item_batches(items, weights, self.backend.row_multiple):
            tape = self.tape(len(batch.tokens), shared_layers=True)
            tape.load(batch)
            scored = (forward(tape, views), views.emb, tape.targets, tape.weights)
            ops.head_xent_fwd(self.backend, scored, (self.loss,))
            self.backend.flush()
        (loss,) = await self.backend.read(self.loss)
        return float(loss[0])

    async def evaluate_async(self, sequences: Sequence[Tokens | Example], *, emb: Buf | None = None) -> float:
        """Mean over the sequences of their mean cross-entropy (nats); those with nothing to predict do not count.

        Raises InvalidArgumentError if there is nothing to predict at all.
        """
        items = [item for s in sequences if (item := check_item(s, self.config.vocab_size)).scored]
        if not items:
            raise InvalidArgumentError("nothing to evaluate: no sequence has 2 tokens; give a longer text")
        return await self.evaluate_items(items, sequence_weights(items), emb)

    def evaluate(self, sequences: Sequence[Tokens | Example]) -> float:
        """Blocking twin of `evaluate_async`."""
        return run_blocking(self.evaluate_async(sequences))

    # ---- weights ----

    async def export_weights_async(self, fp16: bool = False) -> bytes:
        """An EVL0 checkpoint. fp16 rounds to nearest; a value that fp16 cannot hold is refused by its tensor's name."""
        return write_evl0(self.config, await self.packed_weights_async(), fp16)

    def export_weights(self, fp16: bool = False) -> bytes:
        """Blocking twin of `export_weights_async`."""
        return run_blocking(self.export_weights_async(fp16))

    def load_weights(self, data: bytes) -> None:
        """Take the weights of an EVL0 checkpoint of this shape; the CRC is verified before anything changes.

        Raises FormatError (not a whole checkpoint) or ConfigMismatchError (of another model).
        """
        _, packed = read_evl0(data, self.config)
        self.load_packed(packed)

    async def load_weights_async(self, data: bytes) -> None:
        """`load_weights`, and the upload is done when it returns."""
        self.load_weights(data)
        await self.backend.read(self.loss)

    @classmethod
    def from_checkpoint(cls, data: bytes, backend: str | Backend | None = None) -> EvermindLM:
        """A model of the checkpoint's own shape with its weights."""
        arch, _ = read_evl0(data)
        model = cls(**arch._asdict(), backend=backend)
        model.load_weights(data)
        return model

    async def export_delta_async(self, base: bytes, eps: float = 0.0) -> bytes:
        """An EVD0 file: the rows in which this model differs by more than eps from the checkpoint `base`."""
        return delta_against(self.config, base, await self.packed_weights_async(), eps)

    def export_delta(self, base: bytes, eps: float = 0.0) -> bytes:
        """Blocking twin of `export_delta_async`."""
        return run_blocking(self.export_delta_async(base, eps))

    def load_delta(self, base: bytes, delta: bytes) -> None:
        """Take the weights of the checkpoint `base` with the rows of an EVD0 file over them; all is checked first."""
        self.load_weights(checkpoint_with_delta(self.config, base, delta))

    # ---- generation ----

    def _stream(self, prompt: Tokens, options: dict[str, Any], texts: int = 1) -> AsyncIterator[tuple[int, NewToken]]:
        """All checks are made here, before the first token is asked for."""
        emb: Buf | None = options.pop("emb", None)
        config = GenerationConfig(**options)
        ids = self.check_sequence(prompt)
        if not len(ids):
            raise InvalidArgumentError("prompt has no tokens; give at least one (the page starts from the BOS token)")
        config.bias(self.config.vocab_size)
        weights = self.weights if emb is None else Views(emb, self.weights.layers)
        return generation.stream(self.backend, self.config, weights, ids, config, whole_number("texts", texts))

    async def stream_tokens_async(self, prompt: Tokens, **options: Any) -> AsyncIterator[NewToken]:
        """New tokens one by one, each with its log-probability; options as in `generate_async`."""
        async for _, token in self._stream(prompt, options):
            yield token

    async def stream_async(self, prompt: Tokens, **options: Any) -> AsyncIterator[int]:
        """New token ids one by one, the stop token included; options as in `generate_async`."""
        async for _, token in self._stream(prompt, options):
            yield token.id

    def stream(self, prompt: Tokens, **options: Any) -> Iterator[int]:
        """Blocking twin of `stream_async`."""
        return drain(self.stream_async(prompt, **options))

    async def generate_async(self, prompt: Tokens, **options: Any) -> list[int]:
        """New ids after the prompt, the stop token included. Options are those of `GenerationConfig`.

        The cost of a token does not depend on the length of the text. Raises InvalidArgumentError for an empty
        prompt or a bad setting, NonFiniteError for NaN logits.
        """
        return [token async for token in self.stream_async(prompt, **options)]

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
        return run_blocking(self.generate_async(prompt, stop_token=stop_token, **options))

    async def generate_many_async(self, prompt: Tokens, num_return_sequences: int, **options: Any) -> list[list[int]]:
        """Several continuations of one prompt, written side by side; number i is what seed + i gives."""
        texts: list[list[int]] = [[] for _ in range(whole_number("num_return_sequences", num_return_sequences))]
        async for number, token in self._stream(prompt, options, num_return_sequences):
            texts[number].append(token.id)
        return texts

    def generate_many(self, prompt: Tokens, num_return_sequences: int, **options: Any) -> list[list[int]]:
        """Blocking twin of `generate_many_async`."""
        return run_blocking(self.generate_many_async(prompt, num_return_sequences, **options))

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
            return codec.decode(self.generate(self.check_codec(codec).encode(prompt), **options))
        return "".join(self.stream_text(prompt, codec, stop=stop, **options))

    def check_codec(self, codec: Codec) -> Codec:
        """The codec itself; InvalidArgumentError if it can give ids that this model has no row for."""
        size = getattr(codec, "vocab_size", None)
        if isinstance(size, int) and size > self.config.vocab_size:
            raise InvalidArgumentError(
                f"the tokenizer has {size} tokens, the model {self.config.vocab_size} rows; "
                "use the tokenizer that the model was made for"
            )
        return codec

    def dispose(self) -> None:
        """Give all memory back; the model must not be used afterwards. A second call does nothing."""
        if not self._bufs:
            return
        for pool in self._pools.values():
            pool.free()
        self._pools.clear()
        for views in (self.weights, self._grads):
            for view in views_of(views) if views else ():
                self.backend.free(view)
        self._grads = None
        super().dispose()


def drain(items: AsyncIterator[T]) -> Iterator[T]:
    """The items of an async iterator, waited for one by one with `run_blocking`."""
    while True:
        try:
            yield run_blocking(_next(items))
        except StopAsyncIteration:
            return


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)
