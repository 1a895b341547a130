"""The commands on real text: train, stop, resume, write, personalise, measure, convert."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from evermind_web import BPETokenizer, EvermindLM, EvermindLMLoRA
from evermind_web.cli import main
from evermind_web.cli import progress as progress_module
from evermind_web.cli.folder import write_files

SAMPLES = Path(__file__).parents[2] / "web" / "samples"
SMALL = ["--d-model", "12", "--hidden-dim", "8", "--vocab-size", "300", "--window", "32", "--accum-steps", "16"]


def cli(*arguments: str | Path) -> int:
    return main([str(a) for a in arguments])


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two short texts of two authors."""
    folder = tmp_path_factory.mktemp("texts")
    paths = []
    for name in ("alice", "time-machine"):
        paths.append(folder / f"{name}.txt")
        paths[-1].write_text((SAMPLES / f"{name}.txt").read_text(encoding="utf-8")[:5000], encoding="utf-8")
    return paths[0], paths[1]


@pytest.fixture(scope="module")
def taught(texts: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder."""
    folder = tmp_path_factory.mktemp("models") / "alice"
    assert cli("train", texts[0], "-o", folder, *SMALL, "--epochs", 2, "--val-split", 0.1, "--dropout", 0.05) == 0
    return folder


def test_a_trained_folder_holds_model_tokenizer_and_state(taught: Path) -> None:
    assert {p.name for p in taught.iterdir()} == {"model.evl0", "tokenizer.json", "state.safetensors", "run.json"}
    model = EvermindLM.from_checkpoint((taught / "model.evl0").read_bytes())
    assert model.config.d_model == 12
    run = json.loads((taught / "run.json").read_text(encoding="utf-8"))
    assert run["finished"] is True
    assert run["options"]["dropout"] == 0.05


def test_training_reports_losses_that_fall(
    texts: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli("train", *texts, "-o", tmp_path / "m", *SMALL, "--epochs", 3, "--lr", 0.02) == 0
    out, err = capsys.readouterr()
    losses = [float(x) for x in re.findall(r"loss ([\d.]+) nats", out)]
    assert len(losses) == 3
    assert losses[2] < losses[1] < losses[0]
    assert re.search(r"step \d+/\d+ loss [\d.]+, [\d,]+ tokens/s, \d+ s left", err)


def test_ctrl_c_stops_keeps_and_resume_ends_as_if_never_stopped(
    texts: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*SMALL, "--epochs", 3, "--dropout", 0.1]
    assert cli("train", texts[0], "-o", tmp_path / "whole", *options) == 0
    report = progress_module._Lines.on_step

    def press(self: progress_module._Lines, info: object) -> None:
        report(self, info)  # type: ignore[arg-type]
        if info.step == 5:  # type: ignore[attr-defined]
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(progress_module._Lines, "on_step", press)
        assert cli("train", texts[0], "-o", tmp_path / "parts", *options) == 0
    assert signal.getsignal(signal.SIGINT) is before
    assert "go on with --resume" in capsys.readouterr().out
    whole, parts = ((tmp_path / name / "model.evl0") for name in ("whole", "parts"))
    assert whole.read_bytes() != parts.read_bytes()
    assert cli("train", "--resume", "-o", tmp_path / "parts") == 0
    assert whole.read_bytes() == parts.read_bytes()
    assert cli("train", "--resume", "-o", tmp_path / "parts") == 1
    assert "finished" in capsys.readouterr().err


def test_a_crash_costs_no_more_than_the_steps_since_the_last_evaluation(
    texts: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*SMALL, "--epochs", 2, "--val-split", 0.1, "--no-keep-best"]
    assert cli("train", texts[0], "-o", tmp_path / "whole", *options) == 0

    class Crash(Exception):
        pass

    def fail(self: progress_module._Lines, info: object) -> None:
        if info.epoch == 2:  # type: ignore[attr-defined]
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(progress_module._Lines, "on_step", fail)
        with pytest.raises(Crash):
            cli("train", texts[0], "-o", tmp_path / "parts", *options)
    assert cli("train", "--resume", "-o", tmp_path / "parts") == 0
    assert (tmp_path / "whole" / "model.evl0").read_bytes() == (tmp_path / "parts" / "model.evl0").read_bytes()


def test_native_webgpu_learns_the_same(
    texts: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = []
    for backend in ("numpy", "wgpu"):
        assert cli("train", texts[0], "-o", tmp_path / backend, *SMALL, "--backend", backend) == 0
        out = capsys.readouterr().out
        assert f", {backend}" in out
        losses.append(float(re.findall(r"loss ([\d.]+) nats", out)[0]))
    assert losses[0] == pytest.approx(losses[1], abs=2e-3)
    assert (tmp_path / "numpy" / "model.evl0").read_bytes() != (tmp_path / "wgpu" / "model.evl0").read_bytes()


def test_resume_refuses_another_text(
    texts: tuple[Path, Path], taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in taught.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    run = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    (tmp_path / "run.json").write_text(json.dumps(run | {"finished": False}), encoding="utf-8")
    assert cli("train", texts[1], "--resume", "-o", tmp_path) == 1
    assert "not those that the run began with" in capsys.readouterr().err


def test_an_existing_model_is_not_overwritten_and_can_be_the_start(
    texts: tuple[Path, Path], taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (taught / "model.evl0").read_bytes()
    assert cli("train", texts[0], "-o", taught) == 1
    assert "already holds a model" in capsys.readouterr().err
    assert cli("train", texts[1], "--from", taught, "-o", tmp_path / "m", *SMALL) == 0
    assert (taught / "model.evl0").read_bytes() == before
    assert (tmp_path / "m" / "tokenizer.json").read_bytes() == (taught / "tokenizer.json").read_bytes()
    assert (tmp_path / "m" / "model.evl0").read_bytes() != before


def test_writing_is_seeded_and_the_prompt_comes_first(taught: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def write(*options: object) -> str:
        assert cli("generate", taught, "--max-new-tokens", "12", *map(str, options)) == 0
        return capsys.readouterr().out

    first = write("--prompt", "Alice ", "--seed", 3)
    assert first.startswith("Alice ")
    assert first == write("--prompt", "Alice ", "--seed", 3)
    assert first != write("--prompt", "Alice ", "--seed", 4)
    assert not write("--prompt", "Alice ", "--no-echo").startswith("Alice ")
    assert write()  # an empty prompt starts from the begin token


def test_sampling_flags_reach_the_model(taught: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def write(*options: object) -> str:
        common = ["--max-new-tokens", "20", "--no-echo", "--prompt", "Alice ", "--seed", "3"]
        assert cli("generate", taught, *common, *map(str, options)) == 0
        return capsys.readouterr().out

    greedy, plain = write("--temperature", 0), write()
    assert greedy != plain
    for flag in (["--top-k", 1], ["--top-p", 1e-6], ["--min-p", 0.999]):
        assert write(*flag) == greedy
    assert write("--repetition-penalty", 100, "--temperature", 0) != greedy
    assert write("--logit-bias", "70=100", "--temperature", 0).strip() == BPETokenizer.from_file(
        taught / "tokenizer.json"
    ).decode([70] * 20)
    assert write("-n", 2) == plain + write("--seed", 4)
    assert len(plain) > 3
    assert write("--stop", plain[2:4]) == plain[: plain.index(plain[2:4])] + "\n"
    assert cli("generate", taught, "--top-p", "0") == 1
    assert "top_p" in capsys.readouterr().err
    assert cli("generate", taught, "-n", "2", "--seed", str(2**32 - 1)) == 1  # before a word is written
    shown = capsys.readouterr()
    assert "2 texts" in shown.err
    assert not shown.out


@pytest.mark.parametrize("wrong", [["--top-p", "7"], ["--logit-bias", "999999=1"], ["--stop", ""]])
def test_nothing_is_printed_before_the_settings_are_checked(
    wrong: list[str], taught: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli("generate", taught, "--prompt", "Alice ", *wrong) == 1
    assert capsys.readouterr().out == ""


def test_a_run_that_fails_leaves_nothing_and_a_failed_save_the_old_files(
    texts: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli("train", texts[0], "-o", tmp_path / "m", *SMALL, "--lr", "1e30") == 1
    assert "not finite" in capsys.readouterr().err
    assert not (tmp_path / "m").exists()

    write_files(tmp_path / "two", {"a": b"old", "b": b"old"})
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_at(2))
        with pytest.raises(OSError, match="No space left"):
            write_files(tmp_path / "two", {"a": b"new", "b": b"new"})
    assert {p.name: p.read_bytes() for p in (tmp_path / "two").iterdir()} == {"a": b"old", "b": b"old"}


def full_at(call: int) -> Callable[[int], None]:
    """`os.fsync` on a disk that is full at that call."""
    calls = iter(range(1, call + 1))

    def fsync(file: int) -> None:
        if next(calls) == call:
            raise OSError(errno.ENOSPC, "No space left on device")

    return fsync


def test_converting_over_the_source_or_another_model_is_refused(
    taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, published = tmp_path / "m", tmp_path / "hf"
    shutil.copytree(taught, model)
    assert cli("convert", model, published) == 0
    assert cli("convert", model, published) == 0  # what it wrote itself may be written again
    kept = {p: p.read_bytes() for p in (*model.iterdir(), *published.iterdir())}
    for source, target in (
        (model, model), (model, model / "model.evl0"), (model / "model.evl0", model), (published, published),
        (published, published / "model.safetensors"), (published / "model.safetensors", published), (published, model),
    ):  # fmt: skip
        assert cli("convert", source, target, "--fp16") == 2
        assert "written over; name another TARGET" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in (*model.iterdir(), *published.iterdir())} == kept


def test_an_adapter_learns_leaves_the_base_and_knows_it(
    texts: tuple[Path, Path], taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, adapter = (taught / "model.evl0").read_bytes(), tmp_path / "wells.lora"
    training = ["--window", 32, "--epochs", 2, "--lr", 0.03, "--rank", 4]
    assert cli("personalize", taught, texts[1], "-o", adapter, *training) == 0
    found = re.search(r"([\d.]+) → ([\d.]+) nats", capsys.readouterr().out)
    assert found is not None
    assert float(found[2]) < float(found[1])
    assert (taught / "model.evl0").read_bytes() == before
    lora = EvermindLMLoRA.load_adapter(
        EvermindLM.from_checkpoint(before),
        adapter.read_bytes(),
        base_fingerprint=EvermindLM.from_checkpoint(before).fingerprint(),
    )
    assert np.any(lora.adapter.B)

    assert cli("bench", texts[1], "--model", taught, "--adapter", adapter, "--against", taught, "--json") == 0
    comparison = json.loads(capsys.readouterr().out)
    assert comparison["winner"] == "candidate"
    assert comparison["candidate"]["perplexity"] < comparison["baseline"]["perplexity"]

    plain, adapted = [], []
    for target, options in ((plain, []), (adapted, ["--adapter", adapter])):
        assert cli("generate", taught, "--max-new-tokens", 12, "--temperature", 0, *options) == 0
        target.append(capsys.readouterr().out)
    assert plain != adapted

    # half of the adapter lies between none and all of it
    losses = []
    for weight in ("0", "0.5", "1"):
        assert cli("bench", texts[1], "--model", taught, "--adapter", f"{adapter}={weight}", "--json") == 0
        losses.append(json.loads(capsys.readouterr().out)["cross_entropy"])
    assert losses[0] > losses[1] > losses[2]

    other = tmp_path / "other"
    assert cli("train", texts[0], "-o", other, *SMALL, "--model-seed", 9) == 0
    capsys.readouterr()
    assert cli("generate", other, "--adapter", adapter) == 1
    assert "was trained on base" in capsys.readouterr().err
    assert cli("generate", other, "--adapter", adapter, "--force", "--max-new-tokens", 2) == 0


def test_an_adapter_of_all_matrices_is_a_peft_folder(
    texts: tuple[Path, Path], taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--window", 32, "--lr", 0.02, "--rank", 2, "--accum-steps", 16]
    targets = ["--target-modules", "all-linear", "router", "--rank-pattern", "router=1"]
    assert cli("personalize", taught, texts[1], "-o", tmp_path / "me", *common, *targets, "--use-rslora") == 0
    assert {p.name for p in (tmp_path / "me").iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    capsys.readouterr()
    assert cli("inspect", tmp_path / "me", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["adapter_config.json"]["use_rslora"] is True
    assert len(found["adapter_model.safetensors"]["tensors"]) == 2 * (1 + 2 * (1 + 2 * 5))
    assert cli("bench", texts[1], "--model", taught, "--adapter", tmp_path / "me", "--against", taught, "--json") == 0
    assert json.loads(capsys.readouterr().out)["winner"] == "candidate"
    assert cli("personalize", taught, texts[1], "-o", tmp_path / "me.lora", *targets) == 1
    assert "folder" in capsys.readouterr().err


def test_adapters_go_from_lora_to_peft_and_back(
    texts: tuple[Path, Path], taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli("personalize", taught, texts[1], "-o", tmp_path / "a.lora", "--rank", 3, "--window", 32) == 0
    assert cli("convert", tmp_path / "a.lora", tmp_path / "peft", "--base", taught) == 0
    assert cli("convert", tmp_path / "peft", tmp_path / "b.lora", "--base", taught) == 0
    assert cli("convert", tmp_path / "peft", tmp_path / "peft", "--base", taught) == 2
    for end in ("", ".json"):
        assert (tmp_path / f"a.lora{end}").read_bytes() == (tmp_path / f"b.lora{end}").read_bytes()


def test_bench_reports_windows_sentences_and_a_trained_model(
    texts: tuple[Path, Path], taught: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = []
    for options in (["--model", taught], ["--model", taught, "--window", 32], ["--epochs", 2]):
        assert cli("bench", texts[0], "--json", *options) == 0
        reports.append(json.loads(capsys.readouterr().out))
    sentences, windows, trained = reports
    assert sentences["tokens"] != windows["tokens"]
    for report in reports:
        assert report["perplexity"] == pytest.approx(np.exp(report["cross_entropy"]))
        assert report["bits_per_byte"] < report["bits_per_token"]
        assert 0 < report["top1_accuracy"] <= report["top_k_accuracy"]
        assert report["tokens_per_second"] > 0
    assert trained["final_train_loss"] < trained["initial_train_loss"]
    assert cli("bench", texts[0], "--model", taught) == 0
    assert re.search(r"bits per byte +\d", capsys.readouterr().out)


def test_windows_of_bench_score_every_token_once(
    texts: tuple[Path, Path], taught: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = BPETokenizer.from_file(taught / "tokenizer.json").encode(texts[0].read_text(encoding="utf-8"))
    assert cli("bench", texts[0], "--model", taught, "--window", 32, "--json") == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == len(ids) - 1


def test_a_bar_on_a_terminal_and_lines_elsewhere(
    texts: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    assert cli("train", texts[0], "-o", tmp_path / "m", *SMALL, "--val-split", 0.1) == 0
    err = capsys.readouterr().err
    assert "validation loss" in err
    assert not re.search(r"^step \d+/\d+ loss", err, re.MULTILINE)
