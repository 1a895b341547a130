"""`make release`: what is published, that its parts fit together, and that it is the same bytes each time."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

import evermind_web as ew
from tools import build_dist, declarations, release
from tools.common import NODE_MODULES, ROOT, ToolError, sha256

CONSUMER = ROOT / "tests" / "tools" / "consumer" / "app.ts"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {path.name: path for path in release.build(tmp_path_factory.mktemp("release") / "made")}


@pytest.fixture(scope="module")
def npm(made: dict[str, Path]) -> Path:
    return made[f"evermind-web-{ew.__version__}.tgz"]


@pytest.fixture(scope="module")
def package(npm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The npm package, installed by npm in an empty project; it depends on nothing, so no registry is asked."""
    project = tmp_path_factory.mktemp("project")
    (project / "package.json").write_text('{"type": "module", "private": true}')
    command = ["npm", "install", "--offline", "--silent", "--no-audit", "--no-fund", "--no-save", str(npm)]
    subprocess.run(command, cwd=project, check=True, timeout=120)
    return project / "node_modules" / "evermind-web"


def test_one_version_names_every_archive(made: dict[str, Path]) -> None:
    assert set(made) == {
        f"evermind_web-{ew.__version__}-py3-none-any.whl",
        f"evermind_web_desktop-{ew.__version__}-py3-none-any.whl",
        f"evermind_web-{ew.__version__}.tar.gz",
        f"evermind-web-{ew.__version__}.tgz",
    }
    for place in ("pyproject.toml", "desktop/pyproject.toml", "package.json", "package-lock.json"):
        assert not re.search(
            r'^ {0,6}"?version"?\s*[=:]\s*"\d', (ROOT / place).read_text().split('"node_modules/')[0], re.M
        )


def test_sums_are_those_of_the_files(made: dict[str, Path]) -> None:
    folder = next(iter(made.values())).parent
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    assert dict(reversed(line.split("  ")) for line in lines) == {n: sha256(p.read_bytes()) for n, p in made.items()}
    assert {path.name for path in folder.iterdir()} == {*made, "SHA256SUMS"}


def test_npm_tarball_is_the_same_bytes_each_time(
    made: dict[str, Path], npm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = made[f"evermind_web-{ew.__version__}-py3-none-any.whl"]
    files = release.npm_files(wheel)
    assert release.tarball(files) == release.tarball(dict(reversed(files.items()))) == npm.read_bytes()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    dated = release.tarball(files)
    assert dated != npm.read_bytes()
    with tarfile.open(npm) as archive:
        assert {member.mtime for member in archive.getmembers()} == {release.EPOCH}


def test_npm_package_is_complete(package: Path, made: dict[str, Path]) -> None:
    """Every module finds what it imports, the lock file its wheel, and the modules are those of dist/."""
    described = json.loads((package / "package.json").read_text())
    assert described["version"] == ew.__version__
    targets = [target for entry in described["exports"].values() for target in _leaves(entry)]
    assert all((package / target).is_file() for target in [described["types"], *targets])
    for module in package.rglob("*.mjs"):
        for target in re.findall(r"""\bfrom\s*["']([^"']+)["']""", module.read_text()):
            assert (module.parent / target).is_file(), f"{module.name} imports {target}"
        name = module.relative_to(package).as_posix()
        source = NODE_MODULES / build_dist.VENDOR[name] if name in build_dist.VENDOR else ROOT / "web" / name
        assert module.read_bytes() == source.read_bytes()
    manifest = json.loads((package / "evermind.json").read_text())
    assert manifest["runtime"] == "cdn"
    lock = json.loads((package / manifest["lock_file_url"]).read_text())
    entry = lock["packages"][manifest["package"]]
    data = (package / "pyodide" / entry["file_name"]).read_bytes()
    assert data == made[entry["file_name"]].read_bytes()
    assert sha256(data) == entry["sha256"]
    for name in ("README.md", "LICENSE", "THIRD_PARTY_LICENSES.txt", "evermind.d.ts"):
        assert (package / name).stat().st_size


def _leaves(entry: str | dict[str, str]) -> list[str]:
    return [entry] if isinstance(entry, str) else list(entry.values())


@pytest.mark.parametrize("resolution", ["bundler", "nodenext"])
def test_a_page_in_typescript_compiles(package: Path, resolution: str) -> None:
    """Also without skipLibCheck: the declarations stand alone. Wrong uses in the file have to be refused."""
    shutil.copy(CONSUMER, package.parents[1] / "app.ts")
    module = "nodenext" if resolution == "nodenext" else "es2022"
    options = ["--strict", "--noEmit", "--target", "es2022", "--lib", "es2023,dom,dom.iterable,dom.asynciterable"]
    tsc = NODE_MODULES / ".bin" / "tsc"
    command = [tsc, *options, "--module", module, "--moduleResolution", resolution, "app.ts"]
    done = subprocess.run(command, cwd=package.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_types_lie_beside_the_module_in_dist() -> None:
    files = declarations.build()
    assert {"evermind.d.ts", "evermind.d.mts"} <= set(files)
    assert b"@typedef" not in files["evermind.d.mts"]
    assert b"export class Evermind extends" in files["evermind.d.mts"]


def test_a_version_without_a_changelog_section_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## 9.9.9\n")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    with pytest.raises(ToolError, match="has no section"):
        release.version()
