"""Exit codes, errors in one line, and flags that cannot fall behind the library's options."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from evermind_web import BPETokenizer, GenerationConfig, TrainingOptions
from evermind_web.cli import main
from evermind_web.cli.options import GENERATION_HELP, HELP
from evermind_web.cli.train import windows
from evermind_web.optim import AdamWOptions


def test_every_training_option_is_a_flag_with_a_help_text(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("train", "personalize"):
        with pytest.raises(SystemExit) as stop:
            main([command, "--help"])
        assert stop.value.code == 0
        shown = capsys.readouterr().out
        for field in (*fields(TrainingOptions), *fields(AdamWOptions)):
            if field.name == "shard":
                continue
            assert "--" + field.name.replace("_", "-") in shown
            assert field.name in HELP, f"say in evermind_web/cli/options.py what {field.name} does"


def test_every_number_of_a_generation_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    shown = capsys.readouterr().out
    for field in fields(GenerationConfig):
        if field.name not in ("stop_token", "stop_tokens"):  # the tokenizer's end token is one
            assert "--" + field.name.replace("_", "-") in shown
        if field.type in ("int", "float"):
            assert field.name in GENERATION_HELP, f"say in evermind_web/cli/options.py what {field.name} does"


@pytest.mark.parametrize(
    "arguments",
    [[], ["nonsense"], ["train"], ["generate"], ["train", "x", "-o", "y", "--epochs", "many"],
     ["generate", "m", "-n", "0"], ["generate", "m", "-n", "-1"]],
)  # fmt: skip
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "missing.txt", "-o", "m"], "missing.txt: No such file"),
        (["train", "-o", "m"], "no TEXT"),
        (["train", "binary.txt", "-o", "m"], "binary"),
        (["train", "word.txt", "-o", "m"], "need at least 2 tokens"),
        (["train", "text.txt", "-o", "m", "--top-k", "9"], "top_k"),
        (["train", "text.txt", "-o", "m", "--val-split", "1"], "--val-split"),
        (["train", "text.txt", "-o", "m", "--dropout", "2"], "dropout"),
        (["train", "--resume", "-o", "m"], "no run to resume"),
        (["generate", "m"], "no tokenizer.json"),
        (["bench", "text.txt", "--adapter", "a.lora"], "need --model"),
        (["inspect", "text.txt"], "not a file of this package"),
        (["convert", "text.txt", "x.gguf"], "no language model"),
        (["convert", "text.txt", "x.foo"], "no format goes by"),
        (["convert", "m", "x.gguf"], "m: No such file"),
    ],
)
def test_errors_are_one_line_and_exit_with_1(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("A short text. And one more sentence of it.", encoding="utf-8")
    Path("word.txt").write_text("a", encoding="utf-8")
    Path("binary.txt").write_bytes(bytes(range(256)))
    assert main(arguments) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("evermind_web: error: ")
    assert message in error
    assert not Path("m", "model.evl0").exists()


@pytest.mark.parametrize("content", ["", " \n\t\n"], ids=["nothing", "blanks"])
@pytest.mark.parametrize(
    "arguments", [["train", "-o", "m"], ["bench"], ["bench", "--model", "m"], ["personalize", "m", "-o", "a.lora"]]
)
def test_an_empty_text_is_wrong_usage(
    arguments: list[str], content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("A short text. And one more sentence of it.", encoding="utf-8")
    Path("empty.txt").write_text(content, encoding="utf-8")
    before = {"text.txt", "empty.txt"}
    if "m" in arguments[:3] and arguments[0] != "train":
        assert main(["train", "text.txt", "-o", "m", "--d-model", "4", "--hidden-dim", "4", "--window", "8"]) == 0
        before.add("m")
    texts = ["text.txt", "empty.txt"]
    where = 2 if arguments[0] == "personalize" else 1
    assert main([*arguments[:where], *texts, *arguments[where:]]) == 2
    assert "empty.txt is empty" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == before


def test_windows_are_mixed_once_and_the_end_of_each_text_is_held_out() -> None:
    tokenizer = BPETokenizer()
    tokenizer.train("")
    settings = {"window": 4, "val_split": 0.25, "shuffle": False, "options": {"seed": 1}}
    texts = ["abcdefghijklmnopq", "ABCDEFGHI"]  # 4 windows and 2
    train, held_out = windows(texts, tokenizer, settings)
    assert [tokenizer.decode(list(w.tokens)) for w in train] == ["abcd", "efgh", "ijkl", "ABCD"]
    assert [tokenizer.decode(list(w.tokens)) for w in held_out] == ["mnop", "EFGH"]
    mixed = [
        [tokenizer.decode(list(w.tokens)) for w in windows(texts, tokenizer, settings | change)[0]]
        for change in ({"shuffle": True}, {"shuffle": True}, {"shuffle": True, "options": {"seed": 2}})
    ]
    assert sorted(mixed[0]) == ["ABCD", "abcd", "efgh", "ijkl"]
    assert mixed[0] == mixed[1] != mixed[2]


def test_the_module_runs_and_knows_its_version() -> None:
    shown = subprocess.run([sys.executable, "-m", "evermind_web", "--version"], capture_output=True, text=True)
    from evermind_web import __version__

    assert shown.returncode == 0
    assert shown.stdout.strip() == f"evermind_web {__version__}"


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "long.json"
    path.write_text('{"a": [' + ",".join(["1"] * 300_000) + "]}", encoding="utf-8")
    command = f'"{sys.executable}" -m evermind_web inspect --json "{path}" | head -1'
    shown = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert shown.stdout == "{\n"
    assert "Traceback" not in shown.stderr
