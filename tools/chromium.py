"""Find a Chromium, or get one: Debian's package as root, the same unpacked into the cache otherwise.

`find()` only looks; `main()` (a stage of `make setup`) gets one if there is none. An unpacked Chromium lies
in the cache with the libraries that it needs and is started by a small script beside it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tools.common import CACHE, ToolError, fail, say, working

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
UNPACKED = CACHE / "chromium"
LAUNCHER = UNPACKED / "chromium.sh"
PLAYWRIGHT = CACHE / "playwright"
DEBIAN_PACKAGES = ("chromium", "chromium-common", "fonts-dejavu-core", "fontconfig-config")


def find() -> Path | None:
    """Return `$CHROMIUM`, one on the path, or one that the set-up put into the cache; else None.

    Raises:
        ToolError: `$CHROMIUM` is set and is no file.
    """
    if wanted := os.environ.get("CHROMIUM"):
        if not Path(wanted).is_file():
            raise ToolError(f"CHROMIUM={wanted} is no file: unset it, or set it to a Chromium's executable")
        return Path(wanted)
    for name in NAMES:
        if found := shutil.which(name):
            return Path(found)
    if LAUNCHER.is_file():
        return LAUNCHER
    return next(iter(sorted(PLAYWRIGHT.glob("chromium-*/chrome-linux*/chrome"))), None)


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run a command to its end and return what it printed.

    Raises:
        ToolError: it failed; the text holds the end of its output.
    """
    words = [str(part) for part in command]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, cwd=cwd)
    except OSError as error:
        raise ToolError(f"{words[0]}: {error}") from error
    if done.returncode:
        raise ToolError(f"{' '.join(words[:3])} … exit code {done.returncode}: {(done.stderr or done.stdout)[-500:]}")
    return done.stdout


def install_as_root() -> None:
    """Install Debian's package with apt-get, waiting for another apt to finish."""
    if os.geteuid() != 0:
        raise ToolError("not root")
    apt = ("apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=2")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(*apt, "update", env=env)
    run(*apt, "install", "--yes", "--no-install-recommends", "chromium", env=env)


def unpack_debian_packages() -> None:
    """Download Chromium's Debian packages under a private apt state and unpack them into the cache."""
    for tool in ("apt-get", "dpkg-deb"):
        if not shutil.which(tool):
            raise ToolError(f"no {tool} on this system")
    state = CACHE / "apt"
    for folder in ("lists/partial", "archives/partial"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    options = {
        "Dir::State::lists": state / "lists",
        "Dir::Cache": state,
        "Dir::Cache::archives": state / "archives",
        "Debug::NoLocking": "true",
        "APT::Sandbox::User": "",
        "Acquire::Retries": "2",
    }
    apt = ["apt-get", "-qq", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]
    run(*apt, "update")
    # The system's own dpkg status is read, so that only what is missing here is downloaded.
    run(*apt, "install", "--yes", "--reinstall", "--download-only", "--no-install-recommends", *DEBIAN_PACKAGES)
    part = UNPACKED.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    for package in sorted((state / "archives").glob("*.deb")):
        run("dpkg-deb", "--extract", package, part)
    write_launcher(part)
    shutil.rmtree(UNPACKED, ignore_errors=True)
    part.rename(UNPACKED)
    shutil.rmtree(state)


def write_launcher(folder: Path) -> None:
    """Write the script that starts an unpacked Chromium with the libraries and fonts beside it."""
    if not (folder / "usr/lib/chromium/chromium").is_file():
        raise ToolError("Debian's package chromium did not hold usr/lib/chromium/chromium")
    (folder / "fonts.conf").write_text(
        '<?xml version="1.0"?>\n<!DOCTYPE fontconfig SYSTEM "fonts.dtd">\n<fontconfig>\n'
        f"<dir>/usr/share/fonts</dir><dir>{UNPACKED}/usr/share/fonts</dir>"
        f"<cachedir>{UNPACKED}/fontcache</cachedir>\n</fontconfig>\n"
    )
    found = [path for path in folder.glob("**/*.so*") if re.search(r"\.so[.0-9]*$", path.name)]
    libraries = sorted({str(path.parent.relative_to(folder)) for path in found})
    paths = ":".join(f"$here/{name}" for name in libraries)
    launcher = folder / LAUNCHER.name
    launcher.write_text(
        "#!/bin/sh\n"
        'here=$(dirname "$(readlink -f "$0")")\n'
        f'export LD_LIBRARY_PATH="{paths}"\n'
        'export FONTCONFIG_FILE="$here/fonts.conf"\n'
        'exec "$here/usr/lib/chromium/chromium" "$@"\n'
    )
    launcher.chmod(launcher.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def download_with_playwright() -> None:
    """Let Playwright download its own build."""
    env = {**os.environ, "PLAYWRIGHT_BROWSERS_PATH": str(PLAYWRIGHT)}
    run(sys.executable, "-m", "playwright", "install", "--no-shell", "chromium", env=env)


SOURCES: dict[str, tuple[str, Callable[[], None]]] = {
    "root": ("installing Debian's package chromium", install_as_root),
    "unpack": (f"unpacking Debian's package chromium under {UNPACKED}", unpack_debian_packages),
    "playwright": ("downloading Playwright's build", download_with_playwright),
}


def get(sources: list[str]) -> Path:
    """Try the sources in order and return the browser's path.

    Raises:
        ToolError: none worked; the text lists what each said.
    """
    refusals = []
    for key in sources:
        text, source = SOURCES[key]
        if key == "root" and os.geteuid() != 0:
            continue
        started = time.monotonic()
        try:
            with working("chromium", text):
                source()
        except ToolError as error:
            refusals.append(f"  {text}: {error}")
            say("chromium", f"that failed: {error}")
            continue
        if path := find():
            say("chromium", f"got in {time.monotonic() - started:.0f} s")
            return path
        refusals.append(f"  {text}: no browser was found afterwards")
    raise ToolError(
        "\n".join(["no Chromium could be had:", *refusals, "Install one and name it with CHROMIUM=/path/to/chromium"])
    )


def main() -> int:
    """Make sure that there is a Chromium that starts, and say which."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", choices=SOURCES, help="get a browser this way even if one is there")
    arguments = parser.parse_args()
    try:
        path = get([arguments.source]) if arguments.source else find() or get(list(SOURCES))
        say("chromium", f"{run(path, '--version').strip()} ({path})")
    except ToolError as error:
        return fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
