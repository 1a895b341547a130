"""Trials of pretraining recipes on one GPU within a time limit, and the final run of the best.

    python -m tools.pretrain_sweep tools/pretrain_trials.json --texts DIR --out DIR --limit 420

The trials file names the texts and the recipes (see the one beside this file). First a check that fails fast: the
module on the GPU against the CPU, compiled against not compiled. Then the trials, several at a time; each ends with
its held-out bits per byte. They never see the test texts, which only the final model is scored on, once.

Writes sweep.jsonl (a line per trial), final-metrics.json, final-curve.jsonl, tokenizer.json and the model as
model.fp16.evl0.part0, … (joined by cat), each under 15 MiB.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PART_BYTES = 15 << 20
COMPILE_SECONDS = 45  # what a trial needs beside its own seconds: start, compilation, scoring


@dataclass
class Sweep:
    """The state of one sweep."""

    plan: dict[str, Any]
    texts: Path
    out: Path
    work: Path
    end: float
    final_needs: float
    results: list[dict[str, Any]] = field(default_factory=list)

    def left(self) -> float:
        """Seconds until the limit."""
        return self.end - time.monotonic()

    def command(
        self, name: str, recipe: dict[str, Any], *, final: bool = False, more: tuple[str, ...] = ()
    ) -> list[str]:
        """The pretraining command of a recipe, as a list."""
        unseen = [] if final else self.plan["unseen"]
        train = [n for n in self.plan["train"] if n not in unseen]
        words = [sys.executable, "-m", "evermind_web.pretrain", *(str(self.text(n)) for n in train)]
        words += ["--out", str(self.work / name), "--data", str(self.data(recipe, final))]
        for option, names in (("--unseen", unseen), ("--test", self.plan["test"] if final else [])):
            words += [option, *(str(self.text(n)) for n in names)] if names else []
        for key, value in recipe.items():
            flag = key.replace("_", "-")
            words += [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
        return [*words, *more]

    def text(self, name: str) -> Path:
        """An unpacked text."""
        path = self.work / "texts" / f"{name}.txt"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            packed = self.texts / f"{name}.txt.xz"
            plain = self.texts / f"{name}.txt"
            path.write_bytes(lzma.decompress(packed.read_bytes()) if packed.exists() else plain.read_bytes())
        return path

    def data(self, recipe: dict[str, Any], final: bool) -> Path:
        """Where the tokens of a recipe's vocabulary are prepared."""
        return self.work / f"data-{recipe['vocab_size']}{'-final' if final else ''}"

    def start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a command with its output in work/NAME.log."""
        environment = os.environ | {"OMP_NUM_THREADS": "2", "TORCHINDUCTOR_CACHE_DIR": str(self.work / "inductor")}
        log = (self.work / f"{name}.log").open("wb")
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)

    def note(self, **line: Any) -> None:
        """A line for the log and for sweep.jsonl."""
        text = json.dumps(line)
        print(f"[{self.left():6.1f} s left] {text}", flush=True)
        with (self.out / "sweep.jsonl").open("a", encoding="utf-8") as file:
            file.write(text + "\n")

    def log_end(self, name: str) -> str:
        """The last lines of a command's output."""
        return (self.work / f"{name}.log").read_text(encoding="utf-8", errors="replace")[-1500:]


def prepare(sweep: Sweep, recipes: list[dict[str, Any]]) -> None:
    """Tokens of each vocabulary, without and with the unseen texts, all at once while the check runs."""
    jobs = {}
    for recipe in recipes:
        for final in (False, True):
            name = f"prepare-{sweep.data(recipe, final).name}"
            if name not in jobs:
                command = sweep.command(name, recipe, final=final, more=("--prepare-only", "--device", "cpu"))
                jobs[name] = sweep.start(name, command)
    check(sweep, recipes[0])
    for name, job in jobs.items():
        if job.wait():
            sys.exit(f"{name} failed:\n{sweep.log_end(name)}")
    sweep.note(prepared=sorted(jobs))


def check(sweep: Sweep, recipe: dict[str, Any]) -> None:
    """GPU against CPU, compiled against not; exits with what is wrong."""
    name = "check"
    job = sweep.start(name, [sys.executable, "-m", "tools.pretrain_check", json.dumps(recipe)])
    if job.wait():
        sys.exit(f"the check failed:\n{sweep.log_end(name)}")
    found = json.loads(sweep.log_end(name).strip().splitlines()[-1])
    if "not_compiled" in found:
        sweep.plan["base"]["compile"] = False
    sweep.note(check=found)


def run_trials(sweep: Sweep, parallel: int) -> None:
    """Trials in order, `parallel` at a time, as long as each can end before the final run must start."""
    waiting = [(t["name"], sweep.plan["base"] | t["recipe"]) for t in sweep.plan["trials"]]
    running: dict[str, tuple[subprocess.Popen[bytes], dict[str, Any]]] = {}
    while waiting or running:
        while waiting and len(running) < parallel:
            name, recipe = waiting.pop(0)
            if sweep.left() < recipe.get("seconds", 60) + COMPILE_SECONDS + sweep.final_needs:
                sweep.note(skipped=name)
                continue
            running[name] = sweep.start(name, sweep.command(name, recipe)), recipe
        for name, (job, recipe) in list(running.items()):
            late = sweep.left() < sweep.final_needs
            if late:
                job.kill()
            if job.poll() is not None or late:
                job.wait()
                del running[name]
                _collect(sweep, name, recipe, "out of time" if late else None)
        time.sleep(0.2)


def _collect(sweep: Sweep, name: str, recipe: dict[str, Any], problem: str | None) -> None:
    path = sweep.work / name / "metrics.json"
    if not path.exists():
        sweep.note(trial=name, failed=problem or sweep.log_end(name))
        return
    metrics = json.loads(path.read_text(encoding="utf-8"))
    best = metrics["best"]
    choice = sum(best[k] for k in ("validation", "unseen") if k in best) / sum(
        k in best for k in ("validation", "unseen")
    )
    sweep.results.append({"name": name, "recipe": recipe, "choice": choice, "metrics": metrics})
    changed = {k: v for k, v in recipe.items() if sweep.plan["base"].get(k) != v}
    path_of = [
        [e["step"], e["epoch"], e["train_loss"], e.get("validation"), e.get("unseen")] for e in metrics["evaluations"]
    ]
    sweep.note(
        trial=name, choice=round(choice, 5), changed=changed, best=best, scores=metrics["scores"],
        parameters=metrics["parameters"], steps=metrics["steps"], seconds=round(metrics["seconds"], 1),
        path=path_of[:: max(1, len(path_of) // 8)],
    )  # fmt: skip


def final_run(sweep: Sweep) -> None:
    """The best recipe on all training texts, for the time that is left; its files go to out."""
    if not sweep.results:
        sys.exit("no trial ended")
    best = min(sweep.results, key=lambda r: r["choice"])
    recipe = best["recipe"] | sweep.plan.get("final", {})
    recipe["seconds"] = max(10, min(recipe.get("seconds", 1e9), int(sweep.left() - COMPILE_SECONDS)))
    sweep.note(final=best["name"], recipe=recipe)
    job = sweep.start("final", sweep.command("final", recipe, final=True))
    try:
        job.wait(max(1, sweep.left() - 3))
    except subprocess.TimeoutExpired:
        job.kill()
    folder = sweep.work / "final"
    if not (folder / "metrics.json").exists():
        sys.exit(f"the final run did not end:\n{sweep.log_end('final')}")
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    sweep.note(final_scores=metrics["scores"], best=metrics["best"], steps=metrics["steps"], epochs=metrics["epochs"])
    data = (folder / "model.fp16.evl0").read_bytes()
    for i in range(0, len(data), PART_BYTES):
        (sweep.out / f"model.fp16.evl0.part{i // PART_BYTES}").write_bytes(data[i : i + PART_BYTES])
    for name in ("metrics.json", "curve.jsonl"):
        (sweep.out / f"final-{name}").write_bytes((folder / name).read_bytes())
    (sweep.out / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser(prog="python -m tools.pretrain_sweep", description=__doc__)
    parser.add_argument("trials", type=Path)
    parser.add_argument("--texts", type=Path, required=True, help="folder with NAME.txt or NAME.txt.xz")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("/tmp/pretrain-sweep"), help="scratch folder")
    parser.add_argument("--limit", type=float, required=True, help="seconds for everything")
    parser.add_argument("--final-seconds", type=float, default=100, help="seconds kept for the final run, all in all")
    parser.add_argument("--parallel", type=int, default=3, help="trials at a time")
    args = parser.parse_args()
    for folder in (args.out, args.work):
        folder.mkdir(parents=True, exist_ok=True)
    plan = json.loads(args.trials.read_text(encoding="utf-8"))
    end = time.monotonic() + args.limit
    sweep = Sweep(plan, args.texts, args.out, args.work, end, args.final_seconds)
    prepare(sweep, [plan["base"], *(plan["base"] | t["recipe"] for t in plan["trials"])])
    run_trials(sweep, args.parallel)
    final_run(sweep)


if __name__ == "__main__":
    main()
