"""Find the Python that .venv is made with.

Python 3.13 is Pyodide 0.28's own minor version: with it `make dist` can lay compiled bytecode beside
the wheel. 3.12 and 3.11 do everything else. Newer ones are passed over: NumPy 2.2 has no wheels for them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.common import ToolError

ACCEPTED = ((3, 13), (3, 12), (3, 11))  # best first
PROBE = "import sys, venv, ensurepip; print(*sys.version_info[:3], sys.executable)"


def probe(python: str | Path, code: str = PROBE) -> tuple[tuple[int, int, int], Path] | None:
    """Return version and path of a Python that runs and can make environments, else None."""
    try:
        done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, timeout=20, check=True)
        major, minor, patch, path = done.stdout.split(maxsplit=3)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return (int(major), int(minor), int(patch)), Path(path.strip())


def candidates() -> Iterator[str | Path]:
    """Yield the Pythons worth asking: the path's by version, pyenv's, then the one running now."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for major, minor in ACCEPTED:
        # A pyenv shim of a version that is not selected exists but does not run, so both are asked.
        if found := shutil.which(f"python{major}.{minor}"):
            yield found
        with contextlib.suppress(OSError):  # another user's pyenv may be closed to this one
            yield from sorted(pyenv.glob(f"{major}.{minor}.*/bin/python"), reverse=True)
    yield sys.executable


def choose() -> tuple[tuple[int, int, int], Path]:
    """Return the best Python, or `$PYTHON` if that is set.

    Raises:
        ToolError: none fits.
    """
    wanted = os.environ.get("PYTHON")
    for python in [wanted] if wanted else candidates():
        found = probe(python)
        if found and found[0][:2] in ACCEPTED:
            return found
    names = ", ".join(f"{major}.{minor}" for major, minor in ACCEPTED)
    raise ToolError(
        f"no usable Python ({names}, with the modules venv and ensurepip): "
        f"{f'PYTHON={wanted} is not one' if wanted else 'none on the path or under pyenv'}. "
        "Install one (on Debian: apt-get install python3 python3-venv) or name one with PYTHON=…"
    )
