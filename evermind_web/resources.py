"""Text files that travel with the package: kernels (`wgsl`) and JavaScript modules (`web`).

A wheel carries them as package data under `_wgsl/` and `_web/`; a source checkout has them in the folders
`wgsl/` and `web/` beside the package. Names are relative, with "/" between folders: `"vendor/idb.mjs"`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from .errors import EvermindError

Kind = Literal["wgsl", "web"]

_PACKAGE = Path(__file__).resolve().parent


def folder(kind: Kind) -> Path:
    """Return the folder that holds the files of one kind.

    Raises:
        EvermindError: neither a wheel's nor a checkout's folder is there: the installation is broken.
    """
    for candidate in (_PACKAGE / f"_{kind}", _PACKAGE.parent / kind):
        if candidate.is_dir():
            return candidate
    raise EvermindError(
        f"the {kind} files of evermind_web are missing: expected {_PACKAGE / f'_{kind}'}; reinstall the package"
    )


def list_names(kind: Kind, suffix: str = "") -> list[str]:
    """Return the names of all files of one kind that end in `suffix`, sorted."""
    root = folder(kind)
    found = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return sorted(name for name in found if name.endswith(suffix))


def read_text(kind: Kind, name: str) -> str:
    """Return one file's text.

    Raises:
        EvermindError: there is no such file; the text lists those that are there.
    """
    path = folder(kind) / name
    if ".." in Path(name).parts or not path.is_file():
        raise EvermindError(f"no {kind} file {name!r} in evermind_web; there are: {', '.join(list_names(kind))}")
    return path.read_text(encoding="utf-8")
