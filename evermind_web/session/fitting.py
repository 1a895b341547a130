"""One training run of the page that a lost GPU does not end.

Every two seconds the run keeps a snapshot in memory. When the device is lost, a new one is opened (NumPy, if there is
none or too many were lost), the model is made anew, and the run goes on from its last snapshot, as if nothing had
happened.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from evermind_web.batch import Example, Tokens, check_item, token_weights
from evermind_web.errors import DeviceLostError, EvermindError
from evermind_web.lora import LoraModel
from evermind_web.model import EvermindLM
from evermind_web.session.progress import Report, TrainingProgress, phase_report
from evermind_web.store.base import now_utc
from evermind_web.training import EvalInfo, EvermindLMTrainer, Snapshot, StepInfo

SNAPSHOT_SECONDS = 2.0
MAX_LOST = 3  # devices that a run may lose; after the last one it runs on NumPy

M = TypeVar("M", EvermindLM, LoraModel)


@dataclass(frozen=True)
class Lesson:
    """What is learned: windows, options of the fit, text held out to measure, what of it is watched meanwhile.

    unigram: nats a token that guessing by frequency alone would cost.
    """

    windows: Sequence[Tokens | Example]
    options: dict[str, Any]
    held_out: Sequence[Tokens | Example]
    watched: Sequence[Tokens | Example]
    unigram: float


@dataclass
class Learner(Generic[M]):
    """What is trained: the model that is measured, who trains it, and the call that does."""

    model: M
    trainer: EvermindLMTrainer | LoraModel
    fit: Callable[..., Coroutine[Any, Any, list[float]]]

    def dispose(self, keep_model: bool = False) -> None:
        """Free what the trainer took, and the model unless it is to be kept."""
        with suppress(EvermindError):  # of a lost device
            if isinstance(self.trainer, EvermindLMTrainer):
                self.trainer.dispose()
            if not keep_model:
                self.model.dispose()


class Fitting(Generic[M]):
    """A run: `await run()`, `stop()`, `dispose()`.

    make: a fresh learner on the session's device. recover(numpy): opens a device again, NumPy if so wanted; returns
    its name. take: reads what is wanted of the trained model, which may be lost until it has been read; then it is in
    `taken`.
    """

    def __init__(
        self,
        lesson: Lesson,
        make: Callable[[], Learner[M]],
        recover: Callable[[bool], Awaitable[str]],
        report: Report | None,
        take: Callable[[M], Awaitable[bytes]] | None = None,
    ) -> None:
        self.lesson = lesson
        self.taken = b""
        self._learner: Learner[M] | None = None  # the one of the device that is used now
        self.progress = TrainingProgress(report, "train")
        self.stopping = self.paused = False
        self._awake = asyncio.Event()  # set when a pause is over
        self.notices: list[str] = []
        self._make: Callable[[], Learner[M]] = make
        self._recover, self._report = recover, report
        self._take: Callable[[M], Awaitable[bytes]] | None = take
        self._snapshot: Snapshot | None = None
        self._lost = 0

    def stop(self) -> None:
        """End after the step in flight."""
        self.stopping = True
        self._awake.set()
        self._end()

    def _end(self) -> None:
        if self._learner is not None:
            self._learner.trainer.stop()

    @property
    def learner(self) -> Learner[M]:
        """Made when it is first needed: that needs the device, which may be lost any time."""
        if self._learner is None:
            self._learner = self._make()
        return self._learner

    def dispose(self, keep_model: bool = False) -> None:
        """Free the learner; another one is made if the run goes on."""
        if self._learner is not None:
            self._learner.dispose(keep_model)
            self._learner = None

    def pause(self, on: bool) -> None:
        """Rest after the step in flight, or go on from the last snapshot."""
        self.paused = on
        if on:
            self._awake.clear()
            self._end()
        else:
            self._awake.set()

    async def _rested(self) -> bool:
        """Wait while the run is paused; whether it is to go on then."""
        if not self.paused:
            return False
        await self._awake.wait()
        if self.stopping:
            return False
        self.dispose()
        self._rewind()
        return True

    async def run(self) -> dict[str, Any]:
        """Measure, fit, measure again. Losses are in nats per token. Raises DeviceLostError after too many losses."""
        measuring = phase_report(self._report, "evaluate")
        measuring(0, 1)
        await asyncio.sleep(0)
        before: float | None = None
        while True:
            try:
                if before is None:
                    before = await self._measure()
                    self.progress.measured(0, before)
                after = before
                if not self.stopping or self._snapshot:
                    await self._fit()
                    while await self._rested():
                        await self._fit()
                    measuring(1, 1)
                    after = await self._measure()
                if self._take and self.progress.steps:
                    self.taken = await self._take(self.learner.model)
                return self._result(before, after)
            except DeviceLostError as error:
                await self._go_on(error)

    async def _measure(self) -> float:
        model = self.learner.model
        items = [check_item(window, model.config.vocab_size) for window in self.lesson.held_out]
        return await model.evaluate_items(items, token_weights(items))

    async def _fit(self) -> None:
        options: dict[str, Any] = {"on_snapshot": self._keep, "snapshot_seconds": SNAPSHOT_SECONDS}
        options |= {"validation": self.lesson.watched, "on_eval": self._on_eval}
        if self._snapshot:
            options["resume"] = self._snapshot
        await self.learner.fit(on_step=self._on_step, **options)

    def _on_step(self, info: StepInfo) -> None:
        self.progress(info)
        if self.stopping:
            self._end()

    def _on_eval(self, info: EvalInfo) -> None:
        self.progress.measured(info.step, info.loss)

    def _keep(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    async def _go_on(self, error: DeviceLostError) -> None:
        self._lost += 1
        if self._lost > MAX_LOST:
            raise error
        self.dispose()
        backend = await self._recover(self._lost == MAX_LOST)
        reached, step = self.progress.steps, self._rewind()
        self.notices.append(
            f"GPU lost at step {reached} ({reason_of(error)}); last checkpoint: step {step}. "
            f"Learning goes on from there with {NAMES.get(backend, backend)}."
        )
        if self._report:
            where = {"step": step, "total_steps": self.progress.total_steps}
            self._report({"phase": "train", **where, "points": [], "notice": self.notices[-1]})

    def _rewind(self) -> int:
        """The next learner will start at the last snapshot; returns its step."""
        kept = self._snapshot
        step = kept.step if kept else 0
        self.progress.rewind(step, kept.position.tokens if kept else 0)
        return step

    def _result(self, before: float, after: float) -> dict[str, Any]:
        progress = self.progress
        last = progress.losses[-5:]
        return {
            "date": now_utc(),
            "steps": progress.steps,
            "tokens": progress.tokens,
            "seconds": progress.seconds,
            "tokens_per_second": progress.tokens_per_second,
            "stopped": self.stopping,
            "loss_before": before,
            "loss_after": after,
            "first_loss": progress.losses[0] if progress.losses else None,
            "last_loss": sum(last) / len(last) if last else None,
            "unigram": self.lesson.unigram,
            "record": progress.record(),
            "notices": self.notices,
        }


NAMES = {"webgpu": "WebGPU", "numpy": "NumPy", "wgpu": "native WebGPU"}


def reason_of(error: DeviceLostError) -> str:
    """What the device said, from the error's text."""
    found = re.search(r"\((.*)\)", str(error))
    return found[1] if found else "no reason given"
