"""`make setup`: .venv, node_modules, the wheels that Pyodide needs, and a Chromium.

Runs on the machine's Python with the standard library alone. Each stage is guarded by a stamp, so that a
second run only looks; each says what it did in one line.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tools.common import NODE_MODULES, ROOT, VENV, ToolError, fail, fingerprint, say, stamped, working
from tools.pythons import ACCEPTED, choose, probe

REQUIREMENTS = ROOT / "tools" / "requirements-dev.txt"
VENV_PYTHON = VENV / "bin" / "python"


def call(stage: str, *command: str | Path) -> None:
    """Run a command in the repository's root; its output is shown as it comes.

    Raises:
        ToolError: it failed.
    """
    try:
        subprocess.run([str(part) for part in command], cwd=ROOT, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ToolError(f"{stage}: {error}") from error


def make_venv() -> str:
    """Create .venv, or keep the one that is there, and return its version, such as `3.13`."""
    found = probe(VENV_PYTHON, "import sys; print(*sys.version_info[:3], sys.executable)")
    if found and found[0][:2] in ACCEPTED and not os.environ.get("PYTHON"):
        version = found[0]
        done = "kept"
    else:
        version, python = choose()
        if found and found[0] == version:
            done = "kept"
        else:
            done = f"made with {python}"
            with working("python", f"making .venv with {python}"):
                call("python", python, "-m", "venv", "--clear", VENV)
    number = ".".join(map(str, version))
    without = "" if version[:2] == ACCEPTED[0] else " (no bytecode copy in dist/: that takes Python 3.13)"
    say("python", f"{number}, .venv {done}{without}")
    return number


def install_python_packages(version: str) -> None:
    """Install the pinned development tools, and this checkout in place, into .venv."""
    stamp = VENV / ".evermind-stamp"
    value = fingerprint(version, REQUIREMENTS, ROOT / "pyproject.toml")
    if stamped(stamp, value):
        say("pip", "up to date")
        return
    started = time.monotonic()
    pip = (VENV_PYTHON, "-m", "pip", "install", "-qq", "--disable-pip-version-check")
    with working("pip", "installing the pinned development tools"):
        call("pip", *pip, "--require-hashes", "-r", REQUIREMENTS)
    with working("pip", "building this checkout in place"):
        call("pip", *pip, "--no-deps", "--no-build-isolation", "--editable", ROOT)
    stamp.write_text(value)
    say("pip", f"installed in {time.monotonic() - started:.0f} s")


def install_node_packages() -> None:
    """Install the locked JavaScript libraries into node_modules/."""
    stamp = NODE_MODULES / ".evermind-stamp"
    value = fingerprint(ROOT / "package-lock.json")
    if stamped(stamp, value):
        say("npm", "up to date")
        return
    if not shutil.which("npm"):
        raise ToolError("npm is not on the path: install Node.js 20 or newer with npm")
    started = time.monotonic()
    with working("npm", "installing the locked JavaScript libraries"):
        call("npm", "npm", "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts")
    stamp.write_text(value)
    say("npm", f"installed in {time.monotonic() - started:.0f} s")


def main() -> int:
    """Run all stages in order; the first that fails ends the set-up."""
    try:
        install_python_packages(make_venv())
        install_node_packages()
        call("runtime", VENV_PYTHON, "-m", "tools.runtime")
        call("chromium", VENV_PYTHON, "-m", "tools.chromium")
    except ToolError as error:
        return fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
