"""The argument parser, and what is common to all commands: errors in one line, notes on stderr, exit codes."""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from evermind_web._version import __version__
from evermind_web.cli import bench, convert, generate, inspect_command, personalize, train
from evermind_web.cli.options import UsageError
from evermind_web.cli.progress import say
from evermind_web.errors import EvermindError

COMMANDS = (train, generate, personalize, bench, inspect_command, convert)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (wrong usage raises SystemExit(2), as argparse does)."""
    _open_streams()
    arguments = _parser().parse_args(argv)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = _note
            asyncio.run(arguments.run(arguments))
            sys.stdout.flush()
    except UsageError as error:
        return _fail(str(error), 2)
    except EvermindError as error:
        return _fail(str(error))
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except MemoryError:
        return _fail("out of memory; choose smaller sizes, or a shorter text")
    except KeyboardInterrupt:
        say("\ninterrupted; nothing more was saved")
        return 130
    return 0


def _open_streams() -> None:
    """A stream that was closed swallows what it is given; one of a small encoding shows "?" for what it lacks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="evermind_web", description="Train, personalise and run a small language model.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"evermind_web {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        summary = (command.__doc__ or "").strip().splitlines()[0]
        name = command.NAME
        sub = commands.add_parser(
            name,
            help=summary,
            description=summary,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
            allow_abbrev=False,
        )
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    return parser


def _fail(message: str, code: int = 1) -> int:
    print(f"evermind_web: error: {' '.join(message.split())}", file=sys.stderr)
    return code


def _note(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    print(f"evermind_web: note: {message}", file=sys.stderr)
