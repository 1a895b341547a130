"""One training run of the page that a lost GPU does not end.

Every two seconds the run keeps a snapshot in memory. When the device is lost, a new one is opened (NumPy, if there is
none or too many were lost), the model is made anew, and the run goes on from its last snapshot, as if nothing had
happened.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from evermind_web import EvermindLMLoRA
from evermind_web.errors import DeviceLostError, EvermindError
from evermind_web.model import EvermindLM
from evermind_web.session import texts
from evermind_web.session.progress import Report, TrainingProgress, phase_report
from evermind_web.training import EvalInfo, EvermindLMTrainer, Snapshot, StepInfo

SNAPSHOT_SECONDS = 2.0
WATCHED = 8  # windows of held-out text that are measured while learning
MAX_LOST = 3  # devices that a run may lose; after the last one it runs on NumPy

M = TypeVar("M", EvermindLM, EvermindLMLoRA)


@dataclass
class Learner(Generic[M]):
    """What is trained: the model that is measured, who trains it, and the call that does."""

    model: M
    trainer: EvermindLMTrainer | EvermindLMLoRA
    fit: Callable[..., Coroutine[Any, Any, list[float]]]

    def dispose(self, keep_model: bool = False) -> None:
        """Free what the trainer took, and the model unless it is to be kept."""
        with suppress(EvermindError):  # of a lost device
            if isinstance(self.trainer, EvermindLMTrainer):
                self.trainer.dispose()
            if not keep_model:
                self.model.dispose()


class Fitting(Generic[M]):
    """A run: `await run(corpus)`, `stop()`. `learner` is the one of the device that is used now.

    make: a fresh learner on the session's device. recover(numpy): opens a device again, NumPy if so wanted; returns
    its name.
    """

    def __init__(
        self, make: Callable[[], Learner[M]], recover: Callable[[bool], Awaitable[str]], report: Report | None
    ) -> None:
        self.learner: Learner[M] = make()
        self.progress = TrainingProgress(report, "train")
        self.stopping = self.paused = False
        self._awake = asyncio.Event()  # set when a pause is over
        self.notices: list[str] = []
        self._watched: list[list[int]] = []
        self._make: Callable[[], Learner[M]] = make
        self._recover, self._report = recover, report
        self._snapshot: Snapshot | None = None
        self._lost = 0

    def stop(self) -> None:
        """End after the step in flight."""
        self.stopping = True
        self._awake.set()
        self.learner.trainer.stop()

    def pause(self, on: bool) -> None:
        """Rest after the step in flight, or go on from the last snapshot."""
        self.paused = on
        if on:
            self._awake.clear()
            self.learner.trainer.stop()
        else:
            self._awake.set()

    async def _rested(self) -> bool:
        """Wait while the run is paused; whether it is to go on then."""
        if not self.paused:
            return False
        await self._awake.wait()
        if self.stopping:
            return False
        self.learner.dispose()
        self._rewind()
        return True

    async def run(self, corpus: texts.Split) -> dict[str, Any]:
        """Measure, fit, measure again. Losses are in nats per token. Raises DeviceLostError after too many losses."""
        held_out = texts.windows_in_order(corpus.held_out)
        measuring = phase_report(self._report, "evaluate")
        measuring(0, 1)
        await asyncio.sleep(0)
        self._watched = held_out[:: -(-len(held_out) // WATCHED)]
        before: float | None = None
        while True:
            try:
                if before is None:
                    before = float(await self.learner.model.evaluate_async(held_out))
                    self.progress.measured(0, before)
                after = before
                if not self.stopping or self._snapshot:
                    await self._fit()
                    while await self._rested():
                        await self._fit()
                    measuring(1, 1)
                    after = float(await self.learner.model.evaluate_async(held_out))
                return self._result(before, after, corpus)
            except DeviceLostError as error:
                await self._go_on(error)

    async def _fit(self) -> None:
        options: dict[str, Any] = {"on_snapshot": self._keep, "snapshot_seconds": SNAPSHOT_SECONDS}
        options |= {"validation": self._watched, "on_eval": self._on_eval}
        if self._snapshot:
            options["resume"] = self._snapshot
        await self.learner.fit(on_step=self._on_step, **options)

    def _on_step(self, info: StepInfo) -> None:
        self.progress(info)
        if self.stopping:
            self.learner.trainer.stop()

    def _on_eval(self, info: EvalInfo) -> None:
        self.progress.measured(info.step, info.loss)

    def _keep(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    async def _go_on(self, error: DeviceLostError) -> None:
        self._lost += 1
        if self._lost > MAX_LOST:
            raise error
        self.learner.dispose()
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
        """A fresh learner that will start at the last snapshot; returns its step."""
        kept = self._snapshot
        step = kept.step if kept else 0
        self.progress.rewind(step, kept.position.tokens if kept else 0)
        self.learner = self._make()
        return step

    def _result(self, before: float, after: float, corpus: texts.Split) -> dict[str, Any]:
        progress = self.progress
        last = progress.losses[-5:]
        return {
            "steps": progress.steps,
            "tokens": progress.tokens,
            "seconds": progress.seconds,
            "tokens_per_second": progress.tokens_per_second,
            "stopped": self.stopping,
            "loss_before": before,
            "loss_after": after,
            "first_loss": progress.losses[0] if progress.losses else None,
            "last_loss": sum(last) / len(last) if last else None,
            "unigram": corpus.unigram,
            "record": progress.record(),
            "notices": self.notices,
        }


NAMES = {"webgpu": "WebGPU", "numpy": "NumPy", "wgpu": "native WebGPU"}


def reason_of(error: DeviceLostError) -> str:
    """What the device said, from the error's text."""
    found = re.search(r"\((.*)\)", str(error))
    return found[1] if found else "no reason given"
