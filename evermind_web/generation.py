"""Incremental decoding: the last K-1 normed inputs of each layer are all that a next token needs.

Time and memory per token do not depend on the length of the text. Sampling happens where the logits are; several
tokens are queued before one read (`Backend.steps_per_read`).
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from evermind_web import ops
from evermind_web.backend.base import Backend, Buf
from evermind_web.batch import I32, make_batch, next_token_item
from evermind_web.errors import InvalidArgumentError, NonFiniteError
from evermind_web.formats.arch import Arch
from evermind_web.network import Tape, Views, forward
from evermind_web.rng import SeededRng, check_seed


@dataclass(frozen=True, slots=True)
class Settings:
    """Checked options of a generation."""

    max_new_tokens: int
    temperature: float
    seed: int


def check_settings(max_new_tokens: Any, temperature: Any, seed: Any) -> Settings:
    """InvalidArgumentError names the setting that is wrong."""
    if not isinstance(max_new_tokens, (int, np.integer)) or isinstance(max_new_tokens, bool) or max_new_tokens < 0:
        raise InvalidArgumentError(f"max_new_tokens must be a whole number from 0 on, got {max_new_tokens!r}")
    if not isinstance(temperature, (int, float, np.floating)) or not math.isfinite(temperature) or temperature < 0:
        raise InvalidArgumentError(f"temperature must be 0 (greedy) or a positive number, got {temperature!r}")
    return Settings(int(max_new_tokens), float(temperature), check_seed(seed))


class Decoder:
    """The state of one text being continued: conv states, and the buffers of a one-row step."""

    def __init__(self, backend: Backend, arch: Arch, weights: Views, steps: int) -> None:
        self.backend, self.arch, self.weights, self.steps = backend, arch, weights, steps
        self._bufs: list[Buf] = []
        V, D, L, K, H, E, k = arch
        self.history = K - 1
        self.state = [self._new((1, max(K - 1, 1), D)) for _ in range(L)]
        self.x, self.n, self.a, self.m = (self._new((1, D)) for _ in range(4))
        self.rstd, self.logits = self._new((1,)), self._new((1, V))
        self.routing = [
            self._new((1, k), "int32"), self._new((1, k)), self._new((1, E)), self._new((k,), "int32"),
            self._new((k,), "int32"), self._new((E + 1,), "int32"), self._new((k + 1, H)),
        ]  # fmt: skip
        self.token, self.cursor = self._new((1,), "int32"), self._new((1,), "int32")
        self.draws, self.out = self._new((1, steps), "int32"), self._new((1, steps), "int32")
        self.sampling = self._new((ops.SAMPLING_SIZE,))

    def _new(self, shape: tuple[int, ...], dtype: str = "float32") -> Buf:
        self._bufs.append(self.backend.alloc(shape, dtype))
        return self._bufs[-1]

    def prefill(self, prompt: I32) -> None:
        """Queue the whole-sequence forward of the prompt: fills the conv states and the last row's x.

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
            for layer, state in enumerate(self.state[: len(tape.layers)]):
                first = len(ids) - rows
                self.backend.copy(tape.layers[layer].n, first * D, state, (self.history - rows) * D, rows * D)
            self.backend.copy(x, (len(ids) - 1) * D, self.x, 0, D)
        finally:
            tape.free()

    def step(self) -> None:
        """Queue one token's way through the layers: token → x."""
        backend, arch = self.backend, self.arch
        ops.embed_fwd(backend, (self.token, self.weights.emb), (self.x,))
        for w, state in zip(self.weights.layers, self.state, strict=True):
            ops.rmsnorm_fwd(backend, (self.x, w.norm_conv), (self.n, self.rstd))
            ops.conv_step(backend, (self.x, self.n, w.conv), (self.a, state))
            ops.rmsnorm_fwd(backend, (self.a, w.norm_moe), (self.m, self.rstd))
            sizes = {"H": arch.hidden_dim, "E": arch.num_experts, "k": arch.top_k}
            ops.moe_fwd(backend, (self.a, self.m, w.moe), (self.x, *self.routing), **sizes)

    def choose(self) -> None:
        """Queue sampling from x's logits: x → token, and its place in `out`."""
        ops.head_logits(self.backend, (self.x, self.weights.emb), (self.logits,))
        choice = (self.token, self.cursor, self.out)
        ops.sample(self.backend, (self.logits, self.sampling, self.draws), choice)

    def free(self) -> None:
        """Give all buffers back."""
        for buf in self._bufs:
            self.backend.free(buf)
        self._bufs.clear()


async def stream(
    backend: Backend, arch: Arch, weights: Views, prompt: I32, settings: Settings, stop_token: int | None
) -> AsyncIterator[int]:
    """New token ids after a checked, non-empty prompt. Raises NonFiniteError where logits are NaN or infinite."""
    if settings.max_new_tokens == 0:
        return
    decoder = Decoder(backend, arch, weights, min(backend.steps_per_read, settings.max_new_tokens))
    try:
        rng = SeededRng(settings.seed)
        sampling = np.zeros(ops.SAMPLING_SIZE, np.float32)
        sampling[ops.SAMPLING["temperature"]] = settings.temperature
        backend.write(decoder.sampling, sampling)
        decoder.prefill(prompt)
        made = 0
        while made < settings.max_new_tokens:
            count = min(decoder.steps, settings.max_new_tokens - made)
            for token in await _next_tokens(decoder, rng, count, first=made == 0):
                if token < 0:
                    raise NonFiniteError(
                        f"logits not finite at position {len(prompt) + made}: "
                        "the weights are damaged, load a checkpoint"
                    )
                made += 1
                yield token
                if token == stop_token:
                    return
    finally:
        decoder.free()


async def _next_tokens(decoder: Decoder, rng: SeededRng, count: int, first: bool) -> list[int]:
    backend = decoder.backend
    draws = np.zeros((1, decoder.steps), np.uint32)
    for i in range(count):
        rng.next()
        draws[0, i] = rng.state
    backend.write(decoder.draws, draws.view(np.int32))
    backend.zero(decoder.cursor)
    for i in range(count):
        if not (first and i == 0):
            decoder.step()
        decoder.choose()
    (out,) = await backend.read(decoder.out)
    return [int(token) for token in out[0, :count]]
