"""Measure a model on texts, or two against each other; without --model: train a small one on part, score the rest."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evermind_web import bench
from evermind_web.batch import pack_windows
from evermind_web.cli import folder
from evermind_web.cli.options import add_backend_flag, open_backend
from evermind_web.errors import InvalidArgumentError

NAME = "bench"
ROWS = (  # field, label, format
    ("sequences", "sequences", "{:,}"),
    ("tokens", "predicted tokens", "{:,}"),
    ("cross_entropy", "cross-entropy (nats a token)", "{:.4f}"),
    ("perplexity", "perplexity", "{:.3f}"),
    ("bits_per_token", "bits per token", "{:.4f}"),
    ("bits_per_byte", "bits per byte", "{:.4f}"),
    ("top1_accuracy", "top-1 accuracy", "{:.2%}"),
    ("top_k_accuracy", "top-{top_k} accuracy", "{:.2%}"),
    ("tokens_per_second", "scored tokens per second", "{:,.0f}"),
    ("initial_train_loss", "first training loss", "{:.4f}"),
    ("final_train_loss", "last training loss", "{:.4f}"),
    ("vocab_size", "vocabulary", "{:,}"),
    ("sample", "sample", "{!r}"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    parser.add_argument("text", nargs="+", metavar="TEXT", help="UTF-8 text files")
    parser.add_argument("--model", type=Path, metavar="DIR", help="the model to measure")
    parser.add_argument("--adapter", nargs="+", metavar="FILE[=WEIGHT]", help="adapters on it, mixed")
    parser.add_argument("--against", type=Path, metavar="DIR", help="a second model, the baseline")
    parser.add_argument("--window", type=int, default=0, help="score windows of this many tokens; 0: sentences")
    parser.add_argument("--top-k", type=int, default=5, help="accuracy among the k likeliest tokens")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_backend_flag(parser)
    group = parser.add_argument_group("train and measure (without --model)")
    group.add_argument("--num-merges", type=int, default=100, help="merges of the tokenizer")
    group.add_argument("--epochs", type=int, default=30, help="passes over the training part")
    group.add_argument("--lr", type=float, default=0.03, help="learning rate")
    group.add_argument("--seed", type=int, default=7, help="of the split and the weights")
    group.add_argument("--held-out-ratio", type=float, default=0.25, help="part of the sentences to score")


async def run(arguments: argparse.Namespace) -> None:
    """Print a report, or a comparison."""
    texts = folder.read_texts(arguments.text)
    if arguments.model is None:
        if arguments.against or arguments.adapter:
            raise InvalidArgumentError("--against and --adapter need --model")
        report: Any = await _trained(arguments, "\n".join(texts))
        _print(arguments, asdict(report))
        return
    report = await _measured(arguments, arguments.model, arguments.adapter, texts)
    if arguments.against is None:
        _print(arguments, asdict(report))
        return
    baseline = await _measured(arguments, arguments.against, None, texts)
    comparison = bench.compare_reports(report, baseline)
    if arguments.json:
        print(json.dumps(asdict(comparison), indent=1, ensure_ascii=False))
        return
    for name, one in (("candidate", report), ("baseline", baseline)):
        print(f"{name}:")
        _print(arguments, asdict(one))
    print(comparison.summary)
    if report.tokens != baseline.tokens:
        print("note: the tokenizers differ, so compare bits per byte", file=sys.stderr)


async def _measured(
    arguments: argparse.Namespace, model_folder: Path, adapters: list[str] | None, texts: list[str]
) -> Any:
    model, tokenizer = folder.load_model(model_folder, await open_backend(arguments))
    measured: Any = await folder.load_adapters(model, adapters) if adapters else model
    if arguments.window:
        ids = [tokenizer.encode(text) for text in texts]
        # a window's own last token is scored too, so one more id is taken along
        sequences = [
            [*map(int, e.tokens), int(e.targets[-1])] for one in ids for e in pack_windows(one, arguments.window)
        ]
    else:
        sequences = [ids for text in texts for ids in bench.corpus_to_sequences(text, tokenizer)]
    if not sequences:
        raise InvalidArgumentError("the texts have no sentence of 2 tokens: nothing to score; give longer ones")
    lengths = bench.token_byte_lengths(tokenizer)
    return await bench.benchmark_model_async(measured, sequences, arguments.top_k, byte_lengths=lengths)


async def _trained(arguments: argparse.Namespace, corpus: str) -> Any:
    names = ("num_merges", "epochs", "lr", "seed", "held_out_ratio", "top_k")
    options = {name: getattr(arguments, name) for name in names}
    return await bench.train_and_benchmark_async(corpus, **options, backend=await open_backend(arguments))


def _print(arguments: argparse.Namespace, report: dict[str, Any]) -> None:
    if arguments.json:
        print(json.dumps(report, indent=1, ensure_ascii=False))
        return
    for field, label, shown in ROWS:
        value = report.get(field)
        if value is not None:
            print(f"  {label.format(**report):30} {shown.format(value)}")
