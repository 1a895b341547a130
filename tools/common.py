"""What every script of tools/ shares: where things are, how a stage is reported, how bytes are verified.

Standard library only: tools/setup.py runs on the machine's own Python, before .venv exists.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("EVERMIND_CACHE") or ROOT / ".cache")
DIST = ROOT / "dist"
NODE_MODULES = ROOT / "node_modules"
VENV = ROOT / ".venv"
SECONDS_BETWEEN_LINES = 10.0  # of a stage that takes long


class ToolError(Exception):
    """A stage cannot go on; the text says why and what to do. Shown without a traceback."""


def load_module(path: Path) -> ModuleType:
    """Return a Python file as a module; for those whose name or place no `import` finds."""
    spec = importlib.util.spec_from_file_location(path.stem.replace(".", "_"), path)
    if spec is None or spec.loader is None:
        raise ToolError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def say(stage: str, text: str) -> None:
    """Print one line of progress: the stage's name, then what it did."""
    print(f"[{stage}] {text}", flush=True)


@contextlib.contextmanager
def working(stage: str, text: str) -> Iterator[None]:
    """Say what is being done for the time of the block, and that it goes on, every few seconds, until it ends."""
    say(stage, f"{text} …")
    started, ended = time.monotonic(), threading.Event()

    def remind() -> None:
        while not ended.wait(SECONDS_BETWEEN_LINES):
            say(stage, f"{text}: {time.monotonic() - started:.0f} s so far")

    reminder = threading.Thread(target=remind, daemon=True)
    reminder.start()
    try:
        yield
    finally:
        ended.set()
        reminder.join()


def fail(error: Exception) -> int:
    """Print `error` as the last word of a script and return its exit code."""
    print(f"error: {error}", file=sys.stderr, flush=True)
    return 1


def sha256(data: bytes) -> str:
    """Return the SHA-256 of `data` in hex."""
    return hashlib.sha256(data).hexdigest()


def fingerprint(*parts: Path | str) -> str:
    """Return one hash over texts and the contents of files, for "nothing changed since" stamps."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.read_bytes() if isinstance(part, Path) else part.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def stamped(stamp: Path, value: str) -> bool:
    """Say whether `stamp` holds `value`, that is whether the stage it guards is up to date."""
    return stamp.is_file() and stamp.read_text() == value


def megabytes(count: int) -> str:
    """Return a byte count for people: `3.1 MB`, or `285 KB` below a megabyte."""
    return f"{count / 1e6:.1f} MB" if count >= 1_000_000 else f"{count / 1e3:.0f} KB"
