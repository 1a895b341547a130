"""Text files that travel with the package: kernels (`wgsl`), JavaScript modules (`web`), SIMD modules (`simd`).

A wheel carries them as package data, one JSON object of name → text for each kind: `_wgsl.json`, `_web.json`,
`_simd.json` (in base64; assembled when the wheel is built, so that a source checkout has none).
(Kernels resemble one another: together they compress to less than half of what they take as single files.) A
source checkout has them in the folders `wgsl/` and `web/` beside the package. Names are relative, with "/"
between folders: `"vendor/idb.mjs"`.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Literal

from .errors import EvermindError

Kind = Literal["wgsl", "web", "simd"]

_PACKAGE = Path(__file__).resolve().parent


@functools.cache
def _packed(kind: Kind) -> dict[str, str] | None:
    """Return the files of one kind as a wheel holds them, or None in a source checkout."""
    path = _PACKAGE / f"_{kind}.json"
    if not path.is_file():
        return None
    texts: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return texts


def _folder(kind: Kind) -> Path:
    folder = _PACKAGE.parent / kind
    if not folder.is_dir():
        expected = _PACKAGE / f"_{kind}.json"
        raise EvermindError(f"the {kind} files of evermind_web are missing: expected {expected}; reinstall the package")
    return folder


def list_names(kind: Kind, suffix: str = "") -> list[str]:
    """Return the names of all files of one kind that end in `suffix`, sorted.

    Raises:
        EvermindError: the files are missing: the installation is broken.
    """
    packed = _packed(kind)
    if packed is not None:
        return sorted(name for name in packed if name.endswith(suffix))
    root = _folder(kind)
    found = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return sorted(name for name in found if name.endswith(suffix))


def read_text(kind: Kind, name: str) -> str:
    """Return one file's text.

    Raises:
        EvermindError: there is no such file; the text lists those that are there.
    """
    packed = _packed(kind)
    if packed is not None:
        if name in packed:
            return packed[name]
    else:
        path = _folder(kind) / name
        if ".." not in Path(name).parts and path.is_file():
            return path.read_text(encoding="utf-8")
    raise EvermindError(f"no {kind} file {name!r} in evermind_web; there are: {', '.join(list_names(kind))}")
