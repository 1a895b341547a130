"""Train an adapter on a second text; the model itself stays as it is."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from evermind_web.cli import folder, train
from evermind_web.cli.options import add_backend_flag, add_training_flags, open_backend, training_values
from evermind_web.cli.progress import heeding, progress, stopping
from evermind_web.errors import InvalidArgumentError
from evermind_web.lora import BASE_QUANTS, DEFAULT_SEED, LoraConfig, LoraModel

NAME = "personalize"
ADAPTER = "adapter"
TARGETS = "ends of the names of what is adapted (conv, router, shared.w1, w2, …), or all-linear"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    parser.add_argument("model", type=Path, metavar="DIR", help="folder that `train` wrote")
    parser.add_argument("text", nargs="+", metavar="TEXT", help="UTF-8 text files")
    help = "the adapter: a file NAME.lora (embedding only), or a folder in PEFT's layout"
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="PATH", help=help)
    parser.add_argument("--rank", type=int, default=8, help="rank of the adapter")
    parser.add_argument("--alpha", type=float, help="its scale times rank; default: rank")
    parser.add_argument("--target-modules", nargs="+", default=["token_embedding"], metavar="NAME", help=TARGETS)
    parser.add_argument("--rank-pattern", nargs="+", type=_pair, default=[], metavar="NAME=RANK", help="other ranks")
    parser.add_argument("--use-rslora", action="store_true", help="scale by alpha / sqrt(rank)")
    parser.add_argument("--lora-dropout", type=float, default=0.0, help="dropout on the low-rank path")
    parser.add_argument("--lora-seed", type=int, default=DEFAULT_SEED, help="seed of its initial weights")
    parser.add_argument("--base-quant", choices=BASE_QUANTS, default="none", help="storage of the frozen embedding")
    parser.add_argument("--window", type=int, default=64, help="tokens of a training window")
    parser.add_argument("--val-split", type=float, default=0.0, help="part of each text, its end, held out to measure")
    parser.add_argument("--shuffle", action=argparse.BooleanOptionalAction, default=True, help="mix the windows once")
    add_backend_flag(parser)
    add_training_flags(parser)


async def run(arguments: argparse.Namespace) -> None:
    """Train the adapter and save it, with the fingerprint of its base beside it."""
    if not 0 <= arguments.val_split < 1:
        raise InvalidArgumentError(f"--val-split must be in 0…1, below 1, got {arguments.val_split:g}")
    config = _config(arguments)
    model, tokenizer = folder.load_model(arguments.model, await open_backend(arguments))
    options = training_values(arguments)
    wanted = {name: getattr(arguments, name) for name in ("window", "val_split", "shuffle")} | {"options": options}
    items, held_out = train.windows(folder.read_texts(arguments.text), tokenizer, wanted)
    lora = LoraModel(model, arguments.base_quant)
    lora.add_adapter(ADAPTER, config)
    with folder.claimed(arguments.output, folder=arguments.output.suffix != ".lora"):
        before = await lora.evaluate_async(held_out or items)
        with progress("step") as bar, stopping(lora.stop) as stopped:
            on_step = heeding(bar.on_step, stopped, lora.stop)
            await lora.fit_async(items, on_step=on_step, validation=held_out, on_eval=bar.on_eval, **options)
            await folder.write_adapter(lora, ADAPTER, arguments.output)
    after = await lora.evaluate_async(held_out or items)
    what = "held-out text" if held_out else "the text"
    print(f"loss on {what}: {before:.4f} → {after:.4f} nats a token (perplexity {math.exp(min(after, 700)):.2f})")
    print(f"saved {arguments.output}")


def _config(arguments: argparse.Namespace) -> LoraConfig:
    targets = tuple(arguments.target_modules)
    if arguments.output.suffix == ".lora" and (targets != ("token_embedding",) or arguments.use_rslora):
        raise InvalidArgumentError("a .lora file holds a plain adapter of the embedding; give -o a folder's name")
    return LoraConfig(
        arguments.rank,
        arguments.alpha,
        targets,
        dict(arguments.rank_pattern),
        use_rslora=arguments.use_rslora,
        lora_dropout=arguments.lora_dropout,
        seed=arguments.lora_seed,
    )


def _pair(text: str) -> tuple[str, int]:
    name, _, rank = text.rpartition("=")
    return name, int(rank)
