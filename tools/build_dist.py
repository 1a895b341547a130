"""`make dist`: lay the static page into dist/, with everything that it needs from its own origin.

    dist/index.html *.mjs *.css   web/, with the Content-Security-Policy written into the page
    dist/bench.html               the benchmark page, from bench/
    dist/evermind.d.ts *.d.mts    types of the JavaScript face
    dist/examples/                pages to copy from
    dist/vendor/                  comlink, idb, uplot as ES modules
    dist/pyodide/                 Pyodide, its wheels, ours, and a lock file that names only these
    dist/evermind.json            what was built: versions, addresses, sizes

The whole folder is planned as name → content first; then only what differs is written and what is no longer
planned is removed, so that a build without changes takes a second. `RUNTIME=cdn` leaves Pyodide and its wheels
to Pyodide's CDN, whose origin is added to the policy.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tools import bytecode, declarations, distributions, runtime, sbom
from tools.common import CACHE, DIST, NODE_MODULES, ROOT, ToolError, fail, megabytes, say, sha256
from tools.csp import policy

MAX_WHEEL_BYTES = 300_000
MAX_DIST_BYTES = 25_000_000
CSP_PLACE = "<!-- content-security-policy -->"
BUILD_PLACE = b"<!-- build -->"
RUNTIME_FILES = ("pyodide.mjs", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip")
VENDOR = {
    "vendor/comlink.mjs": "comlink/dist/esm/comlink.mjs",
    "vendor/idb.mjs": "idb/build/index.js",
    "vendor/uplot.mjs": "uplot/dist/uPlot.esm.js",
    "vendor/uplot.css": "uplot/dist/uPlot.min.css",
}
PACKAGE = "evermind-web"
COMPILED = "evermind-web-bytecode"
LIBRARIES = ("comlink", "idb", "uplot")
BENCH = ("bench.html", "bench.mjs", "bench_worker.mjs",
         *(f"bench/{name}.py" for name in ("measure", "operations", "products", "curves")))  # fmt: skip
VERSION_PLACE = b'"SHA-256 of evermind.json"'
SHIPPED = "models/evermind-base"
NOT_OFFLINE = ("models/", "examples/", "bench", "THIRD_PARTY", "sbom", "service-worker.js")
KEPT = ("models",)  # folders of dist/ that other commands fill

Plan = dict[str, bytes]


def build_wheel(folder: Path = ROOT / "build") -> Path:
    """Build the py3-none-any wheel into `folder`, emptied first, and return its path.

    Raises:
        ToolError: the build failed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    wheel = distributions.build("wheel", folder, ROOT)
    if (size := wheel.stat().st_size) > MAX_WHEEL_BYTES:
        say("dist", f"WARNING: the wheel has {size} bytes, more than the {MAX_WHEEL_BYTES} that a test allows")
    return wheel


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Let one build run at a time in this checkout; another one waits."""
    CACHE.mkdir(exist_ok=True, parents=True)
    with open(CACHE / "dist.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def lock_entry(wheel: Path) -> dict[str, Any]:
    """Return the entry that lets `loadPackage("evermind-web")` find the wheel beside the lock file.

    The same as `pyodide lockfile add-wheels` writes (a test compares them where it runs); made here because
    the releases of pyodide-lock for Python 3.11 cannot read this lock file.
    """
    _, version, *_ = wheel.name.split("-")
    return {
        "depends": ["numpy", "regex"],
        "file_name": wheel.name,
        "imports": ["evermind_web"],
        "install_dir": "site",
        "name": PACKAGE,
        "package_type": "package",
        "sha256": sha256(wheel.read_bytes()),
        "unvendored_tests": False,
        "version": version,
    }


def own_packages(wheel: Path, with_copy: bool) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return our lock entries and their files: the wheel, and a copy in bytecode that the page starts faster with.

    `loadPackage("evermind-web")` loads the wheel that is released; the copy, made from it, has a name of its own.
    """
    entry = lock_entry(wheel)
    entries, files = {PACKAGE: entry}, {wheel.name: wheel.read_bytes()}
    if with_copy:
        copy = bytecode.compiled(wheel)
        data = copy.read_bytes()
        entries[COMPILED] = {**entry, "name": COMPILED, "file_name": copy.name, "imports": [], "sha256": sha256(data)}
        files[copy.name] = data
    return entries, files


def plan_runtime(wheel: Path, cdn: bool, with_copy: bool) -> Plan:
    """Return dist/pyodide/: with `cdn` only the lock file and what is ours."""
    lock = runtime.read_lock()
    entries = runtime.closure(lock, runtime.PACKAGES)
    plan: Plan = {}
    if cdn:
        entries = {
            name: {**entry, "file_name": runtime.cdn_url() + entry["file_name"]} for name, entry in entries.items()
        }
    else:
        files = {name: runtime.PYODIDE / name for name in RUNTIME_FILES}
        for name, entry in entries.items():
            path, _ = runtime.obtain(entry, runtime.cache_folder())
            compiled = bytecode.compiled(path)
            entries[name] = {**entry, "file_name": compiled.name, "sha256": sha256(compiled.read_bytes())}
            files[compiled.name] = compiled
        files["python_stdlib.zip"] = bytecode.compiled(files["python_stdlib.zip"])
        plan = {name: path.read_bytes() for name, path in files.items()}
    own, own_files = own_packages(wheel, with_copy)
    packages = {**entries, **own}
    plan.update(own_files)
    plan["pyodide-lock.json"] = as_json({"info": lock["info"], "packages": dict(sorted(packages.items()))})
    return {f"pyodide/{name}": data for name, data in plan.items()}


def plan_page(content_security_policy: str) -> Plan:
    """Return the files of web/ (without type declarations), the benchmark and the examples, the policy in their HTML.

    Raises:
        ToolError: a page lacks the place for the policy.
    """
    plan: Plan = {}
    for path in sorted((ROOT / "web").rglob("*")):
        name = path.relative_to(ROOT / "web").as_posix()
        if not path.is_file() or name.endswith(".d.mts"):
            continue
        plan[name] = with_policy(path, content_security_policy)
    for name in BENCH:
        plan[name] = with_policy(ROOT / "bench" / Path(name).name, content_security_policy)
    for path in sorted((ROOT / "examples").glob("*.*")):
        plan[f"examples/{path.name}"] = with_policy(path, content_security_policy)
    return plan


def with_policy(path: Path, content_security_policy: str) -> bytes:
    """Return a file's bytes; in an HTML page the policy is written into its place.

    Raises:
        ToolError: the page lacks that place.
    """
    data = path.read_bytes()
    if path.suffix != ".html":
        return data
    if CSP_PLACE.encode() not in data:
        raise ToolError(f"{path.relative_to(ROOT)} lacks the line {CSP_PLACE} in its <head>")
    tag = f'<meta http-equiv="Content-Security-Policy" content="{content_security_policy}">'
    return data.replace(CSP_PLACE.encode(), tag.encode(), 1)


def plan_libraries() -> Plan:
    """Return the vendored JavaScript libraries."""
    return {name: (NODE_MODULES / path).read_bytes() for name, path in VENDOR.items()}


def licences(wheels: list[Path]) -> bytes:
    """Return the licences of all that dist/ carries, one after the other."""
    texts = ROOT / "tools" / "licences"
    mozilla = f"Pyodide {runtime.version()} (source: https://github.com/pyodide/pyodide)"
    parts = [
        ("evermind_web", (ROOT / "LICENSE").read_text()),
        (mozilla, (texts / "MPL-2.0.txt").read_text()),
        ("Python's standard library, in Pyodide", (texts / "Python-3.13.txt").read_text()),
    ]
    parts += [(name, (NODE_MODULES / name / "LICENSE").read_text()) for name in LIBRARIES]
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                if ".dist-info/" in member and "LICENSE" in member.upper():
                    title = f"{member.split('.dist-info/')[0]} ({Path(member).name})"
                    parts.append((title, archive.read(member).decode()))
    rule = "=" * 78
    return "\n".join(f"{rule}\n{title}\n{rule}\n\n{text.strip()}\n" for title, text in parts).encode()


def startup_bytes(plan: Plan, package: str) -> int:
    """Return how many bytes the page's worker fetches before it is ready, modules apart: for its progress bar."""
    packages = json.loads(plan["pyodide/pyodide-lock.json"])["packages"]
    total = 0
    for entry in runtime.closure({"packages": packages}, [package]).values():
        name = Path(entry["file_name"]).name
        file = f"pyodide/{name}"
        total += len(plan[file]) if file in plan else (runtime.cache_folder() / name).stat().st_size
    for name in ("pyodide.asm.wasm", "python_stdlib.zip"):
        file = f"pyodide/{name}"
        total += len(plan[file]) if file in plan else (runtime.PYODIDE / name).stat().st_size
    return total + len(plan["pyodide/pyodide-lock.json"])


def bytes_without_models(plan: Plan) -> int:
    """Return the size of a site; ready-made models, which a page fetches only if its user wants one, do not count."""
    return sum(len(data) for name, data in plan.items() if not name.startswith("models/"))


def shipped_model(plan: Plan) -> dict[str, Any] | None:
    """Return what the page has to know of the model that comes with it, None if there is none."""
    card = plan.get(f"{SHIPPED}.json")
    if card is None or f"{SHIPPED}.evl0" not in plan:
        return None
    known = json.loads(card)
    fields = ("name", "title", "parameters", "fingerprint", "model", "tokenizer")
    return {"folder": "models/", **{field: known[field] for field in fields}}


def offline_files(plan: Plan, unused_wheel: str) -> dict[str, str]:
    """Return name → SHA-256 of all that the page needs without a network; models are kept in its store instead."""
    return {
        name: sha256(data)
        for name, data in sorted(plan.items())
        if not name.startswith(NOT_OFFLINE)
        and not name.endswith((".d.ts", ".d.mts"))
        and Path(name).name != unused_wheel
    }


def as_json(value: Any) -> bytes:
    """Return indented JSON with a newline at its end."""
    return (json.dumps(value, indent=1) + "\n").encode()


def write_plan(plan: Plan, folder: Path) -> int:
    """Make `folder` hold exactly the plan (folders in KEPT apart) and return how many files were written."""
    written = 0
    for name, data in plan.items():
        path = folder / name
        if path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_bytes(data)
        part.replace(path)
        written += 1
    for path in sorted(folder.rglob("*"), reverse=True):
        name = path.relative_to(folder).as_posix()
        if name.split("/")[0] in KEPT or name in plan:
            continue
        if path.is_file() or path.is_symlink():
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    return written


def build(cdn: bool = False, folder: Path = DIST) -> dict[str, Any]:
    """Bring `folder` up to date and return its manifest.

    Raises:
        ToolError: something that it needs is missing or too large.
    """
    with alone():
        return build_alone(cdn, folder)


def plan_site(wheel: Path, cdn: bool, with_copy: bool) -> Plan:
    """Return all of dist/.

    Args:
        wheel: ours.
        cdn: leave Pyodide and its wheels to Pyodide's CDN.
        with_copy: add the copy of the wheel in bytecode, and let the page load that.
    """
    base = runtime.cdn_url() if cdn else ""
    origin = "{0.scheme}://{0.netloc}".format(urlsplit(base)) if cdn else ""
    wheels = [runtime.cache_folder() / entry["file_name"] for entry in runtime.wheels().values()]
    plan = {**plan_page(policy(origin)), **plan_libraries(), **plan_runtime(wheel, cdn, with_copy)}
    plan.update(declarations.build())
    plan["THIRD_PARTY_LICENSES.txt"] = licences(wheels)
    plan["sbom.cdx.json"] = as_json(sbom.sbom(wheel.name.split("-")[1], wheels, LIBRARIES))
    package = COMPILED if with_copy else PACKAGE
    unused = wheel.name if with_copy else ""
    # The first file that a browser asks for and the last one name the build: it is of one version if they agree.
    build_id = sha256(as_json(offline_files(plan, unused)))
    stamp = f'<meta name="build" content="{build_id}">'.encode()
    plan["index.html"] = plan["index.html"].replace(BUILD_PLACE, stamp, 1)
    manifest = {
        "build": build_id,
        "version": wheel.name.split("-")[1],
        "wheel": f"pyodide/{wheel.name}",
        "wheel_sha256": sha256(wheel.read_bytes()),
        "wheel_bytes": wheel.stat().st_size,
        "package": package,  # what the page loads
        "runtime": "cdn" if cdn else "vendored",
        "runtime_origin": origin,
        "pyodide_version": runtime.version(),
        "index_url": base or "pyodide/",  # relative to this file
        "lock_file_url": "pyodide/pyodide-lock.json",
        "total_bytes": bytes_without_models(plan),
        "startup_bytes": startup_bytes(plan, package),
        "shipped": shipped_model(plan),
        "files": offline_files(plan, unused),
    }
    plan["evermind.json"] = as_json(manifest)
    worker = plan["service-worker.js"]
    if worker.count(VERSION_PLACE) != 1:
        raise ToolError(f"web/service-worker.js lacks the place for its version, {VERSION_PLACE.decode()}")
    plan["service-worker.js"] = worker.replace(VERSION_PLACE, f'"{sha256(plan["evermind.json"])}"'.encode())
    return plan


def build_alone(cdn: bool, folder: Path) -> dict[str, Any]:
    """Build, while no other build runs."""
    started = time.monotonic()
    wheel = build_wheel()
    plan = plan_site(wheel, cdn, with_copy=bytecode.available())
    manifest: dict[str, Any] = json.loads(plan["evermind.json"])
    total = bytes_without_models(plan)
    if total > MAX_DIST_BYTES:
        raise ToolError(f"dist/ would have {total} bytes; at most {MAX_DIST_BYTES} are allowed")
    written = write_plan(plan, folder)
    say("dist", f"{wheel.name} {megabytes(wheel.stat().st_size)}, sha256 {manifest['wheel_sha256']}")
    say("dist", f"{len(plan)} files, {megabytes(total)}, {written} written, in {time.monotonic() - started:.1f} s")
    return manifest


def main() -> int:
    """Build dist/; `RUNTIME=cdn` leaves Pyodide to its CDN."""
    wanted = os.environ.get("RUNTIME") or "vendored"
    try:
        if wanted not in ("vendored", "cdn"):
            raise ToolError(f"RUNTIME={wanted} is neither 'vendored' nor 'cdn'")
        build(cdn=wanted == "cdn")
    except ToolError as error:
        return fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
