"""What was learned is not lost: cut writes, two runs at once, Ctrl-C at any stage, readers that are gone."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evermind_web import EvermindLM, resolve_backend
from evermind_web.cli import folder, main
from evermind_web.cli import progress as progress_module
from evermind_web.cli.folder import claimed, settle, write_files
from evermind_web.errors import FormatError, InvalidArgumentError
from evermind_web.training import EvermindLMTrainer

SMALL = ("--d-model", "4", "--hidden-dim", "4", "--num-layers", "1", "--vocab-size", "270", "--window", "16")


def cli(*arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments])


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("Alice was beginning to get very tired of sitting by her sister on the bank. " * 3)
    return path


@pytest.fixture
def model(text: Path, tmp_path: Path) -> Path:
    assert cli("train", text, "-o", tmp_path / "model", *SMALL) == 0
    return tmp_path / "model"


class Killed(BaseException):
    """The process ends: nothing that comes after it in the block, not even a clean-up, is done."""


def killed_at(call: int, patch: pytest.MonkeyPatch) -> None:
    """From that change of a folder on, every change fails."""
    calls = [0]

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any, **options: Any) -> Any:
            calls[0] += 1
            if calls[0] >= call:
                raise Killed
            return real(*arguments, **options)

        return change

    for name in ("replace", "unlink"):
        patch.setattr(Path, name, dying(getattr(Path, name)))


def test_a_write_that_is_cut_at_any_moment_leaves_all_old_or_all_new_files(tmp_path: Path) -> None:
    outcomes = []
    for call in range(1, 6):
        place = tmp_path / str(call)
        for content in (b"old", b"new"):
            with pytest.MonkeyPatch.context() as patch:
                if content == b"new":
                    killed_at(call, patch)
                    with pytest.raises(Killed):
                        write_files(place, dict.fromkeys(("a", "b", "c"), content))
                else:
                    write_files(place, dict.fromkeys(("a", "b", "c"), content))
        settle(place)
        (found,) = {(place / name).read_bytes() for name in ("a", "b", "c")}
        outcomes.append(found)
        write_files(place, {"a": b"next"})
        assert (place / "a").read_bytes() == b"next"
    assert outcomes == [b"old", *[b"new"] * 4]


@pytest.mark.parametrize("moving", [{"a": "../b"}, {"../a": "b"}, {"a": 3}, {"/tmp/a": "b"}])
def test_a_list_of_moves_cannot_reach_out_of_its_folder(moving: dict[str, Any], tmp_path: Path) -> None:
    place = tmp_path / "m"
    place.mkdir()
    (tmp_path / "a").write_text("outside")
    (place / "a").write_text("inside")
    (place / ".moving.json").write_text(json.dumps(moving))
    with pytest.raises(FormatError, match="no file of this folder"):
        settle(place)
    assert not (tmp_path / "b").exists()
    assert not (place / "b").exists()


def test_a_reader_that_settles_late_does_not_lose_the_next_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        killed_at(2, patch)  # its list lies there
        with pytest.raises(Killed):
            write_files(tmp_path, {"a": b"cut short"})
    has_read, may_go_on = threading.Event(), threading.Event()
    reader = threading.Thread(target=settle, args=(tmp_path,))

    def slow(_: Path) -> None:
        if threading.current_thread() is reader:
            has_read.set()
            may_go_on.wait(10)

    def replaced(path: Path, target: Path) -> Path:
        moved = replace(path, target)
        if target.name.startswith(".moving"):  # the next write is listed, and nothing of it moved
            may_go_on.set()
            reader.join()
        return moved

    replace = Path.replace
    monkeypatch.setattr(folder, "sync_folder", slow)
    monkeypatch.setattr(Path, "replace", replaced)
    reader.start()
    has_read.wait(10)
    write_files(tmp_path, {"a": b"next"})
    assert (tmp_path / "a").read_bytes() == b"next"
    assert os.listdir(tmp_path) == ["a"]


def test_two_runs_that_save_into_one_folder_at_once_both_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = iter([{"b": b"2"}])

    def replaced(path: Path, target: Path) -> Path:
        for files in others:  # another run, from its beginning to its end
            write_files(tmp_path, files)
        return replace(path, target)

    replace = Path.replace
    monkeypatch.setattr(Path, "replace", replaced)
    write_files(tmp_path, {"a": b"1"})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"1", "b": b"2"}


def changing(monkeypatch: pytest.MonkeyPatch, reads: dict[int, Callable[[], object]]) -> None:
    """After that many reads of files, from 1 on, something happens to them."""
    read, count = Path.read_bytes, [0]

    def read_bytes(path: Path) -> bytes:
        data = read(path)
        count[0] += 1
        reads.get(count[0], lambda: None)()
        return data

    monkeypatch.setattr(Path, "read_bytes", read_bytes)


def test_a_model_replaced_while_it_is_read_is_the_new_one_whole(
    model: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("train", text, "-o", tmp_path / "new", *SMALL, "--vocab-size", "264", "--seed", "2") == 0
    files = {name: (tmp_path / "new" / name).read_bytes() for name in (folder.MODEL, folder.TOKENIZER)}
    changing(monkeypatch, {1: lambda: write_files(model, files)})  # the tokenizer is read, the weights are not
    found, tokenizer = folder.load_model(model, resolve_backend("numpy"))
    assert (found.export_weights(), tokenizer.to_str().encode()) == (files[folder.MODEL], files[folder.TOKENIZER])


def test_an_adapter_replaced_while_it_is_read_keeps_its_own_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.lora"
    old, new = (
        {path.name: data, f"{path.name}.json": b'{"base_fingerprint": "%s"}' % data} for data in (b"old", b"new")
    )
    write_files(tmp_path, old)
    changing(monkeypatch, {1: lambda: write_files(tmp_path, new)})
    assert folder.read_adapter(path) == (b"new", "new")


def test_a_text_written_while_it_is_read_is_whole_or_refused(
    text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changing(monkeypatch, {1: lambda: text.write_text("the new text")})
    assert folder.read_texts([str(text)]) == ["the new text"]
    longer = iter(range(1, 100))
    changing(monkeypatch, dict.fromkeys(range(1, 100), lambda: text.write_text("x" * next(longer))))
    assert cli("inspect", text) == 1
    assert f"{text} changes while it is read; try again" in capsys.readouterr().err


def test_two_runs_do_not_write_to_one_place(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with claimed(tmp_path / "m", folder=True):
        assert cli("train", text, "-o", tmp_path / "m", *SMALL) == 1
        assert "another run is writing" in capsys.readouterr().err
    assert not (tmp_path / "m").exists()
    lora = tmp_path / "a.lora"
    with claimed(lora, folder=False), pytest.raises(InvalidArgumentError, match="another run"), claimed(lora, False):
        pass
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / ".model.evl0.0123abcd.tmp").write_text("of a run that was killed")
    assert cli("train", text, "-o", tmp_path / "m", *SMALL) == 0
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == sorted(
        (folder.MODEL, folder.TOKENIZER, folder.STATE, folder.RUN)
    )


def test_a_place_that_takes_no_files_is_said_before_the_work(
    model: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("evermind_web.training.loop.Loop.run", lambda *_: pytest.fail("it has begun to train"))
    (tmp_path / "is a folder.lora").mkdir()
    for place in (text, text / "below"):
        assert cli("train", text, "-o", place, *SMALL) == 1
    for place in (text, text / "x.lora", tmp_path / "is a folder.lora"):
        assert cli("personalize", model, text, "-o", place) == 1
    assert capsys.readouterr().err.count("error:") == 5


def test_no_file_of_a_trained_model_is_converted_over(
    model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli("train", text, "-o", tmp_path / "other", *SMALL, "--model-seed", 5) == 0
    kept = {p: p.read_bytes() for p in (*model.iterdir(), *(tmp_path / "other").iterdir())}
    for place in (model, tmp_path / "other"):
        for name in (folder.MODEL, folder.TOKENIZER, folder.STATE, folder.RUN):
            assert cli("convert", model, place / name, "--to", "evl0") == 2
            assert "written over" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in kept} == kept
    assert cli("convert", model, model / "copy.gguf") == 0


def press(at: str, patch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the last step, while it saves, or before the first step."""
    if at == "last step":
        report = progress_module._Lines.on_step

        def on_step(self: progress_module._Lines, info: Any) -> None:
            report(self, info)
            if info.step == info.total_steps:
                signal.raise_signal(signal.SIGINT)

        patch.setattr(progress_module._Lines, "on_step", on_step)
        return
    owner, name = (EvermindLMTrainer, "save_state") if at == "save" else (EvermindLMTrainer, "fit_async")
    real = getattr(owner, name)

    def change(*arguments: Any, **options: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return real(*arguments, **options)

    patch.setattr(owner, name, change)


@pytest.mark.parametrize("at", ["last step", "save", "before"])
def test_ctrl_c_at_any_stage_keeps_what_was_learned(
    at: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "m"
    with monkeypatch.context() as patch:
        press(at, patch)
        assert cli("train", text, "-o", place, *SMALL) == 0
    finished = json.loads((place / folder.RUN).read_text())["finished"]
    assert finished == (at != "before")
    assert EvermindLM.from_checkpoint((place / folder.MODEL).read_bytes()).config.d_model == 4
    assert ("--resume" in capsys.readouterr().out) == (at == "before")
    assert cli("train", "--resume", "-o", place) == int(finished)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="a system without hang-ups")
def test_a_terminal_that_closes_stops_and_saves_unless_it_is_to_be_ignored() -> None:
    stops = list[int]()
    with progress_module.stopping(lambda: stops.append(1)) as came:
        signal.raise_signal(signal.SIGHUP)
    assert (came, stops) == ([signal.SIGHUP], [1])
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with progress_module.stopping(lambda: stops.append(2)):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert stops == [1]


class Gone(io.StringIO):
    """A stream whose reader has left."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def isatty(self) -> bool:
        return False


def test_a_reader_of_the_progress_that_leaves_ends_no_training(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", Gone())
    assert cli("train", text, "-o", tmp_path / "m", *SMALL, "--val-split", 0.2) == 0
    assert (tmp_path / "m" / folder.MODEL).exists()


def test_closed_streams_and_small_encodings(text: Path, tmp_path: Path) -> None:
    def run(tail: str, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
        command = ["sh", "-c", f'"$@" {tail}', "sh", sys.executable, "-m", "evermind_web", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, env=os.environ | variables, check=False)

    assert run("<&- >&- 2>&-", "train", text, "-o", tmp_path / "m", *SMALL).returncode == 0
    generate = ("generate", tmp_path / "m", "--prompt", "Zoë 🙂", "--max-new-tokens", "1")
    shown = run("", *generate, PYTHONIOENCODING="ascii")
    assert shown.returncode == 0
    assert shown.stdout.startswith(b"Zo? ?")
    assert run(">&-", *generate).returncode == 0
