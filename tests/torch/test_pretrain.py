"""Pretraining on tiny texts: one process against two, runs that are killed and go on, files, data order."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from evermind_web import EvermindLM
from evermind_web.errors import ConfigMismatchError, InvalidArgumentError
from evermind_web.formats.evl0 import read_evl0
from evermind_web.tokenizer import BPETokenizer
from evermind_web.torch import runs
from evermind_web.torch.corpus import Windows, prepare, split_end
from evermind_web.torch.recipe import Recipe
from evermind_web.torch.subword import SubwordSampler
from evermind_web.torch.trainer import CHECKPOINT, CURVE

SMALL = {
    "vocab_size": 280, "d_model": 16, "num_layers": 2, "conv_kernel": 3, "hidden_dim": 24, "num_experts": 3, "top_k": 2,
    "window": 16, "batch": 4, "epochs": 1.0, "lr": 0.01, "warmup": 4, "dropout": 0.0, "ema": 0.9, "val_fraction": 0.1,
    "eval_every": 10, "save_seconds": 0.0,
}  # fmt: skip


def write_text(path: Path, words: int = 700, seed: int = 1) -> Path:
    """A text of a few words that follow one another by a rule, so that there is something to learn."""
    rng = random.Random(seed)
    names = ["the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "slept", "well"]
    out, at = [], 0
    for i in range(words):
        at = (at * 3 + rng.randrange(2) + 1) % len(names)
        out.append(names[at] + ("\n\n" if i % 40 == 39 else ""))
    path.write_text(" ".join(out), encoding="utf-8")
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_text(tmp_path / "text.txt")


def command(text: Path, out: Path, **changes: object) -> list[str]:
    """A pretraining command without the interpreter."""
    options = [f"--{k.replace('_', '-')}={v}" for k, v in (SMALL | changes).items()]
    return ["-m", "evermind_web.pretrain", str(text), f"--out={out}", "--device=cpu", *options]


def steps_of(out: Path) -> list[int]:
    lines = (out / CURVE).read_text().splitlines(keepends=True)
    return [json.loads(line)["step"] for line in lines if line.endswith("}\n")]


def weights_of(out: Path) -> np.ndarray:
    return read_evl0((out / "model.evl0").read_bytes())[1]


def test_a_run_learns_and_writes_what_the_package_reads(text: Path, tmp_path: Path) -> None:
    unseen = write_text(tmp_path / "unseen.txt", 200, seed=2)
    metrics = runs.run(Recipe(**SMALL), [text], tmp_path / "out", unseen=[unseen], test=[unseen], device="cpu")
    lm = EvermindLM.from_checkpoint((tmp_path / "out/model.evl0").read_bytes())
    tokenizer = BPETokenizer.from_file(tmp_path / "out/tokenizer.json")
    assert lm.check_codec(tokenizer) is tokenizer
    ids = tokenizer.encode(unseen.read_text())
    bits = lm.evaluate([ids]) * (len(ids) - 1) / np.log(2)
    scored = len(unseen.read_bytes()) - len(tokenizer.decode(ids[:1]).encode())
    assert metrics["scores"]["test"]["bits_per_byte"] == pytest.approx(bits / scored, rel=1e-4)
    assert metrics["scores"]["test"]["fp16"] == pytest.approx(bits / scored, rel=1e-3)
    assert metrics["scores"]["test"]["bits_per_byte"] < 2  # a byte drawn blindly takes 8, one of 280 tokens about 3
    assert metrics == json.loads((tmp_path / "out/metrics.json").read_text())
    assert steps_of(tmp_path / "out") == list(range(metrics["steps"]))
    half = EvermindLM.from_checkpoint((tmp_path / "out/model.fp16.evl0").read_bytes())
    assert half.config == lm.config


@pytest.mark.parametrize("dropped", [{}, {"dropout": 0.2, "token_dropout": 0.1, "subword_dropout": 0.1}])
def test_two_gloo_processes_are_one(text: Path, tmp_path: Path, dropped: dict[str, float]) -> None:
    runs.run(Recipe(**SMALL | dropped), [text], tmp_path / "one", device="cpu")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*torchrun, *command(text, tmp_path / "two", **dropped)], check=True, timeout=300)
    one, two = (weights_of(tmp_path / name) for name in ("one", "two"))
    if dropped:  # each process drops its own: not the same numbers, but it must run
        assert np.isfinite(two).all()
        return
    np.testing.assert_allclose(two, one, atol=1e-4)
    curves = [[json.loads(x)["loss"] for x in (tmp_path / n / CURVE).read_text().splitlines()] for n in ("one", "two")]
    np.testing.assert_allclose(curves[1], curves[0], atol=1e-4)


def start_ranks(text: Path, out: Path, **changes: object) -> list[subprocess.Popen[bytes]]:
    """Two processes of one run, as torchrun would start them, but each ours to kill."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(
            [sys.executable, *command(text, out, **changes)],
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]


def test_a_rank_killed_in_mid_run_costs_no_batch_and_repeats_none(text: Path, tmp_path: Path) -> None:
    changes = {"epochs": 45.0, "dropout": 0.2, "subword_dropout": 0.1, "eval_every": 210}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for rank in start_ranks(text, whole, **changes):
        assert rank.wait(300) == 0
    ranks = start_ranks(text, broken, **changes)
    try:
        deadline = time.monotonic() + 200
        while not (broken / CHECKPOINT).exists() or steps_of(broken)[-1] < 230:  # past a checkpoint, not at one
            assert time.monotonic() < deadline
            time.sleep(0.005)
        ranks[1].send_signal(signal.SIGKILL)
        assert ranks[0].wait(100) != 0  # the other cannot go on alone
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert not (broken / "metrics.json").exists()
    for rank in start_ranks(text, broken, **changes):
        assert rank.wait(300) == 0
    assert steps_of(broken) == steps_of(whole) == list(range(len(steps_of(whole))))
    np.testing.assert_array_equal(weights_of(broken), weights_of(whole))
    assert (broken / CURVE).read_text() == (whole / CURVE).read_text()


def test_a_checkpoint_of_another_run_is_refused(text: Path, tmp_path: Path) -> None:
    runs.run(Recipe(**SMALL | {"epochs": 0.1}), [text], tmp_path / "out", device="cpu")
    with pytest.raises(ConfigMismatchError, match="another run"):
        runs.run(Recipe(**SMALL | {"epochs": 0.1, "lr": 0.02}), [text], tmp_path / "out", device="cpu")


def test_every_window_comes_once_an_epoch_and_is_shared_without_overlap() -> None:
    recipe = Recipe(window=8, batch=4)
    windows = Windows(np.arange(1000), recipe)
    seen: list[int] = []
    for step in range(windows.steps_per_epoch):
        whole = windows.batch(step)
        halves = [Windows(np.arange(1000), recipe).batch(step, rank, 2) for rank in range(2)]
        assert np.array_equal(np.sort(np.concatenate(halves)[:, 0]), np.sort(whole[:, 0]))
        assert np.array_equal(whole, whole[:, :1] + np.arange(9))
        seen += whole[:, 0].tolist()
    assert len(set(seen)) == len(seen)
    assert len(seen) >= 1000 // 8 - 4
    later = windows.batch(windows.steps_per_epoch)
    assert not np.array_equal(later, windows.batch(0))
    assert np.array_equal(later, Windows(np.arange(1000), recipe).batch(windows.steps_per_epoch))


def test_subword_dropout_changes_the_cut_and_never_the_text(text: Path) -> None:
    document = text.read_text() + " naïve café — “quoted” 12345"
    tokenizer = BPETokenizer()
    tokenizer.train(document, vocab_size=300)
    usual = tokenizer.encode(document, add_bos=True, add_eos=True)
    assert SubwordSampler(tokenizer, [document], 0.0, 1).epoch(1, 0).tolist() == usual
    sampler = SubwordSampler(tokenizer, [document], 0.2, 1)
    first, second = sampler.epoch(1, 0).tolist(), sampler.epoch(1, 1).tolist()
    assert first != usual
    assert first != second
    assert len(first) > len(usual)
    for ids in (first, second):
        assert tokenizer.decode(ids, skip_special_tokens=True) == document
    assert SubwordSampler(tokenizer, [document], 0.2, 1).epoch(1, 1).tolist() == second


def test_what_is_held_out_is_not_trained_on(text: Path, tmp_path: Path) -> None:
    marked = text.read_text() + "\n\n" + "Zanzibar " * 60
    text.write_text(marked)
    kept, end = split_end(marked, 0.1)
    assert kept + end == marked
    assert "Zanzibar" in end
    assert "Zanzibar" not in kept
    corpus = prepare([text], [], [], Recipe(**SMALL), tmp_path / "data")
    assert "Zanzibar" not in corpus.tokenizer.decode(corpus.train.tolist())
    assert corpus.tokenizer.decode(corpus.held_out["validation"][0].tolist()) == end
    assert "Zan" not in corpus.tokenizer.vocab


def test_impossible_recipes_are_refused() -> None:
    for wrong in ({"dropout": 1.5}, {"window": 0}, {"precision": "fp8"}):
        with pytest.raises(InvalidArgumentError):
            Recipe(**wrong)
    with pytest.raises(InvalidArgumentError, match="learning_rate"):
        Recipe.from_json({"learning_rate": 1})
