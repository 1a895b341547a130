"""What goes into the wheel beside the Python files: kernels, and the JavaScript modules that Python loads.

    wgsl/**.wgsl                            → evermind_web/_wgsl.json   {name: text}
    web/{bridge,store}.mjs and all that
    these import, by relative path          → evermind_web/_web.json    {name: text}
    simd/kernels.wat, assembled by wabt     → evermind_web/_simd.json   {variant: module in base64}

`vendor/idb.mjs` is no file of this checkout: it is the library `idb` from node_modules, with its licence.
Comments are left out, line numbers stay. `evermind_web/resources.py` reads both.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOTS = ("bridge.mjs", "store.mjs")
VENDORED = {"vendor/idb.mjs": ("idb/build/index.js", "idb/LICENSE")}
IMPORT = re.compile(r"""(?:\bfrom\s*|\bimport\s*\(?\s*)["'](\.{1,2}/[^"']+)["']""")

# A comment that begins its line: `// …`, or `/* … */` to the end of a line. Others are few, and stay;
# `//#include name` is no comment: the package resolves it.
COMMENT = re.compile(r"^[ \t]*(?://(?: [^\n]*)?|/\*(?:(?!\*/)[\s\S])*\*/[ \t]*)$", re.MULTILINE)


def kernel_files(root: Path) -> dict[str, Path]:
    """Return name → source file of all kernels and what they share."""
    folder = root / "wgsl"
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.wgsl")}


def web_files(root: Path) -> dict[str, Path]:
    """Return name → source file of the modules that Python loads and all that they import.

    Raises:
        FileNotFoundError: an import leads nowhere, or node_modules lacks a library.
    """
    web, modules = root / "web", root / "node_modules"
    found: dict[str, Path] = {}
    waiting = list(ROOTS)
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


def without_comments(text: str) -> str:
    """Return a kernel or module with its comment lines empty, so that errors still name the right line."""
    return COMMENT.sub(lambda match: "\n" * match.group().count("\n"), text)


def simd_modules(root: Path) -> dict[str, str]:
    """Return variant → WebAssembly module in base64.

    Raises:
        RuntimeError: node or wabt is missing, or the source is wrong.
    """
    done = subprocess.run(["node", str(root / "simd" / "assemble.mjs")], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"simd/kernels.wat was not assembled (run `make setup` first):\n{done.stderr[-2000:]}")
    modules: dict[str, str] = json.loads(done.stdout)
    return modules


class PackageDataHook(BuildHookInterface):  # type: ignore[type-arg]
    """Add the files to a wheel; an editable install reads them from the checkout instead."""

    work = ""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects files."""
        if version == "editable":
            return
        self.work = tempfile.mkdtemp()
        root = Path(self.root)
        packs = {"simd": simd_modules(root)}
        for kind, files in (("wgsl", kernel_files(root)), ("web", web_files(root))):
            texts = {name: path.read_text(encoding="utf-8") for name, path in sorted(files.items())}
            packs[kind] = {
                name: text if name.endswith(".txt") else without_comments(text) for name, text in texts.items()
            }
        for kind, texts in packs.items():
            packed = Path(self.work) / f"{kind}.json"
            packed.write_text(json.dumps(texts, ensure_ascii=False, indent=0), encoding="utf-8")
            build_data["force_include"][str(packed)] = f"evermind_web/_{kind}.json"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called by hatchling when the wheel is written."""
        if self.work:
            shutil.rmtree(self.work)
