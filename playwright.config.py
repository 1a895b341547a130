"""The one place that says how the browser is started: path, flags, viewport and time limits.

Tests, demo and bench import this through `tools.browser`.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tools.chromium import find
from tools.common import ToolError

HEADLESS = os.environ.get("HEADED") != "1"
VIEWPORT = {"width": 1280, "height": 900}

LAUNCH_TIMEOUT_MS = 60_000
ACTION_TIMEOUT_MS = 20_000  # one click, one element that should be there
READY_TIMEOUT_MS = 60_000  # Pyodide and the wheel loaded, two loaded cores
PYTHON_TIMEOUT_S = 180.0  # one piece of Python in the harness page
STORY_TIMEOUT_MS = 240_000  # one training run on the page

# WebGPU without a GPU: SwiftShader runs the kernels on the CPU.
WEBGPU = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]
QUIET = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
]


def chromium() -> Path:
    """Return the browser's executable.

    Raises:
        ToolError: there is none.
    """
    path = find()
    if path is None:
        raise ToolError("no Chromium found: run `make setup`, or set CHROMIUM=/path/to/chromium")
    return path


def sandbox_flags() -> list[str]:
    """Return `--no-sandbox` where Chromium's sandbox cannot work: as root, or without user namespaces."""
    if os.geteuid() == 0:
        return ["--no-sandbox"]
    try:
        done = subprocess.run(["unshare", "--user", "true"], capture_output=True)
        return [] if done.returncode == 0 else ["--no-sandbox"]
    except OSError:
        return ["--no-sandbox"]


def flags(webgpu: bool = True) -> list[str]:
    """Return the command line; `webgpu=False` takes navigator.gpu away."""
    headless = ["--headless=new"] if HEADLESS else []
    return [*headless, *(WEBGPU if webgpu else ["--disable-features=WebGPU"]), *QUIET, *sandbox_flags()]
