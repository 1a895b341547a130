"""Train an adapter on a second text; the model itself stays as it is."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from evermind_web.cli import folder, train
from evermind_web.cli.options import add_backend_flag, add_training_flags, open_backend, training_values
from evermind_web.cli.progress import progress, stopping
from evermind_web.errors import InvalidArgumentError
from evermind_web.lora import BASE_QUANTS, DEFAULT_SEED, EvermindLMLoRA

NAME = "personalize"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    parser.add_argument("model", type=Path, metavar="DIR", help="folder that `train` wrote")
    parser.add_argument("text", nargs="+", metavar="TEXT", help="UTF-8 text files")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the adapter, such as me.lora")
    parser.add_argument("--rank", type=int, default=8, help="rank of the adapter")
    parser.add_argument("--alpha", type=float, help="its scale times rank; default: rank")
    parser.add_argument("--lora-seed", type=int, default=DEFAULT_SEED, help="seed of its initial weights")
    parser.add_argument("--base-quant", choices=BASE_QUANTS, default="none", help="storage of the frozen base")
    parser.add_argument("--window", type=int, default=64, help="tokens of a training window")
    parser.add_argument("--val-split", type=float, default=0.0, help="part of each text, its end, held out to measure")
    parser.add_argument("--shuffle", action=argparse.BooleanOptionalAction, default=True, help="mix the windows once")
    add_backend_flag(parser)
    add_training_flags(parser)


async def run(arguments: argparse.Namespace) -> None:
    """Train the adapter and save it, with the fingerprint of its base beside it."""
    if not 0 <= arguments.val_split < 1:
        raise InvalidArgumentError(f"--val-split must be in 0…1, below 1, got {arguments.val_split:g}")
    model, tokenizer = folder.load_model(arguments.model, await open_backend(arguments))
    options = training_values(arguments)
    wanted = {name: getattr(arguments, name) for name in ("window", "val_split", "shuffle")} | {"options": options}
    items, held_out = train.windows(folder.read_texts(arguments.text), tokenizer, wanted)
    lora = EvermindLMLoRA(model, arguments.rank, arguments.alpha, arguments.lora_seed, arguments.base_quant)
    before = await lora.evaluate_async(held_out or items)
    with progress("step") as bar, stopping(lora.stop):
        await lora.fit_async(items, on_step=bar.on_step, validation=held_out, on_eval=bar.on_eval, **options)
    after = await lora.evaluate_async(held_out or items)
    folder.write_file(arguments.output, await lora.serialize_adapter_async())
    notes = {"base_fingerprint": await model.fingerprint_async(), "base": str(arguments.model)}
    folder.write_json(folder.notes_of(arguments.output), notes)
    what = "held-out text" if held_out else "the text"
    print(f"loss on {what}: {before:.4f} → {after:.4f} nats a token (perplexity {math.exp(min(after, 700)):.2f})")
    print(f"saved {arguments.output}")
