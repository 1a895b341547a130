"""Flags made from the package's own options, so that none is missing here and each default is stated once."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from evermind_web.backend.base import Backend
from evermind_web.backend.request import request_backend
from evermind_web.errors import InvalidArgumentError
from evermind_web.generation import GenerationConfig
from evermind_web.optim import AdamWOptions
from evermind_web.training import TrainingOptions


class UsageError(InvalidArgumentError):
    """The command line asks for what cannot be, which only its files show: exit code 2."""


TYPES: dict[str, Any] = {"int": int, "float": float, "str": str}
# As on the page: 8 windows a step. The library's own default, 1, is the reference's.
DEFAULTS: dict[str, Any] = {"accum_steps": 8}
CHOICES = {"lr_scheduler_type": ("constant", "linear", "cosine"), "loss_reduction": ("sequence", "token")}
HELP = {
    "lr": "learning rate of AdamW",
    "beta1": "decay of AdamW's first moment",
    "beta2": "decay of AdamW's second moment",
    "eps": "AdamW's epsilon",
    "weight_decay": "decoupled weight decay (times lr) of the matrices",
    "epochs": "passes over the text",
    "accum_steps": "windows of one optimizer step",
    "lr_scheduler_type": "learning rate over the run",
    "warmup_steps": "steps of linear rise of the learning rate",
    "min_lr_ratio": "part of lr that is left at the last step",
    "max_grad_norm": "clip gradients to this global norm; 0 is off",
    "loss_reduction": "average each window, or each token",
    "dropout": "part of each branch's inputs set to 0 while training",
    "router_noise": "amplitude of noise on the router's scores while training",
    "balance_coef": "weight of the load-balance loss",
    "seed": "of dropout and noise",
    "eval_every": "steps between evaluations; 0: after each epoch",
    "patience": "evaluations without gain after which training stops; 0: never",
    "keep_best": "end with the best evaluated weights",
}
GENERATION_DEFAULTS: dict[str, Any] = {"max_new_tokens": 120, "temperature": 0.8}
GENERATION_HELP = {
    "max_new_tokens": "length limit",
    "temperature": "0: always the likeliest token",
    "seed": "of the draws; the same one gives the same text",
    "top_k": "draw among the k likeliest tokens; 0: all",
    "top_p": "draw among the likeliest tokens that together have this probability",
    "min_p": "leave out tokens below this part of the likeliest one's probability",
    "repetition_penalty": "above 1: tokens that were used become less likely",
    "frequency_penalty": "taken off a logit for each time its token was used",
    "presence_penalty": "taken off the logits of tokens that were used",
}


def add_option_flags(
    parser: argparse.ArgumentParser,
    title: str,
    options: type,
    skip: tuple[str, ...] = (),
    defaults: Mapping[str, Any] = DEFAULTS,
    texts: Mapping[str, str] = HELP,
) -> None:
    """One flag for each field of a dataclass that is a number, a word or a switch."""
    group = parser.add_argument_group(title)
    for field in fields(options):
        if field.name in skip:
            continue
        flag, default = "--" + field.name.replace("_", "-"), defaults.get(field.name, field.default)
        text = texts.get(field.name, "see the library's documentation").replace("%", "%%")
        kind = str(field.type)
        if kind == "bool":
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=default, help=text)
        elif kind in TYPES:
            convert = TYPES[kind]
            group.add_argument(flag, type=convert, default=default, choices=CHOICES.get(field.name), help=text)


def add_training_flags(parser: argparse.ArgumentParser) -> None:
    """AdamW's options and all of TrainingOptions."""
    add_option_flags(parser, "optimizer", AdamWOptions, skip=("shard",))
    add_option_flags(parser, "training", TrainingOptions)


def training_values(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `add_training_flags` gave, as keywords of a trainer."""
    return _values(arguments, AdamWOptions) | _values(arguments, TrainingOptions)


def add_generation_flags(parser: argparse.ArgumentParser) -> None:
    """The settings of GenerationConfig that are numbers."""
    add_option_flags(parser, "sampling", GenerationConfig, defaults=GENERATION_DEFAULTS, texts=GENERATION_HELP)


def generation_values(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `add_generation_flags` gave, as keywords of `generate`."""
    return _values(arguments, GenerationConfig)


def _values(arguments: argparse.Namespace, options: type) -> dict[str, Any]:
    given: Mapping[str, Any] = vars(arguments)
    return {field.name: given[field.name] for field in fields(options) if field.name in given}


def count(text: str) -> int:
    """An argument that is a whole number from 1 on."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def add_backend_flag(parser: argparse.ArgumentParser) -> None:
    """--backend numpy|wgpu."""
    parser.add_argument("--backend", choices=("numpy", "wgpu"), default="numpy", help="wgpu: native WebGPU")


async def open_backend(arguments: argparse.Namespace) -> Backend:
    """The backend that was asked for. Raises WebGPUUnavailableError with what is missing."""
    return await request_backend(arguments.backend)
