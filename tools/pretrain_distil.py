"""Teachers, then students that learn from them, on one GPU within a time limit: how the shipped base was made.

    python -m tools.pretrain_distil tools/pretrain_distil.json --texts DIR --out DIR --limit 320

All runs of the plan train on all its texts; those without "teachers" start at once, the others when their teachers are
done. The students are compared by the held-out ends of the texts alone.

Writes results.jsonl (a line per run), curves.tar.xz, tokenizer.json and each student as NAME.fp16.evl0.part0, …
(joined by cat), each under 15 MiB.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

from tools.pretrain_sweep import PART_BYTES, Sweep

SLOWER = 1.1  # a run may take this much longer than its seconds before it takes fewer steps


def recipe_of(sweep: Sweep, job: dict[str, Any]) -> dict[str, Any]:
    """The whole recipe of a run of the plan."""
    recipe: dict[str, Any] = sweep.plan["base"] | job["recipe"]
    return recipe


def start(sweep: Sweep, job: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start a run; one that must end at the limit gets the seconds that are left, less what its start takes."""
    recipe = recipe_of(sweep, job)
    room = (sweep.left() - sweep.plan["start_seconds"]) / SLOWER
    recipe["seconds"] = max(5, min(recipe["seconds"], int(room)))
    teachers = [str(sweep.work / name / "teacher.pt") for name in job.get("teachers", [])]
    command = sweep.command(job["name"], recipe, final=True)
    sweep.note(start=job["name"], seconds=recipe["seconds"])
    return sweep.start(job["name"], [*command, *(["--teacher", *teachers] if teachers else [])])


def run_all(sweep: Sweep) -> None:
    """All runs of the plan; what has not ended at the limit is killed."""
    waiting: list[dict[str, Any]] = list(sweep.plan["runs"])
    running: dict[str, subprocess.Popen[bytes]] = {}
    done: set[str] = set()
    while (waiting or running) and sweep.left() > 0:
        for job in [j for j in waiting if done.issuperset(j.get("teachers", []))]:
            waiting.remove(job)
            running[job["name"]] = start(sweep, job)
        for name, process in list(running.items()):
            if process.poll() is not None:
                del running[name]
                if process.returncode:
                    sweep.note(run=name, failed=sweep.log_end(name))
                    waiting = [j for j in waiting if name not in j.get("teachers", [])]
                else:
                    done.add(name)
                    keep(sweep, name)
        time.sleep(0.2)
    for name, process in running.items():
        process.kill()
        process.wait()
        sweep.note(run=name, failed="out of time", log=sweep.log_end(name))


def keep(sweep: Sweep, name: str) -> None:
    """The results of a run that has ended."""
    folder = sweep.work / name
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    sweep.note(run=name, scores=metrics["scores"], steps=metrics["steps"], epochs=round(metrics["epochs"], 1))
    with (sweep.out / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"name": name} | metrics) + "\n")
    model = folder / "model.fp16.evl0"
    if model.exists():
        data = model.read_bytes()
        for i in range(0, len(data), PART_BYTES):
            (sweep.out / f"{name}.fp16.evl0.part{i // PART_BYTES}").write_bytes(data[i : i + PART_BYTES])
        shutil.copyfile(folder / "tokenizer.json", sweep.out / "tokenizer.json")


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser(prog="python -m tools.pretrain_distil", description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--texts", type=Path, required=True, help="folder with NAME.txt or NAME.txt.xz")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("/tmp/pretrain-distil"), help="scratch folder")
    parser.add_argument("--limit", type=float, required=True, help="seconds for everything")
    args = parser.parse_args()
    for folder in (args.out, args.work):
        folder.mkdir(parents=True, exist_ok=True)
    plan = {"unseen": [], "test": []} | json.loads(args.plan.read_text(encoding="utf-8"))
    sweep = Sweep(plan, args.texts, args.out, args.work, time.monotonic() + args.limit, 0.0)
    for job in plan["runs"]:
        recipe = recipe_of(sweep, job)
        if not (sweep.data(recipe, True) / "corpus.json").exists():
            command = sweep.command("prepare", recipe, final=True, more=("--prepare-only", "--device", "cpu"))
            if sweep.start("prepare", command).wait():
                sys.exit(f"preparation failed:\n{sweep.log_end('prepare')}")
    run_all(sweep)
    with tarfile.open(args.out / "curves.tar.xz", "w:xz") as archive:
        for path in sorted(args.work.glob("*/curve.jsonl")):
            archive.add(path, f"{path.parent.name}.jsonl")


if __name__ == "__main__":
    main()
