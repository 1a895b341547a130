"""The bench: metrics, reports and comparisons of the reference, and what it gets wrong."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evermind_web import bench
from evermind_web.errors import InvalidArgumentError
from evermind_web.model import EvermindLM
from evermind_web.tokenizer import BPETokenizer
from tests.golden_data import load_case, number

REPORT = {
    "sequences": "sequences",
    "tokens": "tokens",
    "crossEntropy": "cross_entropy",
    "perplexity": "perplexity",
    "bitsPerToken": "bits_per_token",
    "top1Accuracy": "top1_accuracy",
    "topKAccuracy": "top_k_accuracy",
    "topK": "top_k",
    "elapsedMs": "elapsed_ms",
    "tokensPerSecond": "tokens_per_second",
}


def check_report(got: Any, want: dict[str, Any]) -> None:
    for key, value in want.items():
        assert getattr(got, REPORT[key]) == pytest.approx(number(value), rel=1e-4), key


def trained_tokenizer(text: str = "One two. Three four. Five six seven.") -> BPETokenizer:
    tokenizer = BPETokenizer()
    tokenizer.train(text, num_merges=10)
    return tokenizer


def test_metrics_equal_the_reference() -> None:
    for row in load_case("bench", "bench_metrics")["table"]:
        ce = number(row["ce"])
        assert bench.perplexity(ce) == pytest.approx(number(row["perplexity"]), rel=1e-12, nan_ok=True)
        assert bench.bits_per_token(ce) == pytest.approx(number(row["bits"]), rel=1e-12, nan_ok=True)


def test_top_k_equals_the_reference_and_refuses_fractions() -> None:
    rows = load_case("bench", "bench_topk")["table"]
    judged = 0
    for row in rows:
        logits, k = number(row["logits"]), row["k"]
        if isinstance(k, int) and k >= 1:
            assert bench.top_k_indices(logits, k) == row["top"]
            judged += 1
        else:
            with pytest.raises(InvalidArgumentError, match="k must be"):
                bench.top_k_indices(logits, k)
    assert 10 < judged < len(rows)


def test_cross_entropy_equals_the_reference() -> None:
    for row in load_case("bench", "bench_cross_entropy")["table"]:
        logits, target = np.array(number(row["logits"]), np.float32), row["target"]
        if target >= len(logits):
            with pytest.raises(InvalidArgumentError, match="outside the 2 logits"):
                bench.cross_entropy_loss(logits, target)
        elif np.isfinite(logits).all():
            assert bench.cross_entropy_loss(logits, target) == pytest.approx(row["loss"], rel=1e-12, abs=1e-12)
            assert bench.cross_entropy_grad(logits, target).tolist() == row["grad"]


def test_reports_equal_the_reference() -> None:
    case = load_case("bench", "bench_report_C_perturbed")
    model = EvermindLM.from_checkpoint(case.raw("checkpoint"))
    for row in case["reports"]:
        top_k = row["options"].get("topK", 5)
        check_report(bench.benchmark_model(model, case["sequences"], top_k, measure_latency=False), row["report"])
    ticks = iter(range(1000))
    timed = bench.benchmark_model(model, case["sequences"], 2, now=lambda: 2.5 * next(ticks))
    check_report(timed, case["fake_clock"]["report"])
    check_report(bench.benchmark_model(model, [[], [1]], measure_latency=False), case["nothing_to_score"])
    check_report(bench.benchmark_model(model, [[0, 1]], now=lambda: 7.0), case["zero_elapsed"])


def test_targets_outside_the_vocabulary_are_not_scored() -> None:
    case = load_case("bench", "bench_out_of_range")

    def forward(tokens: list[int]) -> Any:
        return np.array([[i, 1, 2 - i] for i in range(len(tokens))], np.float32)

    stub = SimpleNamespace(forward=forward)
    check_report(bench.benchmark_model(stub, case["sequences"], 2, measure_latency=False), case["report"])


async def test_async_twin_gives_the_same_numbers() -> None:
    model = EvermindLM(17, 4, 1, hidden_dim=6)
    sequences = [[1, 2, 3, 16], [4, 4], [5]]
    want = bench.benchmark_model(model, sequences, measure_latency=False)
    assert await bench.benchmark_model_async(model, sequences, measure_latency=False) == want
    both = await bench.compare_models_async(model, model, sequences, measure_latency=False)
    assert both.winner == "tie"


def test_comparisons_equal_the_reference() -> None:
    for row in load_case("bench", "bench_compare")["table"]:
        sides = [
            SimpleNamespace(
                perplexity=number(row[s]["perplexity"]), top1_accuracy=number(row[s].get("top1Accuracy", "NaN"))
            )
            for s in ("candidate", "baseline")
        ]
        got, want = bench.compare_reports(*sides), row["result"]
        assert got.winner == want["winner"]
        assert got.perplexity_ratio == pytest.approx(number(want["perplexityRatio"]), nan_ok=True)
        assert got.perplexity_delta == pytest.approx(number(want["perplexityDelta"]), nan_ok=True)
        assert got.summary.split(":")[0] == want["summary"].split(":")[0]


def test_corpus_is_cut_at_full_stops() -> None:
    codec = SimpleNamespace(encode=lambda text: list(text), decode=str)

    def cut(text: str) -> list[str]:
        return ["".join(map(str, ids)) for ids in bench.corpus_to_sequences(text, codec)]

    assert cut("One. Two three.\u2003Four!\nFive? 3.14 is.\ufeffEnd") == [
        "One.",
        "Two three.",
        "Four!\nFive? 3.14 is.",
        "End",
    ]
    assert cut("A. . BC.") == ["A.", "BC."]
    assert cut("") == []


def test_bits_per_byte_counts_what_the_tokens_stand_for() -> None:
    tokenizer = trained_tokenizer()
    lengths = bench.token_byte_lengths(tokenizer)
    assert lengths is not None
    text = "Three four, éé 😀."
    assert lengths[tokenizer.encode(text)].sum() == len(text.encode("utf-8"))
    model = EvermindLM(tokenizer.vocab_size, 4, 1, hidden_dim=6)
    report = bench.benchmark_text(model, tokenizer, text, measure_latency=False)
    scored = len(text.encode("utf-8")) - int(lengths[tokenizer.encode(text)[0]])
    assert report.bits_per_byte == pytest.approx(report.bits_per_token * report.tokens / scored)
    assert bench.token_byte_lengths(SimpleNamespace(encode=list)) is None


def test_train_and_benchmark_follows_the_reference() -> None:
    case = load_case("bench", "bench_train_a")
    options, want = case.config["options"], case["result_without_timing"]
    got = bench.train_and_benchmark(
        case.config["corpus"],
        num_merges=options["numMerges"],
        d_model=options["dModel"],
        num_layers=options["numLayers"],
        hidden_dim=options["hiddenDim"],
        epochs=options["epochs"],
        lr=options["lr"],
        seed=options["seed"],
    )
    assert (got.train_sequences, got.eval_sequences, got.vocab_size) == (7, 2, 289)
    assert got.tokens == want["tokens"]  # the same sentences are held out
    assert got.initial_train_loss == pytest.approx(want["initialTrainLoss"], rel=1e-4)
    assert got.final_train_loss == pytest.approx(want["finalTrainLoss"], rel=1e-2)
    assert got.cross_entropy == pytest.approx(want["crossEntropy"], rel=1e-2)
    assert len(got.sample) > 0
    assert got.bits_per_byte is not None


def test_split_is_the_references() -> None:
    case = load_case("bench", "bench_train_a")
    sequences = case["train_sequences"] + case["eval_sequences"]
    for ratio, held_out in ((0.0, 1), (0.25, 2), (0.99, 8)):
        train, evaluation = bench.split_held_out(sequences, ratio, 3)
        assert len(evaluation) == held_out
        assert sorted(train + evaluation) == sorted(sequences)


def test_too_short_a_corpus_is_refused() -> None:
    for corpus in ("", "One two three."):
        with pytest.raises(InvalidArgumentError, match="at least 2 are needed"):
            bench.train_and_benchmark(corpus)


def test_ranks_of_odd_logits() -> None:
    rows = np.array([[1, 1, 0], [math.nan, 0, 1], [-math.inf, 0, 0]], np.float64)
    assert bench._ranks(rows, np.array([1, 0, 0])).tolist() == [1, 3, 3]
    assert bench._ranks(rows, np.array([0, 2, 2])).tolist() == [0, 0, 1]
