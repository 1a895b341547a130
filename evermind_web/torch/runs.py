"""A whole pretraining run: prepare, train, measure, write the files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from evermind_web.formats.arch import FIELDS
from evermind_web.torch import parallel
from evermind_web.torch.corpus import Corpus, prepare
from evermind_web.torch.module import EvermindModule
from evermind_web.torch.recipe import Recipe
from evermind_web.torch.teacher import Transformer
from evermind_web.torch.trainer import Pretrainer, choice_of


def run(
    recipe: Recipe,
    texts: Sequence[Path],
    out: Path,
    *,
    unseen: Sequence[Path] = (),
    test: Sequence[Path] = (),
    tokenizer: Path | None = None,
    data: Path | None = None,
    teachers: Sequence[Path] = (),
    device: str | None = None,
    prepare_only: bool = False,
    report: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """See `evermind_web.pretrain`; returns the contents of metrics.json ({} in all processes but the first)."""
    out.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    world = parallel.join(device)
    try:
        folder = data or out / "data"
        corpus = prepare(texts, unseen, test, recipe, folder, tokenizer) if world.is_first else None
        world.wait()
        corpus = corpus or prepare(texts, unseen, test, recipe, folder, tokenizer, write=False)
        if prepare_only:
            return {}
        trainer = Pretrainer(corpus, recipe, world, out, teachers)
        trainer.run(report)
        return _write_results(trainer, corpus, out) if world.is_first else {}
    finally:
        parallel.leave()


def _write_results(trainer: Pretrainer, corpus: Corpus, out: Path) -> dict[str, Any]:
    best = trainer.best_module()
    scores: dict[str, dict[str, float | None]] = {k: {"bits_per_byte": trainer.score(k, best)} for k in corpus.held_out}
    if isinstance(best, Transformer):
        best.save(out / "teacher.pt")
        half = b""
    else:
        half = best.to_evl0(fp16=True)
        rounded = EvermindModule.from_evl0(half).to(trainer.world.device).requires_grad_(False)
        for kind, row in scores.items():
            row["fp16"] = trainer.score(kind, rounded)
        (out / "model.evl0").write_bytes(best.to_evl0())
        (out / "model.fp16.evl0").write_bytes(half)
    recipe, steps = trainer.recipe, trainer.windows.steps_per_epoch
    metrics = {
        "model": dict(zip(FIELDS, best.config, strict=True)),
        "parameters": sum(p.numel() for p in best.parameters()),
        "teachers": len(trainer.teachers),
        "fp16_bytes": len(half),
        "recipe": recipe.to_json(),
        "torch": torch.__version__,
        "device": _device_name(trainer.world.device),
        "processes": trainer.world.size,
        "steps": trainer.total,
        "epochs": trainer.total / steps,
        "tokens_per_step": recipe.batch * recipe.window,
        "train_tokens": len(corpus.train),
        "seconds": trainer.seconds,
        "best": min(trainer.evaluations, key=choice_of),
        "scores": scores,
        "evaluations": trainer.evaluations,
    }
    corpus.tokenizer.save(out / "tokenizer.json")
    (out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")
    return metrics


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
