"""Pretraining: steps, evaluation, checkpoints from which a killed run goes on exactly where it was.

A step's batch follows from its number, and its dropout from a seed made of recipe, step and process, so a checkpoint
needs no more than weights, moments, averages and the step number.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evermind_web.errors import ConfigMismatchError, NonFiniteError
from evermind_web.torch.corpus import Corpus, windows_of
from evermind_web.torch.module import EvermindModule
from evermind_web.torch.parallel import World
from evermind_web.torch.recipe import Recipe
from evermind_web.torch.scoring import bits_per_byte
from evermind_web.torch.teacher import Transformer, soft_targets

Model = EvermindModule | Transformer

CHECKPOINT = "checkpoint.pt"
CURVE = "curve.jsonl"
LOG_EVERY = 25  # steps between reads of the losses, which wait for the device
PROBE_STEPS = 8


def token_loss(x: Tensor, embedding: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy (nats) of features (N, D) with the tied head."""
    return F.cross_entropy(F.linear(x, embedding).float(), targets)


def taught_loss(x: Tensor, embedding: Tensor, targets: Tensor, soft: Tensor, part: float) -> Tensor:
    """`token_loss`, `part` of it against the probabilities `soft` (N, V) in place of the targets."""
    scores = F.linear(x, embedding).float().log_softmax(-1)
    return (1 - part) * F.nll_loss(scores, targets) - part * (soft * scores).sum(-1).mean()


class Objective(nn.Module):
    """Windows (B, T+1) → mean loss, and of each layer the mean probabilities and counts of its experts (L, E)."""

    def __init__(self, module: Model, loss: Callable[..., Tensor]) -> None:
        """loss: `token_loss`, or `taught_loss` if `forward` is given soft targets."""
        super().__init__()
        self.module, self._loss = module, loss

    def forward(self, windows: Tensor, *taught: Any) -> tuple[Tensor, Tensor, Tensor]:
        x, routings = self.module.features(windows[:, :-1])
        targets = windows[:, 1:].reshape(-1)
        loss = self._loss(x.flatten(0, 1), self.module.token_embedding.weight, targets, *taught)
        if not routings:
            return loss, loss.new_ones(1, 1), loss.new_ones(1, 1)
        probs, counts = (torch.stack(parts) for parts in zip(*routings, strict=True))
        return loss, probs, counts


class Pretrainer:
    """One run in `folder`. Goes on from the checkpoint there, if there is one."""

    def __init__(
        self, corpus: Corpus, recipe: Recipe, world: World, folder: Path, teachers: Sequence[Path] = ()
    ) -> None:
        self.teachers = [Transformer.load(path, world.device) for path in teachers]
        self.taught_by = [hashlib.sha256(path.read_bytes()).hexdigest() for path in teachers]
        self.corpus, self.recipe, self.world, self.folder = corpus, recipe, world, folder
        if recipe.batch % world.size:
            raise ConfigMismatchError(f"batch {recipe.batch} cannot be shared by {world.size} processes evenly")
        self.windows = windows_of(corpus, recipe)
        self.module = self._fresh(dropped=True)
        self.averaged = self._fresh().requires_grad_(False)
        self.best = self.averaged.packed()
        on_gpu = world.device.type == "cuda"
        loss: Callable[..., Tensor] = taught_loss if teachers else token_loss
        if recipe.compile and on_gpu:
            for module in (self.module, *self.teachers):
                module.compile_layers(dynamic=False)
            loss = torch.compile(loss, dynamic=False)
        self.objective = world.wrap(Objective(self.module, loss))
        self.optimizer = _adamw(self.module, recipe, fused=on_gpu)
        self.half = on_gpu if recipe.precision == "auto" else recipe.precision == "bf16"
        self.step, self.total, self.seconds, self._saved = 0, 0, 0.0, 0.0
        self.evaluations: list[dict[str, Any]] = []
        self._lines: list[tuple[int, float, Tensor]] = []
        self._last_loss = math.nan

    def _fresh(self, dropped: bool = False) -> Model:
        """A module as the recipe starts with, on this process's device; with its dropouts, or without any."""
        recipe, shape = self.recipe, self.recipe.arch(self.corpus.tokenizer.vocab_size)
        names = ("dropout", "hidden_dropout", "token_dropout") if dropped else ()
        drops = {name: getattr(recipe, name) for name in names}
        if recipe.kind == "transformer":
            return Transformer(shape, recipe.window, recipe.seed, drops.get("dropout", 0)).to(self.world.device)
        return EvermindModule(*shape, seed=recipe.seed, **drops).to(self.world.device)

    # ---- running ----

    def run(self, report: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
        """Train to the end; evaluates every `eval_every` steps and at the end."""
        self._resume()
        if not self.total:
            self.total = self.world.agree(self._plan())
        while self.step < self.total:
            started, first = time.perf_counter(), self.step
            while self.step < self.total and (self.step == first or self.step % self.recipe.eval_every):
                self._train_step()
                if self.step % LOG_EVERY == 0:
                    self._write_losses()
            self._write_losses()
            self.seconds += time.perf_counter() - started
            self._shorten()
            self._evaluate(report)
            if self.step == self.total or self.seconds - self._saved >= self.recipe.save_seconds:
                self._save()
        self.world.wait()

    def _train_step(self) -> None:
        rate = self.recipe.lr_at(self.step, self.total)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self._backward(self.step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._average()
        self._lines.append((self.step, rate, loss))
        self.step += 1

    def _backward(self, step: int) -> Tensor:
        """Gradients of one step; returns the mean loss over all processes, still on the device."""
        recipe, world = self.recipe, self.world
        torch.manual_seed(((recipe.seed * 1_000_003 + step) * 1009 + world.rank) % 2**63)
        windows = torch.from_numpy(self.windows.batch(step, world.rank, world.size))
        if world.device.type == "cuda":
            windows = windows.pin_memory().to(world.device, non_blocking=True)
        with self._autocast():
            soft = (soft_targets(self.teachers, windows[:, :-1]), recipe.teaching) if self.teachers else ()
            loss, probs, counts = self.objective(windows, *soft)
        # Shares of all processes' rows, so that the average of the gradients is the gradient of the whole batch.
        shares = world.add_up(counts.float())
        shares = shares / shares.sum(1, keepdim=True)
        balance = probs.shape[1] * (shares * probs).sum(1).mean()
        (loss + recipe.balance * balance).backward()
        if recipe.grad_clip:
            nn.utils.clip_grad_norm_(self.module.parameters(), recipe.grad_clip)
        return world.add_up(loss.detach().clone()) / world.size

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.world.device.type, torch.bfloat16) if self.half else nullcontext()

    @torch.no_grad()
    def _average(self) -> None:
        decay = min(self.recipe.ema, (self.step + 1) / (self.step + 10))
        averaged, current = list(self.averaged.parameters()), list(self.module.parameters())
        torch._foreach_lerp_(averaged, current, 1 - decay)

    def _plan(self) -> int:
        """Steps of the run: of the epochs, or as many as fit into the seconds by the time that a step takes now."""
        if not self.recipe.seconds:
            return max(1, round(self.recipe.epochs * self.windows.steps_per_epoch))
        for step in range(2 * PROBE_STEPS):
            if step == PROBE_STEPS:  # compiled, allocated and warm
                self._finish()
                started = time.perf_counter()
            self._backward(step)
            self.optimizer.zero_grad(set_to_none=True)
        self._finish()
        each = (time.perf_counter() - started) / PROBE_STEPS
        return max(self.recipe.warmup + 1, int(0.93 * self.recipe.seconds / each))

    def _shorten(self) -> None:
        """A run planned by seconds that has become clearly slower, as beside other work, takes fewer steps instead."""
        each = self.seconds / self.step
        if self.recipe.seconds and self.seconds + each * (self.total - self.step) > 1.1 * self.recipe.seconds:
            self.total = self.step + max(0, int((self.recipe.seconds - self.seconds) / each))
        self.total = self.world.agree(self.total)

    def _finish(self) -> None:
        if self.world.device.type == "cuda":
            torch.cuda.synchronize()

    # ---- looking ----

    def score(self, kind: str, module: Model | None = None) -> float | None:
        """Bits per byte of the held-out pieces of one kind; None if there are none."""
        pieces = self.corpus.held_out.get(kind)
        return bits_per_byte(module or self.averaged, pieces, self.corpus.token_bytes) if pieces else None

    def _evaluate(self, report: Callable[[dict[str, Any]], None]) -> None:
        if not self.world.is_first:
            return
        entry: dict[str, Any] = {"step": self.step, "of": self.total, "seconds": round(self.seconds, 2)}
        entry["epoch"] = round(self.step / self.windows.steps_per_epoch, 2)
        entry["train_loss"] = self._last_loss
        scores = {kind: self.score(kind) for kind in ("validation", "unseen")}
        entry |= {kind: score for kind, score in scores.items() if score is not None}
        if choice_of(entry) < min(map(choice_of, self.evaluations), default=math.inf):
            self.best = self.averaged.packed()
        self.evaluations.append(entry)
        report(entry)

    def best_module(self) -> Model:
        """The averaged weights that scored best, on this process's device."""
        module = self._fresh().requires_grad_(False)
        module.load_packed(self.best)
        return module

    def _write_losses(self) -> None:
        if not self._lines:
            return
        losses = torch.stack([loss for _, _, loss in self._lines]).tolist()
        lines = zip(self._lines, losses, strict=True)
        rows = [{"step": step, "lr": rate, "loss": round(loss, 6)} for (step, rate, _), loss in lines]
        self._lines.clear()
        self._last_loss = losses[-1]
        if not math.isfinite(losses[-1]):
            raise NonFiniteError(f"the loss became {losses[-1]} by step {self.step}; use a lower --lr")
        if self.world.is_first:
            with (self.folder / CURVE).open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)

    # ---- going on ----

    def _save(self) -> None:
        self._saved = self.seconds
        if not self.world.is_first:
            return
        state = {
            "recipe": self.recipe.to_json(),
            "corpus": self.corpus.digest,
            "teachers": self.taught_by,
            "step": self.step,
            "total": self.total,
            "seconds": self.seconds,
            "evaluations": self.evaluations,
            "model": self.module.state_dict(),
            "averaged": self.averaged.state_dict(),
            "best": torch.from_numpy(self.best),
            "optimizer": self.optimizer.state_dict(),
        }
        part = self.folder / (CHECKPOINT + ".part")
        torch.save(state, part)
        os.replace(part, self.folder / CHECKPOINT)  # a checkpoint is whole or not there

    def _resume(self) -> None:
        path = self.folder / CHECKPOINT
        state = torch.load(path, map_location=self.world.device, weights_only=True) if path.exists() else None
        if state is not None:
            ours = {"corpus": self.corpus.digest, "recipe": self.recipe.to_json(), "teachers": self.taught_by}
            differs = [name for name, value in ours.items() if state.get(name) != value]
            if differs:
                raise ConfigMismatchError(
                    f"{path} is of another run ({', '.join(differs)} differ); go on with the same, or use another --out"
                )
            self.module.load_state_dict(state["model"])
            self.averaged.load_state_dict(state["averaged"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.best = state["best"].cpu().numpy()
            self.evaluations = state["evaluations"]
            self.step, self.total, self.seconds = state["step"], state["total"], state["seconds"]
            self._saved = self.seconds
        if self.world.is_first:
            _cut_curve(self.folder / CURVE, self.step)
        self.world.wait()


def choice_of(entry: dict[str, Any]) -> float:
    """What choices go by: the mean of the held-out ends and, where there are any, the unseen texts."""
    scores = [entry[kind] for kind in ("validation", "unseen") if kind in entry]
    return sum(scores) / len(scores) if scores else float(entry["train_loss"])


def _adamw(module: Model, recipe: Recipe, fused: bool) -> torch.optim.AdamW:
    parameters = list(module.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=(recipe.beta1, recipe.beta2), fused=fused)


def _cut_curve(path: Path, step: int) -> None:
    """Drop what a killed run wrote after its last checkpoint: those steps are done again."""
    if path.exists():
        rows = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("}\n")]
        path.write_text("".join(row for row in rows if json.loads(row)["step"] < step), encoding="utf-8")
