"""Progress on stderr: a bar of `rich` on a terminal where it is installed, else a plain line now and then."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from evermind_web.training import EvalInfo, StepInfo

SECONDS_BETWEEN_LINES = 2.0


def say(text: str) -> None:
    """A line on stderr. Where nobody reads it any more, the work goes on all the same."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


class Progress(Protocol):
    """What a training run reports to."""

    def on_step(self, info: StepInfo) -> None:
        """One optimizer step."""
        ...

    def on_count(self, done: int, total: int) -> None:
        """Something without a loss: merges of a tokenizer."""
        ...

    def on_eval(self, info: EvalInfo) -> None:
        """An evaluation."""
        ...


@contextlib.contextmanager
def progress(what: str) -> Iterator[Progress]:
    """A bar or lines, for the time of the block."""
    if not (sys.stderr.isatty() and importlib.util.find_spec("rich")):
        yield _Lines(what)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with RichProgress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True)) as bar:
        yield _Bar(bar, what)


class _Lines:
    def __init__(self, what: str) -> None:
        self.what, self._last = what, 0.0

    def on_step(self, info: StepInfo) -> None:
        left = (info.total_steps - info.step) * info.seconds / max(info.step, 1)
        self._line(info.step, info.total_steps, f"{_note(info)}, {left:.0f} s left")

    def on_count(self, done: int, total: int) -> None:
        self._line(done, total, "")

    def on_eval(self, info: EvalInfo) -> None:
        say(_evaluation(info))

    def _line(self, done: int, total: int, note: str) -> None:
        now = time.monotonic()
        if done >= total or now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            say(f"{self.what} {done}/{total} {note}".rstrip())


class _Bar:
    def __init__(self, bar: Any, what: str) -> None:
        self._bar, self._task = bar, bar.add_task(what, total=None, note="")

    def on_step(self, info: StepInfo) -> None:
        self._bar.update(self._task, completed=info.step, total=info.total_steps, note=_note(info))

    def on_count(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)

    def on_eval(self, info: EvalInfo) -> None:
        with contextlib.suppress(OSError):
            self._bar.console.print(_evaluation(info))


def heeding(
    report: Callable[[StepInfo], None], came: list[int], stop: Callable[[], None]
) -> Callable[[StepInfo], None]:
    """`report`, which also stops a run whose signal came before it had begun to listen."""

    def on_step(info: StepInfo) -> None:
        report(info)
        if came:
            stop()

    return on_step


def _note(info: StepInfo) -> str:
    speed = info.tokens / info.seconds if info.seconds > 0 else 0.0
    return f"loss {info.loss:.3f}, {speed:,.0f} tokens/s" + (" (step skipped: overflow)" if info.skipped else "")


def _evaluation(info: EvalInfo) -> str:
    best = "" if info.best_step == info.step else f" (best {info.best_loss:.4f} at step {info.best_step})"
    return f"step {info.step}: validation loss {info.loss:.4f}{best}"


@contextlib.contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[list[int]]:
    """The first Ctrl-C (SIGTERM, a terminal that closes) calls `stop`, the second interrupts. Yields what came."""
    seen: list[int] = []

    def handle(number: int, _frame: Any) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)
        say("\nstopping after this step; once more to interrupt")
        stop()

    numbers = [signal.SIGINT, signal.SIGTERM]
    hangup = getattr(signal, "SIGHUP", None)  # not on Windows
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:  # which is what nohup wants
        numbers.append(hangup)
    main = threading.current_thread() is threading.main_thread()  # only there can handlers be set
    before = {number: signal.signal(number, handle) for number in numbers if main}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
