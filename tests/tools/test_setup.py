"""Choosing a Python and a browser, and the stamps that make a second set-up fast."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path

import pytest

from tools import chromium, common, pythons, setup
from tools.common import ToolError, fingerprint, stamped


def fake_python(path: Path, output: str) -> Path:
    """Write a program that answers the probe with `output`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {output}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing on the path, no pyenv versions, no variables set; returns the folder on the path."""
    for name in ("PYTHON", "CHROMIUM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def test_newest_accepted_python_wins(empty_machine: Path, tmp_path: Path) -> None:
    fake_python(empty_machine / "python3.11", "3 11 2 /usr/bin/python3.11")
    fake_python(tmp_path / "pyenv/versions/3.12.1/bin/python", "3 12 1 /pyenv/3.12")
    assert pythons.choose() == ((3, 12, 1), Path("/pyenv/3.12"))
    fake_python(empty_machine / "python3.13", "3 13 0 /opt/python3.13")
    assert pythons.choose() == ((3, 13, 0), Path("/opt/python3.13"))


def test_a_shim_that_does_not_run_is_passed_over(empty_machine: Path, tmp_path: Path) -> None:
    (empty_machine / "python3.13").write_text("#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
    (empty_machine / "python3.13").chmod(0o755)
    fake_python(tmp_path / "pyenv/versions/3.13.0/bin/python", "3 13 0 /pyenv/3.13")
    assert pythons.choose()[1] == Path("/pyenv/3.13")


def test_a_closed_pyenv_is_passed_over(empty_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object) -> None:
        raise PermissionError("another user's")

    monkeypatch.setattr(Path, "glob", closed)
    fake_python(empty_machine / "python3.12", "3 12 0 /opt/python3.12")
    assert pythons.choose()[1] == Path("/opt/python3.12")


def test_named_python_is_taken_or_refused(empty_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_python(empty_machine / "python3.13", "3 13 0 /opt/python3.13")
    monkeypatch.setenv("PYTHON", str(fake_python(tmp_path / "mine", "3 11 9 /mine")))
    assert pythons.choose() == ((3, 11, 9), Path("/mine"))
    monkeypatch.setenv("PYTHON", str(fake_python(tmp_path / "old", "3 9 1 /old")))
    with pytest.raises(ToolError, match=r"PYTHON=.*old is not one.*apt-get install python3"):
        pythons.choose()


def test_no_python_at_all(empty_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(fake_python(empty_machine / "python3", "3 9 1 /old")))
    monkeypatch.setattr(pythons, "ACCEPTED", ((3, 99),))
    with pytest.raises(ToolError, match="none on the path or under pyenv"):
        pythons.choose()


def test_named_chromium_comes_first(empty_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = fake_python(empty_machine / "chromium", "Chromium 1")
    assert chromium.find() == on_path
    named = fake_python(tmp_path / "mine", "Chromium 2")
    monkeypatch.setenv("CHROMIUM", str(named))
    assert chromium.find() == named
    monkeypatch.setenv("CHROMIUM", str(tmp_path / "missing"))
    with pytest.raises(ToolError, match="is no file"):
        chromium.find()


def test_unpacked_chromium_is_found_last(empty_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chromium, "LAUNCHER", tmp_path / "chromium.sh")
    monkeypatch.setattr(chromium, "PLAYWRIGHT", tmp_path / "playwright")
    assert chromium.find() is None
    fake_python(tmp_path / "chromium.sh", "Chromium 3")
    assert chromium.find() == tmp_path / "chromium.sh"


def test_every_refusal_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> None:
        raise ToolError("no such mirror")

    monkeypatch.setattr(chromium, "SOURCES", {"unpack": ("unpacking", refuse), "playwright": ("downloading", refuse)})
    with pytest.raises(ToolError) as caught:
        chromium.get(["unpack", "playwright"])
    assert "unpacking: no such mirror" in str(caught.value)
    assert "downloading: no such mirror" in str(caught.value)
    assert "CHROMIUM=/path/to/chromium" in str(caught.value)


def test_a_long_stage_says_that_it_goes_on_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    enough = threading.Event()

    def say(stage: str, text: str) -> None:
        said.append(f"[{stage}] {text}")
        if len(said) == 3:
            enough.set()

    monkeypatch.setattr(common, "say", say)
    monkeypatch.setattr(common, "SECONDS_BETWEEN_LINES", 0.01)
    before = threading.active_count()
    with common.working("pip", "installing"):
        assert enough.wait(60)
    assert said[0] == "[pip] installing …"
    assert re.fullmatch(r"\[pip\] installing: \d+ s so far", said[1])
    assert threading.active_count() == before


def test_every_stage_of_the_set_up_says_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before each command that may take long there is a line, and it is not about the one before."""
    heard: list[str] = []
    monkeypatch.setattr(setup, "VENV", tmp_path)
    monkeypatch.setattr(setup, "NODE_MODULES", tmp_path)
    monkeypatch.setattr(setup, "probe", lambda *_: None)
    monkeypatch.setattr(setup, "choose", lambda: ((3, 13, 0), Path("/opt/python")))
    monkeypatch.setattr(setup, "call", lambda *_: heard.append(capsys.readouterr().out))
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/npm")
    setup.install_python_packages(setup.make_venv())
    setup.install_node_packages()
    assert len(heard) == 4
    assert all(lines.rstrip().endswith("…") for lines in heard)


def test_stamps_follow_contents(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    stamp = tmp_path / "stamp"
    assert not stamped(stamp, fingerprint(tmp_path / "a"))
    stamp.write_text(fingerprint(tmp_path / "a"))
    assert stamped(stamp, fingerprint(tmp_path / "a"))
    (tmp_path / "a").write_text("2")
    assert not stamped(stamp, fingerprint(tmp_path / "a"))
