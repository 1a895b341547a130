"""Progress of a long job as plain dicts: what phase, how far, how fast, how long still."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from evermind_web.training import StepInfo

Report = Callable[[dict[str, Any]], None]
# A fast GPU makes hundreds of steps a second; more than about 20 reports a second only keep the page busy.
MIN_SECONDS_BETWEEN = 0.05
MAX_POINTS = 300  # of a curve that is kept


class TrainingProgress:
    """Turns steps into reports `{phase, step, total_steps, points, tokens_per_second, seconds_left}`.

    `points` are [step, loss, gradient norm] and `held_out` [step, loss], each since the report before, so that no point
    of a curve is lost. `skipped` counts steps whose gradients overflowed.
    """

    def __init__(self, report: Report | None, phase: str) -> None:
        self._report = report
        self._phase = phase
        self._points: list[list[float]] = []
        self._last_report = 0.0
        self._earlier, self._shown = 0.0, 0
        self.steps = self.total_steps = 0
        self.tokens = 0
        self.seconds = 0.0
        self.losses: list[float] = []
        self._curve: list[list[float]] = []
        self._held_out: list[list[float]] = []
        self._unsent: list[list[float]] = []
        self._skipped = 0

    def __call__(self, info: StepInfo) -> None:
        self.steps, self.tokens, self.seconds = info.step, info.tokens, info.seconds
        self.seconds += self._earlier
        self.total_steps = info.total_steps
        self.losses.append(info.loss)
        if info.step > self._shown:  # after a lost device a few steps are made again, with the same losses
            self._shown = info.step
            self._points.append([info.step, info.loss, info.grad_norm])
            self._curve.append(self._points[-1])
            self._skipped += info.skipped
        now = time.monotonic()
        if self._report and (now - self._last_report >= MIN_SECONDS_BETWEEN or self.steps == info.total_steps):
            self._last_report = now
            left = (info.total_steps - self.steps) * self.seconds / max(self.steps, 1)
            self._report(
                {
                    "phase": self._phase,
                    "step": self.steps,
                    "total_steps": info.total_steps,
                    "points": self._points,
                    "held_out": self._unsent,
                    "skipped": self._skipped,
                    "tokens_per_second": self.tokens_per_second,
                    "seconds_left": left,
                }
            )
            self._points, self._unsent = [], []

    def measured(self, step: int, loss: float) -> None:
        """The loss on text that is held out, after `step`; one that was measured before a lost device counts once."""
        if not self._held_out or step > self._held_out[-1][0]:
            self._held_out.append([step, loss])
            self._unsent.append([step, loss])

    def record(self) -> dict[str, Any]:
        """What is kept of the run: both curves, the longer one thinned out, with four decimals."""
        every = -(-len(self._curve) // MAX_POINTS) or 1
        curve = [p for i, p in enumerate(self._curve) if i % every == 0 or p is self._curve[-1]]
        return {
            "points": [[round(v, 4) for v in p] for p in curve],
            "held_out": [[step, round(loss, 4)] for step, loss in self._held_out],
            "skipped": self._skipped,
        }

    def rewind(self, step: int, tokens: int) -> None:
        """The run goes on from `step`, with that many tokens seen; the time that was spent stays."""
        self._earlier = self.seconds
        self.steps, self.tokens = step, tokens
        del self.losses[step:]

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


def phase_report(report: Report | None, phase: str) -> Callable[[int, int], None]:
    """A `(done, total)` callback for steps that have no loss, such as the tokenizer's merges."""
    last = 0.0

    def on_progress(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if report and (now - last >= MIN_SECONDS_BETWEEN or done >= total):
            last = now
            report({"phase": phase, "step": int(done), "total_steps": int(total)})

    return on_progress
