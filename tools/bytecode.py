"""Compile the Python files of the runtime's archives to bytecode, so that the page starts faster.

`pyodide py-compile` does it; it needs the runtime's own Python, 3.13. With another Python the archives stay as
they are. Results are kept in the cache under the sha256 of what they were made from.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.common import CACHE, ToolError, sha256, working

RUNTIME_PYTHON = (3, 13)


def available() -> bool:
    """Say whether this Python can compile for the runtime."""
    return sys.version_info[:2] == RUNTIME_PYTHON


def compiled(archive: Path) -> Path:
    """Return the compiled copy of a wheel or zip, or the archive itself where that cannot be made.

    Raises:
        ToolError: `pyodide py-compile` failed.
    """
    if not available():
        return archive
    folder = CACHE / "bytecode" / sha256(archive.read_bytes())[:16]
    if not folder.is_dir():
        # One copy of each archive is enough: ours changes with every edit.
        for old in folder.parent.glob(f"*/{archive.name.split('-')[0]}-*"):
            shutil.rmtree(old.parent)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            copy = Path(work) / archive.name
            shutil.copyfile(archive, copy)
            command = [sys.executable, "-m", "pyodide_cli", "py-compile", "--silent", str(copy)]
            with working("dist", f"compiling {archive.name} to bytecode"):
                done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise ToolError(f"pyodide py-compile {archive.name}: {(done.stderr or done.stdout)[-1000:]}")
            (Path(work) / "done").mkdir()
            for result in Path(work).glob("*.*"):
                result.rename(Path(work) / "done" / result.name)
            (Path(work) / "done").rename(folder)
    return next(folder.iterdir())
