"""Pretrain a base model on text files, on one device or, under `torchrun`, on many.

    python -m evermind_web.pretrain novels/*.txt --out run
    torchrun --nproc-per-node 8 -m evermind_web.pretrain novels/*.txt --out run

Writes to --out: model.evl0 (float32), model.fp16.evl0, tokenizer.json, metrics.json, curve.jsonl (a line per step)
and checkpoint.pt; started again with the same options it goes on from there. Needs `pip install evermind-web[torch]`.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from evermind_web.errors import EvermindError
from evermind_web.torch import runs
from evermind_web.torch.recipe import Recipe


def parser() -> argparse.ArgumentParser:
    """The command line; every field of Recipe is an option."""
    out = argparse.ArgumentParser(
        prog="python -m evermind_web.pretrain",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("texts", nargs="+", type=Path, metavar="TEXT", help="UTF-8 text files to train on")
    out.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    out.add_argument("--unseen", nargs="+", type=Path, default=[], metavar="TEXT", help="texts only to choose by")
    out.add_argument("--test", nargs="+", type=Path, default=[], metavar="TEXT", help="texts only to score at the end")
    out.add_argument("--tokenizer", type=Path, metavar="FILE", help="a tokenizer.json (default: one is trained)")
    about = "teacher.pt of runs with --kind transformer on the same tokens: learn from their mean"
    out.add_argument("--teacher", nargs="+", type=Path, default=[], metavar="FILE", help=about)
    out.add_argument("--data", type=Path, metavar="DIR", help="where prepared tokens are kept (default: OUT/data)")
    out.add_argument("--device", choices=("cpu", "cuda"), help="default: a GPU where there is one")
    out.add_argument("--prepare-only", action="store_true", help="stop after tokenizer and tokens are made")
    for f in fields(Recipe):
        kind: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
        if f.type != "bool":
            kind = {"type": {"int": int, "float": float}.get(str(f.type), str), "metavar": "X"}
        about = f"{f.metadata['about']} (default: {f.default})"
        out.add_argument(f"--{f.name.replace('_', '-')}", default=f.default, help=about, **kind)
    return out


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Train as the arguments say; returns what is in metrics.json ({} in all processes but the first)."""
    recipe = Recipe(**{f.name: getattr(args, f.name) for f in fields(Recipe)})
    return runs.run(
        recipe, args.texts, args.out, unseen=args.unseen, test=args.test, tokenizer=args.tokenizer, data=args.data,
        teachers=args.teacher, device=args.device, prepare_only=args.prepare_only,
        report=lambda entry: print(json.dumps(entry), flush=True),
    )  # fmt: skip


def main() -> None:
    """See the top of this file."""
    try:
        run(parser().parse_args())
    except (EvermindError, OSError) as error:
        sys.exit(f"pretrain: {error}")


if __name__ == "__main__":
    main()
