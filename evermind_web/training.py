"""Training: windows of sequences, one optimizer step each, with progress, Stop and the loss read a few steps late."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from evermind_web.backend.base import Backend, Buf
from evermind_web.batch import I32, sequence_batches
from evermind_web.environment import run_blocking
from evermind_web.errors import InvalidArgumentError, NonFiniteError
from evermind_web.model import EvermindLM, Tokens
from evermind_web.optim import AdamWOptions, DynamicLossScaler, FlatAdamW

RECORD = 4  # floats kept of each step until they are read: loss, squared gradient norm, not-finite flag, unused
PATIENCE = 10  # overflows in a row, the loss scale at its floor, after which training stops


@dataclass(frozen=True, slots=True)
class StepInfo:
    """What is known of one optimizer step. Steps and epochs count from 1; `tokens` and `seconds` are sums so far."""

    step: int
    total_steps: int
    epoch: int
    epochs: int
    loss: float  # mean over the window's sequences (nats a token), with the weights before the step
    grad_norm: float
    tokens: int
    seconds: float
    skipped: bool  # the gradients overflowed and the weights stayed as they were
    loss_scale: float


OnStep = Callable[[StepInfo], None]


class Steppable(Protocol):
    """What the loop drives: it queues one optimizer step for a window, and says where its numbers will be."""

    backend: Backend

    def queue_step(self, window: Sequence[I32], loss_scale: float) -> tuple[Buf, Buf]:
        """Queue everything from zeroed gradients to the update; returns loss (1) and stats (2)."""
        ...

    def applied(self) -> None:
        """The step was not skipped."""
        ...


@dataclass(slots=True)
class _Pending:
    step: int
    epoch: int
    sequences: int
    tokens: int
    loss_scale: float


@dataclass
class Loop:
    """One fit: epochs over the sequences in their order, `accum_steps` sequences a window."""

    job: Steppable
    epochs: int
    accum_steps: int
    scaler: DynamicLossScaler | None = None
    on_step: OnStep | None = None
    stopped: bool = False
    _sums: list[float] = field(default_factory=list)
    _counts: list[int] = field(default_factory=list)
    _overflows: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "accum_steps"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InvalidArgumentError(f"{name} must be a whole number from 1 on, got {value!r}")

    async def run(self, sequences: Sequence[I32]) -> list[float]:
        """Mean loss of each epoch, the last one partial if it was stopped. Raises NonFiniteError naming the step."""
        usable = [s for s in sequences if len(s) > 1]
        if not usable:
            longest = max((len(s) for s in sequences), default=0)
            raise InvalidArgumentError(
                f"need at least 2 tokens, got {longest}: no sequence has a next token; give a longer text"
            )
        backend, started = self.job.backend, time.perf_counter()
        windows = [usable[i : i + self.accum_steps] for i in range(0, len(usable), self.accum_steps)]
        batch = 1 if self.scaler else backend.steps_per_read  # the host needs each step's flag to set the next scale
        ring = backend.alloc((batch, RECORD))
        self._total, self._tokens, self._started = self.epochs * len(windows), 0, started
        self._sums, self._counts, pending = [0.0] * self.epochs, [0] * self.epochs, list[_Pending]()
        try:
            for number in range(self._total):
                if self.stopped:
                    break
                epoch, window = number // len(windows), windows[number % len(windows)]
                scale = self.scaler.scale if self.scaler else 1.0
                loss, stats = self.job.queue_step(window, scale)
                backend.copy(loss, 0, ring, len(pending) * RECORD, 1)
                backend.copy(stats, 0, ring, len(pending) * RECORD + 1, 2)
                backend.flush()
                pending.append(_Pending(number + 1, epoch, len(window), sum(len(s) - 1 for s in window), scale))
                if len(pending) == batch:
                    await self._deliver(ring, pending)
                await asyncio.sleep(0)  # so that Stop, and everybody else, gets a turn
            await self._deliver(ring, pending)
        finally:
            backend.free(ring)
        done = [i for i, count in enumerate(self._counts) if count]
        return [self._sums[i] / self._counts[i] for i in done]

    async def _deliver(self, ring: Buf, pending: list[_Pending]) -> None:
        if not pending:
            return
        (rows,) = await self.job.backend.read(ring)
        for row, p in zip(rows, pending, strict=False):
            loss, square, bad = (float(v) for v in row[:3])
            self._check(p, loss, bool(bad))
            self._sums[p.epoch] += loss * p.sequences
            self._counts[p.epoch] += p.sequences
            self._tokens += p.tokens
            if self.on_step:
                seconds = time.perf_counter() - self._started
                norm = math.sqrt(square) if square >= 0 else math.nan
                numbers = (p.step, self._total, p.epoch + 1, self.epochs, loss, norm, self._tokens, seconds)
                self.on_step(StepInfo(*numbers, skipped=bool(bad), loss_scale=p.loss_scale))
        pending.clear()

    def _check(self, p: _Pending, loss: float, overflow: bool) -> None:
        kept = "the weights keep their last good values; use a smaller learning rate"
        if not math.isfinite(loss):
            raise NonFiniteError(f"loss is not finite at step {p.step}: {kept}")
        if self.scaler is None:
            if overflow:
                raise NonFiniteError(f"gradients are not finite at step {p.step}: {kept}")
            self.job.applied()
            return
        at_floor = self.scaler.scale <= self.scaler.min_scale
        self._overflows = self._overflows + 1 if overflow else 0
        if self.scaler.update(overflow):
            self.job.applied()
        elif at_floor and self._overflows >= PATIENCE:
            raise NonFiniteError(f"gradients not finite for {self._overflows} steps, up to step {p.step}: {kept}")


class EvermindLMTrainer:
    """AdamW on all weights of a model. Moments, step count and loss scale live on over several `fit` calls.

    epochs, accum_steps: sequences of one window are averaged, the last window over its own size.
    checkpoint: recompute activations. mixed_precision: False, True, or a dict of DynamicLossScaler options: gradients
    are scaled, rounded to fp16 and unscaled; a step that overflows is skipped. shard: (index, count) over parameters().
    """

    def __init__(
        self,
        model: EvermindLM,
        lr: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        epochs: int = 1,
        accum_steps: int = 1,
        checkpoint: bool = False,
        mixed_precision: bool | dict[str, Any] = False,
        shard: tuple[int, int] | None = None,
    ) -> None:
        self.model, self.backend = model, model.backend
        self.options = AdamWOptions(lr, beta1, beta2, eps, weight_decay, shard)
        self.epochs, self.accum_steps, self.checkpoint = epochs, accum_steps, checkpoint
        scaler_options = mixed_precision if isinstance(mixed_precision, dict) else {}
        self.loss_scaler = DynamicLossScaler(**scaler_options)
        self.mixed_precision = mixed_precision is not False
        Loop(self, epochs, accum_steps)  # refuses bad counts now, not at fit
        self._adam: FlatAdamW | None = None
        self._loop: Loop | None = None

    def _optimizer(self) -> FlatAdamW:
        if self._adam is None:
            groups = self.model.table.decay_groups(self.options.owned)
            self._adam = FlatAdamW(self.backend, self.model.flat, groups, self.options)
            self._queued = 0
        return self._adam

    def queue_step(self, window: Sequence[I32], loss_scale: float) -> tuple[Buf, Buf]:
        """See `Steppable`."""
        model, adam = self.model, self._optimizer()
        self._queued = adam.step + 1 if self.mixed_precision else self._queued + 1  # a skipped step does not count
        scales = {"grad_scale": loss_scale, "inv_grad_scale": 1 / loss_scale}
        model.set_hyper(self.options.hyper(self._queued) | scales)
        model.zero_grad()
        self.backend.zero(model.loss)
        for batch in sequence_batches(window, len(window), self.backend.row_multiple):
            model.accumulate(batch, self.checkpoint)
        adam.queue(model.flat_grads, model.hyper, half=self.mixed_precision)
        return model.loss, adam.stats

    def applied(self) -> None:
        """See `Steppable`."""
        self._optimizer().step += 1

    async def fit_async(self, sequences: Sequence[Tokens], on_step: OnStep | None = None) -> list[float]:
        """Train; returns the mean loss of each epoch (nats a token, averaged per sequence).

        Sequences are taken in order; those under two tokens do not count. `on_step(StepInfo)` is called for every
        step, on a GPU up to a few steps late. Raises InvalidArgumentError before anything is trained if an id is
        outside the vocabulary or no sequence can be used, NonFiniteError with the step if the loss blows up.
        """
        checked = [self.model.check_sequence(s) for s in sequences]
        adam = self._optimizer()
        self._queued = adam.step
        scaler = self.loss_scaler if self.mixed_precision else None
        self._loop = Loop(self, self.epochs, self.accum_steps, scaler, on_step)
        try:
            return await self._loop.run(checked)
        finally:
            self._loop = None
            self.model.set_hyper({})

    def fit(self, sequences: Sequence[Tokens], on_step: OnStep | None = None) -> list[float]:
        """Blocking twin of `fit_async`."""
        return run_blocking(self.fit_async(sequences, on_step))

    def stop(self) -> None:
        """End a running fit after the step in flight; what was learned stays."""
        if self._loop is not None:
            self._loop.stopped = True

    def dispose(self) -> None:
        """Give the moments back."""
        if self._adam is not None:
            self._adam.free()
            self._adam = None
