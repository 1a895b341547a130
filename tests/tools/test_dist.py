"""The wheel and dist/: what is in them, that builds are repeatable, and that they stay small."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import tokenize
import zipfile
from pathlib import Path
from typing import Any

import pytest

from evermind_web import resources
from tools import build_dist, bytecode, runtime
from tools.common import ROOT, ToolError, load_module, sha256


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_dist.build_wheel(tmp_path_factory.mktemp("wheel") / "build")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist") / "dist"
    build_dist.build(folder=folder)
    return folder


OUTSIDE_THE_PAGE = (
    "evermind_web/backend/native_webgpu.py",
    "evermind_web/cli/",
    "evermind_web/pretrain.py",
    "evermind_web/torch/",
)


def read_manifest(dist: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((dist / "evermind.json").read_text())
    return manifest


def test_wheel_is_the_same_bytes_each_time(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither clock, time stamps, file modes nor the place of the checkout get into it."""
    copy = tmp_path / "elsewhere"
    names = [
        "evermind_web",
        "wgsl",
        "web",
        "simd",
        "node_modules/idb",
        "node_modules/wabt",
        "pyproject.toml",
        "hatch_build.py",
        "LICENSE",
        "README.md",
        "desktop",
    ]
    copy.mkdir()
    for name in names:
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-r", ROOT / name, copy / name], check=True)
    for path in copy.rglob("*"):
        if path.is_file():
            path.chmod(0o600)
            os.utime(path, (1_000_000_000, 1_000_000_000))
    monkeypatch.setattr(build_dist, "ROOT", copy)
    again = build_dist.build_wheel(tmp_path / "build")
    assert again.read_bytes() == wheel.read_bytes()


def test_wheel_holds_package_kernels_and_modules(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        kernels = json.loads(archive.read("evermind_web/_wgsl.json"))
        modules = json.loads(archive.read("evermind_web/_web.json"))
    python = {path.relative_to(ROOT).as_posix() for path in (ROOT / "evermind_web").rglob("*.py")}
    assert {name for name in python if not name.startswith(OUTSIDE_THE_PAGE)} | {"evermind_web/py.typed"} <= names
    assert not [name for name in names if name.startswith(OUTSIDE_THE_PAGE)]
    assert not [name for name in names if name.endswith((".pyc", ".html", ".d.mts"))]
    assert sorted(kernels) == resources.list_names("wgsl", ".wgsl")
    assert len(kernels) >= 16
    for name, text in kernels.items():
        # Line by line the source, but for comments and indentation: an error in a kernel names its line.
        for ours, source in zip(text.split("\n"), resources.read_text("wgsl", name).split("\n"), strict=True):
            assert ours in (source.lstrip(), source.partition("// ")[0].strip()), name
    assert {"bridge.mjs", "store.mjs", "vendor/idb.mjs", "vendor/idb.mjs.LICENSE.txt"} <= set(modules)
    # Each module finds what it imports inside the wheel.
    for name, source in modules.items():
        for target in re.findall(r"""\bfrom\s*["']([^"']+)["']""", source):
            assert target.startswith("."), f"{name} imports {target}, which no page resolves"
            assert os.path.normpath(os.path.join(os.path.dirname(name), target)) in modules


def test_comments_are_left_out_and_lines_kept() -> None:
    module = load_module(ROOT / "hatch_build.py")
    source = (
        "// head\n"
        "//#include four\n"
        "//\n"
        "a = 1; // stays\n"
        "  /** @type {x}\n"
        "   * more */\n"
        "b = /* in */ 2;\n"
        "  /* c */ c = 'http://x';\n"
        "/** d */\n"
        "d"
    )
    expected = "\n//#include four\n\na = 1; // stays\n\n\nb = /* in */ 2;\n  /* c */ c = 'http://x';\n\nd"
    assert module.without_comments("a.mjs", source) == expected
    assert module.without_comments("a.wgsl", source) == expected.replace(" // stays", "").replace("  /*", "/*")
    python = 'def f():\n    """Says.\n\n        this\n    """\n    if 1:\n        return f"""\n    {2}\n  x"""\n'
    narrow = 'def f():\n """Says.\n\n        this\n    """\n if 1:\n  return f"""\n    {2}\n  x"""\n'
    assert module.narrow(python) == narrow


def test_python_files_lose_comments_and_nothing_else(wheel: Path) -> None:
    """Every statement stays, on its line, with the docstrings of all that is public."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith(".py"):
                continue
            ours, source = archive.read(name).decode(), (ROOT / name).read_text()
            assert statements(ours) == statements(source), name
            comments = [t for t in tokenize.generate_tokens(io.StringIO(ours).readline) if t.type == tokenize.COMMENT]
            assert not comments, name


def statements(source: str) -> list[tuple[str, int]]:
    """Every statement and expression with its line, docstrings apart."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            continue
        if ast.get_docstring(node) is not None and len(node.body) > 1:
            del node.body[0]
    return [(type(node).__name__, getattr(node, "lineno", 0)) for node in ast.walk(tree)] + [(ast.dump(tree), 0)]


@pytest.mark.parametrize(
    "name", ["EvermindLM", "EvermindLMTrainer.fit", "BPETokenizer.train", "request_backend", "crc32"]
)
def test_what_users_call_keeps_its_docstring(wheel: Path, tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = f"import evermind_web as ew; print(len(ew.{name}.__doc__ or ''))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 20


def test_wheel_is_pure_and_small(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    assert wheel.stat().st_size <= build_dist.MAX_WHEEL_BYTES == 300_000


def test_installed_wheel_reads_its_own_files(wheel: Path, tmp_path: Path) -> None:
    """The resources come from package data, not from the checkout."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        "from evermind_web import resources as r; import evermind_web; "
        "print(evermind_web.__file__); print(r.list_names('wgsl', '.wgsl')); "
        "print(all(r.read_text('wgsl', n) for n in r.list_names('wgsl')), len(r.read_text('web', 'vendor/idb.mjs')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    place, names, rest = done.stdout.splitlines()
    assert place.startswith(str(tmp_path))
    assert names == str(resources.list_names("wgsl", ".wgsl"))
    assert rest.split()[0] == "True"
    assert int(rest.split()[1]) > 5000


def test_every_lock_entry_is_shipped_with_its_sha256(dist: Path) -> None:
    lock = json.loads((dist / "pyodide/pyodide-lock.json").read_text())
    copies = {"evermind-web-bytecode"} if bytecode.available() else set()
    assert set(lock["packages"]) == {"evermind-web", "micropip", "numpy", "regex"} | copies
    assert read_manifest(dist)["package"] in lock["packages"]
    for entry in lock["packages"].values():
        assert sha256((dist / "pyodide" / entry["file_name"]).read_bytes()) == entry["sha256"]
        assert set(entry["depends"]) <= set(lock["packages"])
    manifest = read_manifest(dist)
    assert lock["packages"]["evermind-web"]["file_name"] == Path(manifest["wheel"]).name
    assert lock["packages"]["evermind-web"]["sha256"] == manifest["wheel_sha256"]
    shipped = {path.name for path in (dist / "pyodide").glob("*.whl")}
    assert shipped == {entry["file_name"] for entry in lock["packages"].values()}


@pytest.mark.skipif(sys.version_info < (3, 12), reason="pyodide-lock for Python 3.11 cannot read this lock file")
def test_lock_entry_is_what_pyodide_lock_writes(wheel: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pyodide_cli", "lockfile", "add-wheels", str(wheel)]
    options = ["--input", str(runtime.PYODIDE / "pyodide-lock.json"), "--output", str(tmp_path / "lock.json")]
    subprocess.run(
        [*command, *options, "--base-path", str(wheel.parent)], check=True, capture_output=True, cwd=tmp_path
    )
    theirs = json.loads((tmp_path / "lock.json").read_text())["packages"]["evermind-web"]
    ours = build_dist.lock_entry(wheel)
    assert {key: theirs[key] for key in ours} == ours


def test_dist_is_small_and_holds_licences(dist: Path) -> None:
    files = [path for path in dist.rglob("*") if path.is_file() and path.parent != dist / "models"]
    total = sum(path.stat().st_size for path in files)
    assert total <= 25_000_000
    text = (dist / "THIRD_PARTY_LICENSES.txt").read_text()
    for name in ("Pyodide", "Python's standard library", "numpy-", "regex-", "micropip-", "comlink", "idb", "uplot"):
        assert name in text


def test_pages_carry_the_policy(dist: Path) -> None:
    for page in dist.rglob("*.html"):
        assert page.read_text().count('http-equiv="Content-Security-Policy"') == 1


def test_second_build_writes_nothing_and_removes_what_is_stale(dist: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in dist.rglob("*") if path.is_file()}
    (dist / "stale.mjs").write_text("old")
    (dist / "models").mkdir(exist_ok=True)
    (dist / "models" / "kept.evl0").write_bytes(b"x")
    build_dist.build(folder=dist)
    assert not (dist / "stale.mjs").exists()
    assert (dist / "models" / "kept.evl0").exists()
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_cdn_build_names_one_more_origin(tmp_path: Path) -> None:
    manifest = build_dist.build(cdn=True, folder=tmp_path)
    origin = manifest["runtime_origin"]
    assert runtime.cdn_url().startswith(f"{origin}/")
    lock = json.loads((tmp_path / "pyodide/pyodide-lock.json").read_text())
    assert lock["packages"]["numpy"]["file_name"].startswith(manifest["index_url"])
    assert lock["packages"]["numpy"]["sha256"] == runtime.wheels()["numpy"]["sha256"]
    own = {lock["packages"][name]["file_name"] for name in ("evermind-web", manifest["package"])}
    assert {path.name for path in (tmp_path / "pyodide").iterdir()} == own | {"pyodide-lock.json"}


def test_page_without_a_place_for_the_policy_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "index.html").write_text("<html></html>")
    monkeypatch.setattr(build_dist, "ROOT", tmp_path)
    with pytest.raises(ToolError, match="lacks the line <!-- content-security-policy -->"):
        build_dist.plan_page("x")


@pytest.mark.skipif(not bytecode.available(), reason="bytecode is made with Python 3.13 only")
def test_bytecode_copies_hold_no_sources() -> None:
    for entry in runtime.wheels().values():
        path, _ = runtime.obtain(entry, runtime.cache_folder())
        with zipfile.ZipFile(bytecode.compiled(path)) as archive:
            suffixes = {Path(name).suffix for name in archive.namelist()}
        assert ".pyc" in suffixes
        assert ".py" not in suffixes
