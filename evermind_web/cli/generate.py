"""Write text with a trained model; it streams as it is made."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from evermind_web.cli import folder
from evermind_web.cli.options import add_backend_flag, add_generation_flags, count, generation_values, open_backend
from evermind_web.generation import GenerationConfig
from evermind_web.rng import seeds_from
from evermind_web.text_stream import check_stop_strings, text_pieces
from evermind_web.tokenizer import StreamDecoder

NAME = "generate"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    parser.add_argument("model", type=Path, metavar="DIR", help="folder that `train` wrote")
    parser.add_argument("--prompt", default="", help="text to go on from; empty: start by itself")
    parser.add_argument("--adapter", nargs="+", metavar="FILE[=WEIGHT]", help="write with these adapters, mixed")
    parser.add_argument("--force", action="store_true", help="use an adapter of another base all the same")
    parser.add_argument(
        "-n", "--num-return-sequences", type=count, default=1, help="texts; number i draws with seed + i"
    )
    parser.add_argument("--stop", nargs="+", default=[], metavar="STRING", help="strings that end the text")
    parser.add_argument("--logit-bias", nargs="+", type=_bias, default=[], metavar="ID=VALUE", help="added to logits")
    parser.add_argument("--echo", action=argparse.BooleanOptionalAction, default=True, help="print the prompt too")
    add_backend_flag(parser)
    add_generation_flags(parser)


async def run(arguments: argparse.Namespace) -> None:
    """Stream the continuation to stdout."""
    model, tokenizer = folder.load_model(arguments.model, await open_backend(arguments))
    writer: Any = model
    if arguments.adapter:
        writer = await folder.load_adapters(model, arguments.adapter, arguments.force)
    ids = tokenizer.encode(arguments.prompt)
    if not ids and tokenizer.bos_id is not None:
        ids = [tokenizer.bos_id]
    options = generation_values(arguments) | {"stop_token": tokenizer.eos_id, "logit_bias": dict(arguments.logit_bias)}
    stop = check_stop_strings(arguments.stop)
    GenerationConfig(**options).check_ids(model.config.vocab_size)  # before the prompt is printed
    for seed in seeds_from(arguments.seed, arguments.num_return_sequences):
        if arguments.echo:
            _write(arguments.prompt)
        tokens = writer.stream_async(ids, **options | {"seed": seed})
        decoder = StreamDecoder(tokenizer, skip_special_tokens=True)
        async for piece in text_pieces(tokens, decoder, stop):
            _write(piece)
        _write("\n")


def _bias(text: str) -> tuple[int, float]:
    token, _, value = text.partition("=")
    return int(token), float(value)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
