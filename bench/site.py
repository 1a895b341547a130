"""`python -m bench.site FOLDER`: the benchmark page, what it loads, and the peers, in a folder that travels small."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tools.build_dist import BENCH, build
from tools.common import DIST, ROOT, ToolError, fail, megabytes, say

PEERS = ROOT / "bench" / "peers"
PAGE = (*BENCH, "evermind.json")
RUNTIME = ("pyodide.mjs", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")


def bundle_peers(folder: Path) -> None:
    """Install the peers, if they are not, and bundle each into one module.

    Raises:
        ToolError: npm or the bundler failed.
    """
    commands = [["node", "build.mjs", str(folder)]]
    if not (PEERS / "node_modules").is_dir():
        commands.insert(0, ["npm", "ci", "--no-audit", "--no-fund"])
    for command in commands:
        done = subprocess.run(command, cwd=PEERS, capture_output=True, text=True)
        if done.returncode:
            raise ToolError(f"{' '.join(command)} failed:\n{(done.stderr or done.stdout)[-1500:]}")


def needed(dist: Path) -> list[str]:
    """Names below dist/ that the page and its worker load."""
    manifest = json.loads((dist / "evermind.json").read_text())
    packages = json.loads((dist / "pyodide" / "pyodide-lock.json").read_text())["packages"]
    wheels, waiting = set[str](), [manifest["package"]]
    while waiting:
        entry = packages[waiting.pop()]
        if entry["file_name"] not in wheels:
            wheels.add(entry["file_name"])
            waiting += entry["depends"]
    modules = [path.name for path in dist.glob("*.mjs") if path.name.startswith("bridge")]
    return [*PAGE, *modules, *(f"pyodide/{name}" for name in (*RUNTIME, *sorted(wheels)))]


def make(folder: Path) -> None:
    """Fill `folder`, emptied first."""
    folder = folder.resolve()  # the bundler runs elsewhere
    build()
    shutil.rmtree(folder, ignore_errors=True)
    for name in needed(DIST):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(DIST / name, folder / name)
    page = (folder / "bench.html").read_text()
    # The peers make code from strings and workers from blobs, which the page's own policy forbids.
    (folder / "bench.html").write_text(page.replace('http-equiv="Content-Security-Policy"', 'name="policy-of-dist"'))
    bundle_peers(folder / "peers")
    say("bench", f"{folder}: {megabytes(sum(p.stat().st_size for p in folder.rglob('*') if p.is_file()))}")


def main() -> int:
    """Make the folder that is named."""
    try:
        make(Path(sys.argv[1]))
    except ToolError as error:
        return fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
