"""The choices a person should not have to make: model size, learning rates, lengths of training, sampling.

Everything here was chosen so that the whole story takes about a minute on two slow cores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from evermind_web.batch import Example, pack_windows
from evermind_web.errors import InvalidArgumentError
from evermind_web.formats.arch import Arch
from evermind_web.generation import GenerationConfig
from evermind_web.lora import LoraConfig

# Size S of docs/architecture.md.
MODEL: dict[str, int] = {
    "d_model": 64,
    "num_layers": 2,
    "conv_kernel": 3,
    "hidden_dim": 128,
    "num_experts": 4,
    "top_k": 2,
}
# Falling over the run: 0.35 nats better on held-out text after 40 steps than a constant 0.01.
LEARNING_RATE = 0.02
SCHEDULE: dict[str, Any] = {"lr_scheduler_type": "cosine", "min_lr_ratio": 0.1}
BASE_SEED = 0x45564C4D

VOCABULARY = 512
SPECIALS_AND_BYTES = 260
# The tokenizer learns from at most this much: more changes hardly a merge and takes Python longer.
TOKENIZER_CHARACTERS = 100_000

# A base that has read much forgets more than it learns at a higher rate; one that knows a single text needs it.
ONE_TEXT_RATE = 0.02
WELL_READ_PARAMETERS = 1_000_000
# On 5 KB of a text, 0.002 made the rest of one of three texts worse; 0.0006 made none worse and kept most of the gain.
# In 20 steps 0.002 does what 0.0006 does in 60, and harms none; 0.0006 does a fifth to a half of it.
SHORT_TEXT_RATE = 0.0006
SHORT_TEXT = 8_000  # tokens, about 20 KB
SHORT_SLICE, SLICE = 0.2, 0.1  # of a text, its end: says when to stop, and whether what was learned is kept

# Optimizer steps of 8 windows. "quick" is for a first look; the others suit a GPU or patience.
LENGTHS: dict[str, int] = {"quick": 40, "normal": 150, "long": 600}
LOOKS = 10  # at held-out text, in a run
# Of a persona, whose steps read twice as much. "normal" is the whole recipe; "quick" is for processors.
PERSONA_LENGTHS: dict[str, int] = {"quick": 20, "normal": 400, "long": 1600}
PASSES = 2  # over a persona's text, at least: of a longer one as much is read as the steps allow
MAX_STEPS = 100_000
# A token is about 2.5 characters with 512 of them; no more text is encoded than the steps can read.
CHARACTERS_PER_STEP = 8 * 64 * 3

MAX_NEW_TOKENS = 4096
MAX_SEED = 2**32 - 1
# The page's own; the others do nothing until they are asked for.
UNSAID: dict[str, Any] = {"max_new_tokens": 120, "temperature": 0.8, "seed": 1}
SAMPLING = {f.name for f in fields(GenerationConfig)} - {"stop_token", "stop_tokens", "logit_bias"}
MAX_WEIGHT = 10  # of an adapter in a mix, either way; a whole one is 1


def merges_for(text: str) -> int:
    """Merges that a tokenizer for `text` should learn: up to 512 tokens in all, fewer for a short text."""
    return max(16, min(VOCABULARY - SPECIALS_AND_BYTES, len(text) // 20))


@dataclass(frozen=True)
class Recipe:
    """How personas learn: the best of the table that `bench/personalize.py` measures, which takes it from here.

    Fields are those of `LoraConfig` and `TrainingOptions`; `window` tokens, `steps` optimizer steps (about: whole
    passes over the text, at most `max_epochs`). `patience` passes that made the end of the text no better end it.
    """

    targets: tuple[str, ...] = ("all-linear",)
    r: int = 3
    rank_pattern: Mapping[str, int] = field(default_factory=lambda: {"token_embedding": 8})
    lora_alpha: float | None = None
    lora_dropout: float = 0.0
    dropout: float = 0.0
    lr: float = 0.002
    weight_decay: float = 0.0
    window: int = 128
    accum_steps: int = 8
    steps: int = PERSONA_LENGTHS["normal"]
    max_epochs: int = 30
    patience: int = 3
    seed: int = 1

    @property
    def tokens(self) -> int:
        """How many of a text are of use: what the steps can read in `PASSES`."""
        return max(1, self.steps // PASSES) * self.accum_steps * self.window

    def windows(self, ids: Sequence[int]) -> list[Example]:
        """Token ids as windows, in the order in which every pass reads them."""
        windows = pack_windows(ids, self.window)
        np.random.default_rng(self.seed).shuffle(windows)  # type: ignore[arg-type]
        return windows

    def epochs(self, windows: int) -> int:
        """Passes over so many windows."""
        per_epoch = math.ceil(windows / self.accum_steps)
        return max(min(PASSES, self.steps), min(self.max_epochs, math.ceil(self.steps / per_epoch)))

    def adapter(self, arch: Arch) -> LoraConfig:
        """What kind of adapter; a small model's matrices get lower ranks."""
        most = min(arch.d_model, arch.hidden_dim, arch.vocab_size)
        ranks = {name: min(rank, most) for name, rank in self.rank_pattern.items()}
        return LoraConfig(min(self.r, most), self.lora_alpha, self.targets, ranks, lora_dropout=self.lora_dropout)

    def options(self, windows: int) -> dict[str, Any]:
        """Those of a fit over so many windows."""
        return {
            "lr": self.lr, "weight_decay": self.weight_decay, "epochs": self.epochs(windows),
            "accum_steps": self.accum_steps, "patience": self.patience, "dropout": self.dropout, **SCHEDULE,
            "warmup_steps": 5, "max_grad_norm": 1.0, "loss_reduction": "token", "seed": self.seed,
        }  # fmt: skip


def persona(parameters: int, tokens: int, length: str = "normal", steps: int | None = None) -> Recipe:
    """The recipe for a text of so many tokens on a base of so many parameters.

    A base of the page's own making is small and knows a single text. "long" does not stop early, but keeps the best.
    """
    count = steps_for(length, steps, PERSONA_LENGTHS)
    careful = tokens < SHORT_TEXT and count > PERSONA_LENGTHS["quick"]
    rate = SHORT_TEXT_RATE if careful else Recipe.lr
    chosen = Recipe(lr=rate if parameters >= WELL_READ_PARAMETERS else ONE_TEXT_RATE, steps=count)
    return replace(chosen, patience=0, max_epochs=MAX_STEPS) if length == "long" or steps is not None else chosen


def steps_for(length: str, steps: int | None, lengths: Mapping[str, int] = LENGTHS) -> int:
    """Optimizer steps, from a length's name or an explicit number. Raises InvalidArgumentError."""
    if steps is not None:
        return _integer("steps", steps, 1, MAX_STEPS)
    if length not in lengths:
        raise InvalidArgumentError(f"length must be one of {', '.join(lengths)}, got {length!r}")
    return lengths[length]


def sampling(options: Mapping[str, Any], stop_token: int | None = None) -> GenerationConfig:
    """How to write, from the page's options; missing ones get their default, those of `UNSAID` here. `temperature` 0
    takes the likeliest token. Raises InvalidArgumentError naming the setting that is wrong.
    """
    said = {name: value for name, value in options.items() if name in SAMPLING and value is not None}
    chosen = UNSAID | said
    _integer("the number of tokens", chosen["max_new_tokens"], 1, MAX_NEW_TOKENS)
    _integer("the seed", chosen["seed"], 0, MAX_SEED)
    checked_number("the temperature", chosen["temperature"], 0, 5)
    return GenerationConfig(**chosen, stop_token=stop_token)


def checked_number(what: str, value: Any, low: float, high: float) -> float:
    """`value`, a number of that range. Raises InvalidArgumentError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InvalidArgumentError(f"{what} must be a number from {low} to {high}, got {value!r}")
    return value


def _integer(what: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidArgumentError(f"{what} must be a whole number from {low:,} to {high:,}, got {value!r}")
    return value
