"""`make release`: everything that is published, in release/, the same bytes each time.

    evermind_web-<v>-py3-none-any.whl             what a page, or Python alone, needs
    evermind_web_desktop-<v>-py3-none-any.whl     command line, native WebGPU, PyTorch pretraining
    evermind_web-<v>.tar.gz                       the sources
    evermind-web-<v>.tgz                          the JavaScript face for npm; Pyodide itself comes from its CDN
    SHA256SUMS                                    for `sha256sum --check`

The version stands in evermind_web/_version.py alone. Dates in the archives are `SOURCE_DATE_EPOCH`, if that is set.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
import tarfile
from pathlib import Path, PurePosixPath

import deflate

from tools import build_dist, distributions
from tools.common import ROOT, ToolError, fail, megabytes, say, sha256

FOLDER = ROOT / "release"
EPOCH = 1_580_601_600  # hatchling's, in archives that no SOURCE_DATE_EPOCH dates
ENTRIES = ("evermind.mjs", "worker.mjs")
BESIDE = ("evermind.d.ts", "evermind.json", "THIRD_PARTY_LICENSES.txt")
IMPORT = re.compile(r"""\bfrom\s*["'](\.{1,2}/[^"']+)["']""")

Plan = build_dist.Plan


def version() -> str:
    """Return the version that all archives carry.

    Raises:
        ToolError: CHANGELOG.md does not tell what is new in it.
    """
    from evermind_web._version import __version__

    if not re.search(rf"^## {re.escape(__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE):
        raise ToolError(f"CHANGELOG.md has no section `## {__version__}`: write what is new before releasing it")
    return __version__


def modules(site: Plan) -> list[str]:
    """Return the modules that evermind.mjs and its worker are made of, with the types that lie beside them."""
    found: set[str] = set()
    waiting = list(ENTRIES)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for target in IMPORT.findall(site[name].decode()):
            waiting.append(os.path.normpath(PurePosixPath(name).parent / target))
    return sorted(found | {name for name in site if name.endswith(".d.mts")})


def npm_files(wheel: Path) -> Plan:
    """Return what the npm package holds: the JavaScript face of a site that leaves Pyodide to its CDN."""
    site = build_dist.plan_site(wheel, cdn=True, with_copy=False)
    names = [*modules(site), *BESIDE, *(name for name in site if name.startswith("pyodide/"))]
    package = json.loads((ROOT / "tools" / "npm" / "package.json").read_text())
    package["version"] = version()
    return {
        **{name: site[name] for name in names},
        "package.json": (json.dumps(package, indent=2) + "\n").encode(),
        "README.md": (ROOT / "tools" / "npm" / "README.md").read_bytes(),
        "LICENSE": (ROOT / "LICENSE").read_bytes(),
    }


def tarball(files: Plan) -> bytes:
    """Return an npm tarball: what `npm pack` would make of these files, but the same bytes each time."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in sorted(files.items()):
            member = tarfile.TarInfo(f"package/{name}")
            member.size, member.mode = len(data), 0o644
            member.mtime = int(os.environ.get("SOURCE_DATE_EPOCH") or EPOCH)
            tar.addfile(member, io.BytesIO(data))
    return bytes(deflate.gzip_compress(archive.getvalue(), 12))


def build(folder: Path = FOLDER) -> list[Path]:
    """Build everything into `folder`, emptied first, and return the paths.

    Raises:
        ToolError: something could not be built.
    """
    number = version()
    shutil.rmtree(folder, ignore_errors=True)
    wheel = distributions.build("wheel", folder)
    made = [wheel, distributions.desktop_wheel(folder), distributions.build("sdist", folder)]
    npm = folder / f"evermind-web-{number}.tgz"
    npm.write_bytes(tarball(npm_files(wheel)))
    made.append(npm)
    sums = {path.name: sha256(path.read_bytes()) for path in made}
    (folder / "SHA256SUMS").write_text("".join(f"{sums[name]}  {name}\n" for name in sorted(sums)))
    for path in made:
        say("release", f"{path.name} {megabytes(path.stat().st_size)}, sha256 {sums[path.name]}")
    return made


def main() -> int:
    """Build a release and say what is in it."""
    try:
        build()
    except ToolError as error:
        return fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
