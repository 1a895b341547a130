"""Write text with a trained model; it streams as it is made."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from evermind_web.cli import folder
from evermind_web.cli.options import add_backend_flag, open_backend
from evermind_web.tokenizer import StreamDecoder

NAME = "generate"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    parser.add_argument("model", type=Path, metavar="DIR", help="folder that `train` wrote")
    parser.add_argument("--prompt", default="", help="text to go on from; empty: start by itself")
    parser.add_argument("--adapter", type=Path, metavar="FILE", help="write with this adapter")
    parser.add_argument("--force", action="store_true", help="use an adapter of another base all the same")
    parser.add_argument("--max-new-tokens", type=int, default=120, help="length limit")
    parser.add_argument("--temperature", type=float, default=0.8, help="0: always the likeliest token")
    parser.add_argument("--seed", type=int, default=1, help="of the draws; the same one gives the same text")
    parser.add_argument("--echo", action=argparse.BooleanOptionalAction, default=True, help="print the prompt too")
    add_backend_flag(parser)


async def run(arguments: argparse.Namespace) -> None:
    """Stream the continuation to stdout."""
    model, tokenizer = folder.load_model(arguments.model, await open_backend(arguments))
    writer: Any = model
    if arguments.adapter is not None:
        writer = await folder.load_adapter(model, arguments.adapter, arguments.force)
    ids = tokenizer.encode(arguments.prompt)
    if not ids and tokenizer.bos_id is not None:
        ids = [tokenizer.bos_id]
    options = {
        "max_new_tokens": arguments.max_new_tokens,
        "temperature": arguments.temperature,
        "seed": arguments.seed,
        "stop_token": tokenizer.eos_id,
    }
    if arguments.echo:
        _write(arguments.prompt)
    decoder = StreamDecoder(tokenizer, skip_special_tokens=True)
    async for token in writer.stream_async(ids, **options):
        _write(decoder.feed(token))
    _write(decoder.finish() + "\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
