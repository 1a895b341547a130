"""Incremental decoding: the last K-1 normed inputs of each layer are all that a next token needs.

Time and memory per token do not depend on the length of the text. Sampling happens where the logits are; several
tokens are queued before one read (`Backend.steps_per_read`), and several texts can be written side by side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from evermind_web import ops
from evermind_web.backend.base import Array, Backend, Buf, Reading
from evermind_web.batch import I32, make_batch, next_token_item
from evermind_web.checks import check_fields, whole_number
from evermind_web.errors import InvalidArgumentError, NonFiniteError
from evermind_web.formats.arch import Arch
from evermind_web.network import Tape, Views, forward
from evermind_web.pace import Pace
from evermind_web.params import F32
from evermind_web.rng import SeededRng, check_seed, seeds_from

LARGEST = float(np.finfo(np.float32).max)  # what is above becomes infinity on the way to the kernels
NOT_FINITE, NO_CANDIDATE = -1, -2  # what `ops.sample` writes in place of a token


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """How new tokens are chosen. The defaults are greedy.

    temperature: 0 takes the first largest logit, above 0 draws from the softmax of logits / temperature with `seed`.
    top_k (0 off), top_p in (0, 1] and min_p in [0, 1) cut off unlikely tokens, in that order; equal ones stay together.
    repetition_penalty (1 off) divides positive logits, and multiplies negative ones, of tokens that already stand in
    prompt or text; frequency_penalty and presence_penalty (0 off) are subtracted per occurrence and once.
    logit_bias: token id → what is added to its logit; -inf forbids it.
    stop_token, stop_tokens: end the text, and are its last token. max_new_tokens: tokens after the prompt.
    Raises InvalidArgumentError naming the setting that is wrong.
    """

    max_new_tokens: int = 12
    temperature: float = 0.0
    seed: int = 1
    stop_token: int | None = None
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop_tokens: Sequence[int] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        whole_number("max_new_tokens", self.max_new_tokens, 0)
        whole_number("top_k", self.top_k, 0)
        check_seed(self.seed)
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"):
            value = getattr(self, name)
            if abs(value) > LARGEST:
                raise InvalidArgumentError(f"{name} must be a finite number of 32 bits, got {value!r}")
        for name, good, rule in (
            ("temperature", self.temperature >= 0, "0 (greedy) or above"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", 0 <= self.min_p < 1, "from 0 to below 1"),
            ("repetition_penalty", np.float32(self.repetition_penalty) > 0, "above 0"),
        ):
            if not good:
                raise InvalidArgumentError(f"{name} must be {rule}, got {getattr(self, name)!r}")

    @property
    def stops(self) -> frozenset[int]:
        """All tokens that end the text."""
        return frozenset(self.stop_tokens) | (frozenset() if self.stop_token is None else {self.stop_token})

    @property
    def counts_tokens(self) -> bool:
        """Whether it matters which tokens the prompt has."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0

    def vector(self) -> F32:
        """The contents of a `sampling` buffer."""
        vector = np.zeros(ops.SAMPLING_SIZE, np.float32)
        for name, slot in ops.SAMPLING.items():
            vector[slot] = getattr(self, name)
        return vector

    def check_ids(self, vocab_size: int) -> None:
        """InvalidArgumentError naming a token id of logit_bias or stop_tokens that is outside the vocabulary.

        `stop_token` may be too large: in the reference one that never comes stands for none.
        """
        if self.stop_token is not None and self.stop_token < 0:
            raise InvalidArgumentError(f"stop_token: token id {self.stop_token} outside vocab 0..{vocab_size - 1}")
        for name, ids in (("logit_bias", self.logit_bias), ("stop_tokens", self.stop_tokens)):
            for token in ids:
                if not 0 <= token < vocab_size:
                    raise InvalidArgumentError(f"{name}: token id {token} outside vocab 0..{vocab_size - 1}")

    def bias(self, vocab_size: int) -> F32:
        """logit_bias as a vector (V)."""
        self.check_ids(vocab_size)
        vector = np.zeros(vocab_size, np.float32)
        for token, value in self.logit_bias.items():
            if value > LARGEST:
                raise InvalidArgumentError(f"logit_bias of token {token} must be a number or -inf, got {value!r}")
            vector[token] = value
        return vector


class NewToken(NamedTuple):
    """A token that was chosen, and the log-probability (nats) that the model itself gives it, before any setting."""

    id: int
    logprob: float


class Decoder:
    """The state of B texts being continued side by side: conv states, and the buffers of a step of B rows."""

    def __init__(self, backend: Backend, arch: Arch, weights: Views, steps: int, texts: int = 1) -> None:
        self.backend, self.arch, self.weights, self.steps, self.texts = backend, arch, weights, steps, texts
        self._bufs: list[Buf] = []
        B, (V, D, L, K, H, E, k) = texts, arch
        self.history = K - 1
        self.state = [self._new((B, max(K - 1, 1), D)) for _ in range(L)]
        self.x, self.logits = self._new((B, D)), self._new((B, V))
        self.sizes = {"H": H, "E": E, "k": k}
        self.token, self.cursor = self._new((B,), "int32"), self._new((B,), "int32")
        self.draws, self.out = self._new((B, steps), "int32"), self._new((B, 2, steps), "int32")
        self.sampling, self.bias = self._new((ops.SAMPLING_SIZE,)), self._new((V,))
        self.counts = self._new((B, V), "int32")

    def _new(self, shape: tuple[int, ...], dtype: str = "float32") -> Buf:
        self._bufs.append(self.backend.alloc(shape, dtype))
        return self._bufs[-1]

    def configure(self, config: GenerationConfig, prompt: I32) -> None:
        """Queue the upload of the settings, and of how often each token stands in the prompt."""
        vocab = self.arch.vocab_size
        self.backend.write(self.sampling, config.vector())
        self.backend.write(self.bias, config.bias(vocab))
        if config.counts_tokens:
            counts = np.bincount(prompt, minlength=vocab).astype(np.int32)
            self.backend.write(self.counts, np.tile(counts, (self.texts, 1)))

    def prefill(self, prompt: I32) -> None:
        """Queue the whole-sequence forward of the prompt: fills the conv states and the last row's x, for every text.

        Only the last L*(K-1)+1 tokens reach the last position, so only they are run.
        """
        reach = self.arch.num_layers * self.history + 1
        ids = prompt[-reach:]
        batch = make_batch([next_token_item(ids)], [0.0], self.backend.row_multiple)
        tape = Tape(self.backend, self.arch, len(batch.tokens), shared_layers=False)
        try:
            tape.load(batch)
            x = forward(tape, self.weights)
            D, rows = self.arch.d_model, min(len(ids), self.history)
            for text in range(self.texts):
                for layer, state in enumerate(self.state[: len(tape.layers)]):
                    first, end = len(ids) - rows, (text + 1) * self.history * D
                    self.backend.copy(tape.layers[layer].n, first * D, state, end - rows * D, rows * D)
                self.backend.copy(x, (len(ids) - 1) * D, self.x, text * D, D)
        finally:
            tape.free()

    def step(self) -> None:
        """Queue one token's way through the layers, for every text: token → x."""
        self.weights.embedding.lookup(self.token, self.x)
        for w, state in zip(self.weights.layers, self.state, strict=True):
            given = (self.x, w.norm_conv, w.conv, w.norm_moe, w.moe)
            ops.layer_step(self.backend, given, (self.x, state), **self.sizes)

    def choose(self) -> None:
        """Queue sampling from x's logits: x → token, and its place in `out`."""
        self.weights.embedding.logits(self.x, self.logits)
        given = (self.logits, self.sampling, self.draws, self.bias)
        ops.sample(self.backend, given, (self.token, self.cursor, self.out, self.counts))

    def _token(self) -> None:
        self.step()
        self.choose()

    def start_tokens(self, rngs: Sequence[SeededRng], count: int, first: bool) -> Reading[list[Array]]:
        """Queue `count` tokens of every text; `out` is on its way. The first token of all comes from the prefill."""
        draws = np.zeros((self.texts, self.steps), np.uint32)
        for row, rng in zip(draws, rngs, strict=True):
            row[:count] = rng.states(count)
        self.backend.write(self.draws, draws.view(np.int32))
        self.backend.zero(self.cursor)
        if first:
            self.choose()
        for _ in range(count - first):
            self.backend.replay(("token", self.out.id), self._token)
        return self.backend.start_read(self.out)

    def free(self) -> None:
        """Give all buffers back."""
        for buf in self._bufs:
            self.backend.free(buf)
        self._bufs.clear()


class Chunk(NamedTuple):
    """What came since the chunk before: ids of each text, up to its end, and log-probabilities (texts, count)."""

    ids: list[list[int]]
    logprobs: F32


async def chunks(
    backend: Backend, arch: Arch, weights: Views, prompt: I32, config: GenerationConfig, texts: int = 1
) -> AsyncGenerator[Chunk, None]:
    """The texts after a checked, non-empty prompt, as they are read; text i draws with seed + i.

    Raises NonFiniteError where logits are NaN or infinite, InvalidArgumentError where no token is allowed.
    """
    if config.max_new_tokens == 0:
        return
    decoder = Decoder(backend, arch, weights, min(backend.steps_per_read, config.max_new_tokens), texts)
    pace, flight = Pace(decoder.steps), deque[tuple[int, Reading[list[Array]]]]()
    ahead = 1 if backend.steps_per_read > 1 else 0  # chunks that run while an earlier one is looked at
    try:
        rngs = [SeededRng(seed) for seed in seeds_from(config.seed, texts)]
        decoder.configure(config, prompt)
        decoder.prefill(prompt)
        queued, made, running = 0, 0, set(range(texts))
        while running and made < config.max_new_tokens:
            while len(flight) <= ahead and queued < config.max_new_tokens:
                count = min(pace.chunk, config.max_new_tokens - queued)
                flight.append((count, decoder.start_tokens(rngs, count, first=queued == 0)))
                queued += count
            count, reading = flight.popleft()
            (out,) = await reading
            pace.delivered(count)
            ids, failure = written(out[:, 0, :count].tolist(), running, config.stops)
            yield Chunk(ids, np.ascontiguousarray(out[:, 1, :count], "<i4").view("<f4"))
            if failure is not None:
                raise failure_at(failure[1], len(prompt) + made + failure[0])
            made += count
    finally:
        for _, reading in flight:
            reading.cancel()
        decoder.free()


def written(
    rows: list[list[int]], running: set[int], stops: frozenset[int]
) -> tuple[list[list[int]], tuple[int, int] | None]:
    """Ids of each running text up to its stop token, which ends it; and the step and code of the first failure."""
    ids: list[list[int]] = [[] for _ in rows]
    failure: tuple[int, int] | None = None
    for text in sorted(running):
        for step, token in enumerate(rows[text]):
            if token < 0:
                failure = min(failure or (step, token), (step, token))
                break
            ids[text].append(token)
            if token in stops:
                running.discard(text)
                break
    if failure is not None:
        ids = [row[: failure[0]] for row in ids]
    return ids, failure


def failure_at(code: int, position: int) -> Exception:
    """The error of a code in place of a token, for the token at `position` of the text, the prompt included."""
    if code == NO_CANDIDATE:
        return InvalidArgumentError(f"no candidate token left at position {position}: logit_bias forbids every token")
    return NonFiniteError(f"logits not finite at position {position}: the weights are damaged, load a checkpoint")
