"""How the wheels are built: what a page needs is in `evermind-web`, the rest in `evermind-web-desktop`.

What goes into the first beside the Python files: kernels, and the JavaScript modules that Python loads.

    wgsl/**.wgsl                            → evermind_web/_wgsl.json   {name: text}
    web/{bridge,store}.mjs and all that
    these import, by relative path          → evermind_web/_web.json    {name: text}
    simd/kernels.wat, assembled by wabt     → evermind_web/_simd.json   {variant: module in base64}

`vendor/idb.mjs` is no file of this checkout: it is the library `idb` from node_modules, with its licence.
Comments are left out, of the Python files too, with the docstrings of what no user calls, and most of the
indentation; line numbers stay: a page fetches this wheel, the sdist has the sources. `evermind_web/resources.py`
reads what is packed. The archives are written anew with libdeflate's strongest compression, which also makes their
bytes independent of the zlib that Python was built with.
"""

from __future__ import annotations

import ast
import io
import json
import re
import shutil
import struct
import subprocess
import tempfile
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import deflate
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

PREBUILT = "prebuilt"  # a folder that only source distributions have
ROOTS = ("bridge.mjs", "store.mjs")
VENDORED = {"vendor/idb.mjs": ("idb/build/index.js", "idb/LICENSE")}
IMPORT = re.compile(r"""(?:\bfrom\s*|\bimport\s*\(?\s*)["'](\.{1,2}/[^"']+)["']""")

# A comment that begins its line: `// …`, or `/* … */` to the end of a line. Others in modules are few, and stay;
# `//#include name` is no comment: the package resolves it.
COMMENT = re.compile(r"^[ \t]*(?://(?: [^\n]*)?|/\*(?:(?!\*/)[\s\S])*\*/[ \t]*)$", re.MULTILINE)
AFTER_CODE = re.compile(r"[ \t]+// [^\n]*")  # in a kernel: WGSL has no strings that could look like it
INDENT = re.compile(r"^[ \t]+", re.MULTILINE)
PRIVATE = re.compile(r"_(?!_)")
# Modules that users of the package do not call: there, all counts as private.
INTERNAL = re.compile(
    r"evermind_web/(session/|backend/(?!base\b|request\b)|formats/(?!arch\b|crc\b|delta\b|safetensors_io\b)"
    r"|tokenizer/(?!bpe\b|stream\b)|lora/(bound|embedding|peft_io|training)\b"
    r"|(batch|checks|embedding|environment|layout|network|ops|pace|params|strict_json|text_stream)\b)"
)


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


def without_comments(name: str, text: str) -> str:
    """Return a kernel or module with its comment lines empty, so that errors still name the right line."""
    text = COMMENT.sub(lambda match: "\n" * match.group().count("\n"), text)
    return INDENT.sub("", AFTER_CODE.sub("", text)) if name.endswith(".wgsl") else text


def packed_files(root: Path) -> dict[str, str]:
    """Return kind → JSON of its files; in an unpacked source distribution, as that holds them.

    Raises:
        FileNotFoundError, RuntimeError: node or a library of node_modules is missing.
    """
    prebuilt = {path.stem: path.read_text(encoding="utf-8") for path in sorted((root / PREBUILT).glob("*.json"))}
    if prebuilt:
        return prebuilt
    packs = {"simd": simd_modules(root)}
    for kind, files in (("wgsl", kernel_files(root)), ("web", web_files(root))):
        texts = {name: path.read_text(encoding="utf-8") for name, path in sorted(files.items())}
        packs[kind] = {
            name: text if name.endswith(".txt") else without_comments(name, text) for name, text in texts.items()
        }
    return {kind: json.dumps(texts, ensure_ascii=False, indent=0) for kind, texts in packs.items()}


def without_python_comments(name: str, text: str) -> str:
    """Return a Python file without comments and without docstrings of what is private, all else on its line."""
    lines = text.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            continue
        private = INTERNAL.match(name) or PRIVATE.match(getattr(node, "name", ""))
        if private and ast.get_docstring(node) is not None and len(node.body) > 1:
            first, last = node.body[0].lineno, node.body[0].end_lineno or 0
            lines[first - 1 : last] = [""] * (last - first + 1)
    return narrow("\n".join(lines))


def narrow(text: str) -> str:
    """Return a Python file with one space of indentation a level; lines within a string stay."""
    lines = text.split("\n")
    within: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None)):
            within.update(range(token.start[0], token.end[0]))
    for row, line in enumerate(lines):
        if row not in within:
            bare = line.lstrip(" ")
            lines[row] = " " * ((len(line) - len(bare)) // 4) + bare
    return "\n".join(lines)


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


def squeeze(path: Path) -> None:
    """Write a zip archive anew: the same files, dates and modes, each in the fewest bytes that deflate allows."""
    local = struct.Struct("<4s5H3L2H")
    body, directory = bytearray(), bytearray()
    with zipfile.ZipFile(path) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    for info, data in members:
        name = info.filename.encode()
        packed = bytes(deflate.deflate_compress(data, 12))
        method, packed = (8, packed) if len(packed) < len(data) else (0, data)
        year, month, day, hour, minute, second = info.date_time
        time, date = hour << 11 | minute << 5 | second // 2, year - 1980 << 9 | month << 5 | day
        sizes = (zlib.crc32(data), len(packed), len(data), len(name))
        utf8 = 0 if name.isascii() else 1 << 11
        common = (20, utf8, method, time, date, *sizes, 0)
        directory += struct.pack("<4sH", b"PK\1\2", 3 << 8 | 20) + local.pack(b"", *common)[4:]
        directory += struct.pack("<3H2L", 0, 0, 0, info.external_attr, len(body)) + name
        body += local.pack(b"PK\3\4", *common) + name + packed
    count = len(members)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(directory), len(body), 0)
    path.write_bytes(body + directory + end)


class ExtrasHook(MetadataHookInterface):
    """Dependencies between the two distributions, whose versions are one."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling with the static metadata and the version."""
        version = metadata["version"]
        if metadata["name"] == "evermind-web-desktop":
            metadata["dependencies"] = [f"evermind-web=={version}"]
        else:
            desktop = f"evermind-web-desktop=={version}"
            extras = self.config["extras"]
            metadata["optional-dependencies"] = {name: [desktop, *needs] for name, needs in extras.items()}


class DataHook(BuildHookInterface):  # type: ignore[type-arg]
    """Add the packed files, and squeeze wheels; an editable install reads all from the checkout instead.

    A source distribution gets the packed files too, in `prebuilt/`: building from it needs no Node.js.
    """

    work = ""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects files."""
        if version == "editable" or not self.config.get("package-data"):
            return
        self.work = tempfile.mkdtemp()
        root, wheel = Path(self.root), self.target_name == "wheel"
        for kind, text in packed_files(root).items():
            self.add(build_data, f"evermind_web/_{kind}.json" if wheel else f"{PREBUILT}/{kind}.json", text)
        for path in sorted((root / "evermind_web").rglob("*.py")) if wheel else ():
            name = path.relative_to(root).as_posix()
            if self.build_config.include_path(name):
                self.add(build_data, name, without_python_comments(name, path.read_text(encoding="utf-8")))

    def add(self, build_data: dict[str, Any], name: str, text: str) -> None:
        """Let the archive hold `text` as the file `name`."""
        source = Path(self.work) / name
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(text, encoding="utf-8", newline="\n")
        build_data["force_include"][str(source)] = name

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called by hatchling when the archive is written."""
        if version != "editable" and self.target_name == "wheel":
            squeeze(Path(artifact_path))
        if self.work:
            shutil.rmtree(self.work)
