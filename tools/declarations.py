"""Types of the JavaScript face, made by tsc from the JSDoc of web/evermind.mjs.

`evermind.d.mts`, and those of the modules whose types it names, lie beside their modules, where TypeScript looks
for them; `evermind.d.ts` is the name that people look for. Kept in the cache until a module changes.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tools.common import CACHE, NODE_MODULES, ROOT, ToolError, fingerprint

ENTRY = "evermind.d.mts"
IMPORT = re.compile(r"""["']\./([\w/]+)\.mjs["']""")
# tsc keeps these comments beside the types that it makes of them.
TYPEDEF = re.compile(r"^/\*\*(?:(?!\*/)[\s\S])*?@typedef(?:(?!\*/)[\s\S])*\*/\n", re.MULTILINE)


def build() -> dict[str, bytes]:
    """Return file name → declarations.

    Raises:
        ToolError: tsc is missing or finds an error.
    """
    sources = [*sorted((ROOT / "web").rglob("*.*mts")), *sorted((ROOT / "web").rglob("*.mjs"))]
    kept = CACHE / "declarations" / fingerprint(*sources, ROOT / "package-lock.json", Path(__file__))[:16]
    if not kept.is_dir():
        shutil.rmtree(kept.parent, ignore_errors=True)
        kept.parent.mkdir(parents=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as work:
            compile_into(Path(work) / "types")
            (Path(work) / "types").rename(kept)
    wanted, files = [ENTRY], {"evermind.d.ts": b'export * from "./evermind.mjs";\n'}
    while wanted:
        name = wanted.pop()
        if name not in files:
            text = TYPEDEF.sub("", (kept / name).read_text(encoding="utf-8"))
            files[name] = text.encode()
            wanted += [f"{module}.d.mts" for module in IMPORT.findall(text)]
    return files


def compile_into(folder: Path) -> None:
    """Let tsc write the declarations of web/evermind.mjs and all that it imports."""
    with tempfile.TemporaryDirectory() as work:
        settings = {
            "extends": str(ROOT / "tsconfig.json"),
            "compilerOptions": {
                "checkJs": False,  # `make lint` does that
                "declaration": True,
                "emitDeclarationOnly": True,
                "noEmit": False,
                "outDir": str(folder),
                "rootDir": str(ROOT / "web"),
                "rootDirs": [],
                "typeRoots": [str(NODE_MODULES)],
            },
            "include": [],
            "files": [str(ROOT / "web" / "evermind.mjs"), *map(str, sorted((ROOT / "web").rglob("*.d.mts")))],
        }
        project = Path(work) / "tsconfig.json"
        project.write_text(json.dumps(settings))
        command = [str(NODE_MODULES / ".bin" / "tsc"), "--project", str(project)]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        except OSError as error:
            raise ToolError(f"tsc does not run ({error}): run `make setup` first") from error
    if done.returncode:
        raise ToolError(f"the types of web/evermind.mjs could not be made:\n{done.stdout[-2000:]}")
