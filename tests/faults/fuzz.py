"""Runs a parser on broken files and holds it to four promises.

It ends with a result or an EvermindError; within a second of processor time; having taken at most 4 times the file
plus 1 MiB of memory; and without a partial effect (which `Parser.check` asserts).
"""

from __future__ import annotations

import random
import signal
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from evermind_web.errors import EvermindError
from tests.faults.parsers import Parser

SECONDS = 1.0
HANG_SECONDS = 5.0  # then it is interrupted
EXTRA_BYTES, TIMES = 1 << 20, 4


class Broken(AssertionError):
    """A promise was broken; `data` is the file that did it."""

    def __init__(self, parser: str, why: str, data: bytes) -> None:
        shown = data if len(data) <= 400 else data[:400] + b"..."
        super().__init__(f"{parser}: {why}; {len(data)} bytes: {shown!r}")
        self.data = data


class _Hang(BaseException):
    pass


@dataclass
class Tally:
    """What a run met: how many files were refused and accepted, the slowest (s) and the largest use of memory (B)."""

    refused: int = 0
    accepted: int = 0
    slowest: float = 0.0
    largest: int = 0


@contextmanager
def watching() -> Iterator[None]:
    """Measures memory and interrupts what hangs, while inputs are run."""
    own = not tracemalloc.is_tracing()

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _Hang

    before = signal.signal(signal.SIGPROF, interrupt)
    if own:
        tracemalloc.start(1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        if own:
            tracemalloc.stop()


def attack(parser: Parser, data: bytes, tally: Tally) -> None:
    """Run one input. Raises Broken."""
    tracemalloc.reset_peak()
    held, started = tracemalloc.get_traced_memory()[0], time.process_time()
    signal.setitimer(signal.ITIMER_PROF, HANG_SECONDS)
    try:
        parser.check(data)
        tally.accepted += 1
    except EvermindError as error:
        tally.refused += 1
        if not str(error):
            raise Broken(parser.name, "an error without words", data) from error
    except _Hang:
        raise Broken(parser.name, f"still busy after {HANG_SECONDS} s", data) from None
    except Exception as error:
        raise Broken(parser.name, f"{type(error).__name__}: {error}", data) from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    seconds, used = time.process_time() - started, tracemalloc.get_traced_memory()[1] - held
    tally.slowest, tally.largest = max(tally.slowest, seconds), max(tally.largest, used)
    if seconds > SECONDS:
        raise Broken(parser.name, f"took {seconds:.1f} s", data)
    if used > TIMES * len(data) + EXTRA_BYTES:
        raise Broken(parser.name, f"took {used} bytes of memory", data)


def run(parser: Parser, count: int, seed: int, broken: Callable[[Broken], None] | None = None) -> Tally:
    """Run the valid files, which have to be accepted, then `count` broken ones. `broken` may go on after a failure."""
    source, seeds, tally = random.Random(f"{parser.name} {seed}"), parser.seeds(), Tally()
    # Made before the memory is watched, which takes three times as long as what it watches.
    files = [source.choice(parser.mutators)(source.choice(seeds), source) for _ in range(count)]
    with watching(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for data in seeds:
            parser.check(data)  # warms caches up, which are no use of memory of an input
            attack(parser, data, tally)
        if tally.accepted != len(seeds):
            raise Broken(parser.name, "refused a valid file", seeds[0])
        for data in files:
            try:
                attack(parser, data, tally)
            except Broken as error:
                if broken is None:
                    raise
                broken(error)
    return tally
