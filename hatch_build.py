"""What goes into the wheel beside the Python files: kernels, and the JavaScript modules that Python loads.

    wgsl/**.wgsl                            → evermind_web/_wgsl/
    web/{bridge,store}.mjs and all that
    these import, by relative path          → evermind_web/_web/

`vendor/idb.mjs` is no file of this checkout: it is the library `idb` from node_modules, with its licence.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOTS = ("bridge.mjs", "store.mjs")
VENDORED = {"vendor/idb.mjs": ("idb/build/index.js", "idb/LICENSE")}
IMPORT = re.compile(r"""(?:\bfrom\s*|\bimport\s*\(?\s*)["'](\.{1,2}/[^"']+)["']""")


def web_files(root: Path) -> dict[str, Path]:
    """Return name below `_web/` → source file for the modules that Python loads and all that they import.

    Raises:
        FileNotFoundError: an import leads nowhere, or node_modules lacks a library.
    """
    web, modules = root / "web", root / "node_modules"
    found: dict[str, Path] = {}
    waiting = [name for name in ROOTS if (web / name).is_file()]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        if name in VENDORED:
            library, licence = (modules / path for path in VENDORED[name])
            if not library.is_file():
                raise FileNotFoundError(f"{library} is missing: run `make setup` (or `npm ci`) before building")
            found[name], found[f"{name}.LICENSE.txt"] = library, licence
            continue
        found[name] = web / name
        for path in IMPORT.findall(found[name].read_text(encoding="utf-8")):
            target = (web / name).parent / path
            waiting.append(target.resolve().relative_to(web.resolve()).as_posix())
    return found


class PackageDataHook(BuildHookInterface):  # type: ignore[type-arg]
    """Add the files to a wheel; an editable install reads them from the checkout instead."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects files."""
        if version == "editable":
            return
        root = Path(self.root)
        included = build_data["force_include"]
        for kernel in sorted((root / "wgsl").rglob("*.wgsl")):
            included[str(kernel)] = f"evermind_web/_wgsl/{kernel.relative_to(root / 'wgsl').as_posix()}"
        for name, path in sorted(web_files(root).items()):
            included[str(path)] = f"evermind_web/_web/{name}"
