"""Build this checkout's Python distributions with hatchling, in the environment that is there."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tools.common import ROOT, ToolError, working


def build(target: str, folder: Path, project: Path = ROOT) -> Path:
    """Build one distribution into `folder` and return its path.

    Args:
        target: "wheel" or "sdist".
        folder: made if it is missing; a file of the same name is replaced.
        project: the folder of its pyproject.toml.
    Raises:
        ToolError: the build failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", work]
        with working("dist", f"building the {target} of {project.name}"):
            done = subprocess.run(command, cwd=project, capture_output=True, text=True)
        built = list(Path(work).iterdir())
        if done.returncode or len(built) != 1:
            raise ToolError(f"the {target} could not be built:\n{(done.stderr or done.stdout)[-2000:]}")
        return built[0].rename(folder / built[0].name)


def desktop_wheel(folder: Path) -> Path:
    """Build the wheel of what no page runs."""
    return build("wheel", folder, ROOT / "desktop")
