"""The loop over windows: one optimizer step each, with progress, Stop, and the loss read a few steps late."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from evermind_web.backend.base import Array, Backend, Buf, Reading
from evermind_web.batch import Item, Window, cut_windows
from evermind_web.errors import InvalidArgumentError, NonFiniteError
from evermind_web.flat_vector import FlatVector
from evermind_web.optim import DynamicLossScaler
from evermind_web.pace import Pace
from evermind_web.training.options import TrainingOptions

RECORD = 4  # floats kept of each step until they are read: loss, squared gradient norm, not-finite flag, unused
PATIENCE = 10  # overflows in a row, the loss scale at its floor, after which training stops
KEPT = "its step was not applied; use a smaller learning rate, or load an earlier state"


@dataclass(frozen=True, slots=True)
class StepInfo:
    """What is known of one optimizer step. Steps and epochs count from 1; `tokens` and `seconds` are sums so far."""

    step: int
    total_steps: int
    epoch: int
    epochs: int
    loss: float  # mean over the window (nats a token), with the weights before the step
    grad_norm: float
    tokens: int
    seconds: float
    skipped: bool  # the gradients overflowed and the weights stayed as they were
    loss_scale: float
    lr: float


@dataclass(frozen=True, slots=True)
class EvalInfo:
    """One evaluation of the validation sequences: after which step, its mean loss, the best so far, how many since."""

    step: int
    loss: float
    best_loss: float
    best_step: int
    without_gain: int


OnStep = Callable[[StepInfo], None]
OnEval = Callable[[EvalInfo], None]


class Steppable(Protocol):
    """What the loop drives: it queues one optimizer step for a window, and says where its numbers will be."""

    backend: Backend

    @property
    def trained(self) -> FlatVector:
        """The flat vector that is being trained."""
        ...

    def queue_step(self, window: Window, number: int, total: int, loss_scale: float) -> tuple[Buf, Buf, float]:
        """Queue everything from zeroed gradients to the update; returns loss (1), stats (2) and the lr."""
        ...

    def applied(self) -> None:
        """The step was not skipped."""
        ...

    async def validate(self) -> float:
        """Mean loss of the validation sequences."""
        ...


@dataclass(slots=True)
class Position:
    """Where a fit stands, so that it can be resumed: windows done, and sums of the epochs' losses.

    first_step: steps that the optimizer had applied when the fit began; its schedule counts from there.
    """

    window: int = 0
    first_step: int = 0
    sums: list[float] = field(default_factory=list)
    counts: list[float] = field(default_factory=list)
    tokens: int = 0


@dataclass(slots=True)
class _Pending:
    step: int
    epoch: int
    weight: float  # of its loss in the epoch's mean
    tokens: int
    loss_scale: float
    lr: float


@dataclass(slots=True)
class _Chunk:
    """Steps that were queued, and their numbers on the way back."""

    steps: list[_Pending]
    reading: Reading[list[Array]]


@dataclass(slots=True)
class Best:
    """The best evaluation so far: its loss and step, how many came after it, and the weights if they are kept.

    stood: the weights at which a fit was stopped, while the trained vector holds the best ones.
    """

    loss: float = math.inf
    step: int = 0
    without_gain: int = 0
    weights: FlatVector | None = None
    stood: FlatVector | None = None

    def show(self, trained: FlatVector, remember: bool) -> None:
        """Give the trained vector the best weights; `remember` where it stood, so that `go_on` can bring it back."""
        if self.weights is None:
            return
        if remember:
            self.stood = trained.like()
            self.stood.copy_from(trained)
        trained.copy_from(self.weights)

    def go_on(self, trained: FlatVector) -> None:
        """Bring the trained vector back to where it stood."""
        if self.stood is not None:
            trained.copy_from(self.stood)
            self.stood.free()
            self.stood = None

    def free(self) -> None:
        """Give the vectors back."""
        for vector in (self.weights, self.stood):
            if vector is not None:
                vector.free()
        self.weights = self.stood = None


@dataclass
class Loop:
    """One fit: epochs over the items in their order, `accum_steps` items a window."""

    job: Steppable
    options: TrainingOptions
    scaler: DynamicLossScaler | None = None
    on_step: OnStep | None = None
    on_eval: OnEval | None = None
    validating: bool = False
    position: Position = field(default_factory=Position)
    best: Best = field(default_factory=Best)
    stopped: bool = False
    keep: Callable[[], Awaitable[None]] | None = None  # called between steps, all of which are reported
    keep_seconds: float = 0.0  # at least so far apart
    resumable: bool = False  # whoever runs it keeps `best` of a fit that did not come to its end, and frees it
    _overflows: int = 0
    _flight: list[_Chunk] = field(default_factory=list)

    async def run(self, items: Sequence[Item]) -> list[float]:
        """Mean loss of each epoch, the last one partial if it was stopped. Raises NonFiniteError naming the step."""
        windows = self._windows(items)
        self._total, self._started = self.options.epochs * len(windows), time.perf_counter()
        at = self.position
        at.sums = at.sums or [0.0] * self.options.epochs
        at.counts = at.counts or [0.0] * self.options.epochs
        backend, best = self.job.backend, self.best
        # A scaler needs each step's flag before the next step. Elsewhere one chunk runs while the next one is queued.
        self._pace = Pace(1 if self.scaler else backend.steps_per_read)
        ahead = 1 if backend.steps_per_read > 1 and not self.scaler else 0
        ring, queued = backend.alloc((backend.steps_per_read, RECORD)), list[_Pending]()
        kept = self._started
        self.stopped = self.stopped or self._in_vain()
        try:
            while at.window < self._total and not self.stopped:
                queued.append(self._queue(windows, at.window, ring, len(queued)))
                at.window += 1
                due = self._due(at.window, len(windows))
                if due or len(queued) >= self._pace.chunk:
                    self._flight.append(_Chunk(queued, backend.start_read(ring)))
                    queued = []
                    keeping = self.keep is not None and time.perf_counter() - kept >= self.keep_seconds
                    await self._deliver(0 if due or keeping else ahead)
                    if due:
                        await self._evaluate()
                    if self.keep is not None and keeping:
                        await self.keep()
                        kept = time.perf_counter()
                    await asyncio.sleep(0)  # so that Stop, and everybody else, gets a turn
            if queued:
                self._flight.append(_Chunk(queued, backend.start_read(ring)))
            await self._deliver(0)
            if best.without_gain and self.options.keep_best:
                best.show(self.job.trained, remember=self.resumable and at.window < self._total)
        finally:
            for chunk in self._flight:
                chunk.reading.cancel()
            self._flight.clear()
            backend.free(ring)
            if at.window == self._total or not self.resumable:
                best.free()
        history = [s / c for s, c in zip(at.sums, at.counts, strict=True) if c]
        if at.window == self._total:
            self.position = Position()
        return history

    def _windows(self, items: Sequence[Item]) -> list[Window]:
        usable = [item for item in items if item.scored]
        if not usable:
            longest = max((len(item.tokens) for item in items), default=0)
            raise InvalidArgumentError(
                f"need at least 2 tokens, got {longest}: no sequence has a next token; give a longer text"
                if longest < 2
                else "every target is masked: nothing to learn from"
            )
        return cut_windows(usable, self.options.accum_steps)

    def _queue(self, windows: Sequence[Window], number: int, ring: Buf, slot: int) -> _Pending:
        backend, window = self.job.backend, windows[number % len(windows)]
        scale = self.scaler.scale if self.scaler else 1.0
        loss, stats, lr = self.job.queue_step(window, number + 1, self._total, scale)
        backend.copy(loss, 0, ring, slot * RECORD, 1)
        backend.copy(stats, 0, ring, slot * RECORD + 1, 2)
        backend.flush()
        weight = window.scored if self.options.loss_reduction == "token" else len(window)
        return _Pending(number + 1, number // len(windows), weight, window.scored, scale, lr)

    async def _deliver(self, ahead: int) -> None:
        """Wait for the numbers of all chunks but the newest `ahead`, and report them."""
        while len(self._flight) > ahead:
            chunk = self._flight[0]
            (rows,) = await chunk.reading
            self._flight.remove(chunk)
            self._pace.delivered(len(chunk.steps))
            self._report(rows[: len(chunk.steps)].tolist(), chunk.steps)

    def _report(self, rows: list[list[float]], steps: list[_Pending]) -> None:
        at = self.position
        for (loss, square, bad, _), p in zip(rows, steps, strict=True):
            self._check(p, loss, bool(bad))
            at.sums[p.epoch] += loss * p.weight
            at.counts[p.epoch] += p.weight
            at.tokens += p.tokens
            if self.on_step:
                seconds = time.perf_counter() - self._started
                norm = math.sqrt(square) if square >= 0 else math.nan
                where = (p.step, self._total, p.epoch + 1, self.options.epochs)
                self.on_step(StepInfo(*where, loss, norm, at.tokens, seconds, bool(bad), p.loss_scale, p.lr))

    def _check(self, p: _Pending, loss: float, overflow: bool) -> None:
        if not math.isfinite(loss):
            raise NonFiniteError(f"loss is not finite at step {p.step}: {KEPT}")
        if self.scaler is None:
            if overflow:
                raise NonFiniteError(f"gradients are not finite at step {p.step}: {KEPT}")
            self.job.applied()
            return
        at_floor = self.scaler.scale <= self.scaler.min_scale
        self._overflows = self._overflows + 1 if overflow else 0
        if self.scaler.update(overflow):
            self.job.applied()
        elif at_floor and self._overflows >= PATIENCE:
            raise NonFiniteError(f"gradients not finite for {self._overflows} steps, up to step {p.step}: {KEPT}")

    def _due(self, done: int, per_epoch: int) -> bool:
        return self.validating and done % (self.options.eval_every or per_epoch) == 0

    async def _evaluate(self) -> None:
        best, loss, step = self.best, await self.job.validate(), self.position.window
        if loss < best.loss:
            best.loss, best.step, best.without_gain = loss, step, 0
            if self.options.keep_best:
                if best.weights is None:
                    best.weights = self.job.trained.like()
                best.weights.copy_from(self.job.trained)
        else:
            best.without_gain += 1
        if self.on_eval:
            self.on_eval(EvalInfo(step, loss, best.loss, best.step, best.without_gain))
        self.stopped = self.stopped or self._in_vain()

    def _in_vain(self) -> bool:
        return bool(self.options.patience) and self.best.without_gain >= self.options.patience
