"""Train a tokenizer and a model on texts.

The folder that `-o` names gets the checkpoint, the tokenizer, the training state and the settings of the run. With
`--resume` the run goes on where it stopped, on the same windows, as if it had never been interrupted.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evermind_web.batch import Example, pack_windows
from evermind_web.cli import folder
from evermind_web.cli.options import add_backend_flag, add_training_flags, open_backend, training_values
from evermind_web.cli.progress import heeding, progress, stopping
from evermind_web.errors import InvalidArgumentError
from evermind_web.formats.crc import crc32
from evermind_web.model import DEFAULT_SEED, EvermindLM
from evermind_web.tokenizer import BPETokenizer
from evermind_web.training import EvalInfo, EvermindLMTrainer

NAME = "train"
SIZES = {
    "d_model": (64, "width of the model"),
    "num_layers": (2, "layers"),
    "conv_kernel": (3, "taps of the causal convolutions"),
    "hidden_dim": (128, "hidden width of one expert"),
    "num_experts": (4, "routed experts"),
    "top_k": (2, "experts of a token"),
    "model_seed": (DEFAULT_SEED, "seed of the initial weights"),
}
DATA = ("vocab_size", "window", "val_split", "shuffle", "mixed_precision", "checkpoint", *SIZES)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    parser.add_argument("text", nargs="*", metavar="TEXT", help="UTF-8 text files (with --resume: those of the run)")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="folder for the model")
    parser.add_argument("--resume", action="store_true", help="go on with the run in DIR, with its own settings")
    parser.add_argument("--from", dest="start", type=Path, metavar="DIR", help="start from this model and tokenizer")
    parser.add_argument("--vocab-size", type=int, default=512, help="tokens of the tokenizer")
    parser.add_argument("--window", type=int, default=64, help="tokens of a training window")
    parser.add_argument("--val-split", type=float, default=0.0, help="part of each text, its end, held out to measure")
    parser.add_argument("--shuffle", action=argparse.BooleanOptionalAction, default=True, help="mix the windows once")
    parser.add_argument("--mixed-precision", action="store_true", help="round gradients to fp16, with loss scaling")
    parser.add_argument("--checkpoint", action="store_true", help="recompute activations: less memory, more time")
    parser.add_argument("--decay", nargs="+", metavar="NAME", help="ends of names of tensors that weight decay reaches")
    add_backend_flag(parser)
    group = parser.add_argument_group("size of the model")
    for name, (default, text) in SIZES.items():
        group.add_argument("--" + name.replace("_", "-"), type=int, default=default, help=text)
    add_training_flags(parser)


async def run(arguments: argparse.Namespace) -> None:
    """Train, and save. Ctrl-C ends after the step in flight and saves."""
    with folder.claimed(arguments.output, folder=True):
        await _run(arguments, arguments.output)


async def _run(arguments: argparse.Namespace, out: Path) -> None:
    settings = _resumed(arguments) if arguments.resume else _fresh(arguments)
    backend = await open_backend(arguments)
    texts = folder.read_texts(settings["texts"])
    tokenizer, model = _tokenizer_and_model(settings, texts, out if arguments.resume else arguments.start, backend)
    train, held_out = windows(texts, tokenizer, settings)
    settings["data_crc32"] = _check_data(settings, train, held_out)
    trainer = EvermindLMTrainer(
        model,
        **settings["options"],
        decay=settings["decay"],
        checkpoint=settings["checkpoint"],
        mixed_precision=settings["mixed_precision"],
    )
    if arguments.resume:
        trainer.load_state((out / folder.STATE).read_bytes())
    print(f"{model.num_parameters:,} weights, {len(train)} windows, {len(held_out)} held out, {backend.name}")

    def save(finished: bool = False) -> None:
        files = {
            folder.TOKENIZER: tokenizer.to_str().encode(),
            folder.STATE: trainer.save_state(),
            folder.RUN: folder.json_bytes(settings | {"finished": finished}),
            folder.MODEL: model.export_weights(),
        }
        folder.write_files(out, files)

    with progress("step") as bar, stopping(trainer.stop) as stopped:

        def on_eval(info: EvalInfo) -> None:
            bar.on_eval(info)
            save()  # so that a crash costs no more than the steps since

        options: dict[str, Any] = {"validation": held_out, "on_eval": on_eval, "resume": arguments.resume}
        history = await trainer.fit_async(train, heeding(bar.on_step, stopped, trainer.stop), **options)
        finished = not stopped or trainer.done
        save(finished)
    _say(history, not finished, out)


def _say(history: Sequence[float], stopped: bool, out: Path) -> None:
    for epoch, loss in enumerate(history, 1):
        print(f"epoch {epoch}: loss {loss:.4f} nats a token, perplexity {math.exp(min(loss, 700)):.2f}")
    print(f"saved in {out}" + ("; go on with --resume" if stopped else ""))


# ── settings ─────────────────────────────────────────────────────────────────
def _fresh(arguments: argparse.Namespace) -> dict[str, Any]:
    if not arguments.text:
        raise InvalidArgumentError("no TEXT to train on; name one or more text files")
    if (arguments.output / folder.MODEL).exists():
        raise InvalidArgumentError(
            f"{arguments.output} already holds a model; go on with it by --resume, or choose another folder"
        )
    if not 0 <= arguments.val_split < 1:
        raise InvalidArgumentError(f"--val-split must be in 0…1, below 1, got {arguments.val_split:g}")
    given = vars(arguments)
    return {
        "texts": arguments.text,
        "decay": arguments.decay,
        "options": training_values(arguments),
        **{name: given[name] for name in DATA},
    }


def _resumed(arguments: argparse.Namespace) -> dict[str, Any]:
    path = arguments.output / folder.RUN
    if not path.exists():
        raise InvalidArgumentError(f"{arguments.output} holds no run to resume; start one without --resume")
    settings = folder.read_json(path)
    if settings.get("finished"):
        raise InvalidArgumentError(
            f"the run in {arguments.output} is finished; to train its model further: train TEXT --from "
            f"{arguments.output} -o ANOTHER"
        )
    return settings | ({"texts": arguments.text} if arguments.text else {})


# ── data ─────────────────────────────────────────────────────────────────────
def _tokenizer_and_model(
    settings: dict[str, Any], texts: list[str], start: Path | None, backend: Any
) -> tuple[BPETokenizer, EvermindLM]:
    if start is not None:
        model, tokenizer = folder.load_model(start, backend)
        return tokenizer, model
    tokenizer = BPETokenizer()
    with progress("tokenizer") as bar:
        tokenizer.train(texts, vocab_size=settings["vocab_size"], on_progress=bar.on_count)
    sizes = {name: settings[name] for name in SIZES if name != "model_seed"}
    return tokenizer, EvermindLM(tokenizer.vocab_size, **sizes, seed=settings["model_seed"], backend=backend)


def windows(texts: list[str], tokenizer: BPETokenizer, settings: dict[str, Any]) -> tuple[list[Example], list[Example]]:
    """Windows to train on and windows held out: the end of each text, a whole number of windows."""
    train: list[Example] = []
    held_out: list[Example] = []
    for text in texts:
        packed = pack_windows(tokenizer.encode(text), settings["window"])
        count = min(math.ceil(len(packed) * settings["val_split"]), len(packed) - 1)
        train += packed[: len(packed) - count]
        held_out += packed[len(packed) - count :]
    if settings["val_split"] and not held_out:
        print("the text is too short to hold out a window; nothing is measured", file=sys.stderr)
    if settings["shuffle"]:
        random.Random(settings["options"]["seed"]).shuffle(train)
    return train, held_out


def _check_data(settings: dict[str, Any], *parts: list[Example]) -> int:
    """CRC-32 of all windows; a resumed run must see those that it began with."""
    found = crc32(repr([[list(map(int, e.tokens)) for e in part] for part in parts]).encode())
    if settings.get("data_crc32", found) != found:
        raise InvalidArgumentError("the texts are not those that the run began with; give the same files again")
    return found
