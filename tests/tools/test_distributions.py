"""The two wheels and the source distribution: together everything, alone a clear word on what is missing."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import evermind_web as ew
from tools import distributions
from tools.common import ROOT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("built")


@pytest.fixture(scope="module")
def page_wheel(folder: Path) -> Path:
    return distributions.build("wheel", folder)


@pytest.fixture(scope="module")
def desktop_wheel(folder: Path) -> Path:
    return distributions.desktop_wheel(folder)


@pytest.fixture(scope="module")
def sdist(folder: Path) -> Path:
    return distributions.build("sdist", folder)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, page_wheel: Path) -> Path:
    """A fresh environment with the page's wheel; NumPy and regex are borrowed from this one."""
    environment = tmp_path_factory.mktemp("installed")
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    install(python, page_wheel)
    borrowed = next(Path(path) for path in sys.path if (Path(path) / "numpy").is_dir())
    site = site_packages(python)
    for name in ("numpy", "numpy.libs", "regex"):
        if (borrowed / name).exists():
            (site / name).symlink_to(borrowed / name)
    return python


def site_packages(python: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip())


def install(python: Path, wheel: Path) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-qq", "--no-index", "--no-deps"]
    subprocess.run([*command, str(wheel)], check=True)


def run(python: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, "-I", *arguments], capture_output=True, text=True, cwd=python.parent)


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_together_the_wheels_hold_every_module_once(page_wheel: Path, desktop_wheel: Path) -> None:
    python = {path.relative_to(ROOT).as_posix() for path in (ROOT / "evermind_web").rglob("*.py")}
    assert {name for name in names(page_wheel) | names(desktop_wheel) if name.endswith(".py")} == python
    assert not names(page_wheel) & names(desktop_wheel)
    assert not [name for name in names(desktop_wheel) if "__pycache__" in name]


def test_versions_are_one_and_pinned(page_wheel: Path, desktop_wheel: Path) -> None:
    page, desktop = metadata(page_wheel), metadata(desktop_wheel)
    assert page["Version"] == desktop["Version"] == ew.__version__
    assert desktop.get_all("Requires-Dist") == [f"evermind-web=={ew.__version__}"]
    needs = page.get_all("Requires-Dist") or []
    for extra in ("cli", "native", "torch"):
        assert f"evermind-web-desktop=={ew.__version__}; extra == '{extra}'" in needs
    assert [need for need in needs if "extra" not in need] == ["numpy", "regex"]


def test_page_wheel_alone_says_what_to_install(python: Path) -> None:
    done = run(python, "-m", "evermind_web", "inspect", "x")
    assert done.returncode == 1
    assert done.stderr == "evermind_web: the command line is not installed; pip install 'evermind-web[cli]'\n"
    code = "import asyncio, evermind_web as ew; asyncio.run(ew.request_backend('wgpu'))"
    done = run(python, "-c", code)
    assert "WebGPUUnavailableError" in done.stderr
    assert "pip install 'evermind-web[native]'" in done.stderr.splitlines()[-1]


def test_both_wheels_run_the_command_line(python: Path, desktop_wheel: Path, tmp_path: Path) -> None:
    install(python, desktop_wheel)
    model = tmp_path / "model.evl0"
    model.write_bytes(ew.EvermindLM(9, 4, 1, hidden_dim=3, num_experts=2, top_k=1, seed=5).export_weights())
    done = run(python, "-m", "evermind_web", "inspect", model)
    assert (done.returncode, done.stderr) == (0, "")
    assert "vocab" in done.stdout.lower()


def test_source_distribution_builds_the_same_wheel_without_node(sdist: Path, page_wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (source,) = tmp_path.iterdir()
    assert not (source / "node_modules").exists()
    assert (source / "tests").is_dir()
    assert (source / "desktop" / "pyproject.toml").is_file()
    again = distributions.build("wheel", tmp_path / "again", source)
    assert again.read_bytes() == page_wheel.read_bytes()


def test_source_distribution_holds_no_build_products(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        members = {name.split("/", 1)[1] for name in archive.getnames()}
    tops = {name.split("/")[0] for name in members}
    assert not tops & {"dist", "build", "node_modules", ".venv", ".cache", "build.log"}
    assert not [name for name in members if name.endswith((".pyc", ".png")) and not name.startswith("docs/")]
    assert sdist.stat().st_size < 5_000_000


def test_distributions_are_the_same_bytes_each_time(
    sdist: Path, desktop_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the umask and the hash seed; the page's wheel has a test of its own, in another folder."""
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert distributions.desktop_wheel(tmp_path).read_bytes() == desktop_wheel.read_bytes()
    assert distributions.build("sdist", tmp_path).read_bytes() == sdist.read_bytes()
