"""The choices a person should not have to make: model size, learning rates, lengths of training, sampling.

Numbers only. Everything here was chosen so that the whole story takes about a minute on two slow cores.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from evermind_web.errors import InvalidArgumentError
from evermind_web.generation import GenerationConfig

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

ADAPTER_RANK = 8
# At 0.02 a base that has read much forgets more than it learns (held-out loss 3.64 → 4.39 in 40 steps on a chapter;
# 0.005: 3.67, 0.002: 3.53, 0.001: 3.58). One that knows a single text needs it.
ADAPTER_LEARNING_RATE = 0.02
WELL_READ_RATE = 0.002
WELL_READ_PARAMETERS = 1_000_000
# On 5 KB of a text, 0.002 made the rest of one of three texts worse; 0.0006 made none worse and kept most of the gain.
SHORT_TEXT_RATE = 0.0006
SHORT_TEXT = 8_000  # tokens, about 20 KB

# Optimizer steps of 8 windows. "quick" is for a first look; the others suit a GPU or patience.
LENGTHS: dict[str, int] = {"quick": 40, "normal": 150, "long": 600}
LOOKS = 10  # at held-out text, in a run
MAX_STEPS = 100_000
# A token is about 2.5 characters with 512 of them; no more text is encoded than the steps can read.
CHARACTERS_PER_STEP = 8 * 64 * 3

MAX_NEW_TOKENS = 4096
MAX_SEED = 2**32 - 1


def merges_for(text: str) -> int:
    """Merges that a tokenizer for `text` should learn: up to 512 tokens in all, fewer for a short text."""
    return max(16, min(VOCABULARY - SPECIALS_AND_BYTES, len(text) // 20))


def adapter_rate(parameters: int, tokens: int) -> float:
    """The learning rate for an adapter that reads so much text, on a base of so many parameters.

    A base of the page's own making is small and knows a single text.
    """
    if parameters < WELL_READ_PARAMETERS:
        return ADAPTER_LEARNING_RATE
    return SHORT_TEXT_RATE if tokens < SHORT_TEXT else WELL_READ_RATE


def steps_for(length: str, steps: int | None) -> int:
    """Optimizer steps, from a length's name or an explicit number. Raises InvalidArgumentError."""
    if steps is not None:
        return _integer("steps", steps, 1, MAX_STEPS)
    if length not in LENGTHS:
        raise InvalidArgumentError(f"length must be one of {', '.join(LENGTHS)}, got {length!r}")
    return LENGTHS[length]


@dataclass(frozen=True)
class Sampling:
    """Checked sampling options: `temperature` 0 takes the likeliest token, `seed` in 0…2³²−1; the others are those of
    `GenerationConfig`, which do nothing by default."""

    max_new_tokens: int = 120
    temperature: float = 0.8
    seed: int = 1
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0

    @classmethod
    def of(cls, options: dict[str, Any]) -> Sampling:
        """From the page's options; missing ones get their default. Raises InvalidArgumentError by name."""
        known = {f.name: options[f.name] for f in fields(cls) if options.get(f.name) is not None}
        chosen = cls(**known)
        _integer("the number of tokens", chosen.max_new_tokens, 1, MAX_NEW_TOKENS)
        _integer("the seed", chosen.seed, 0, MAX_SEED)
        temperature = chosen.temperature
        if isinstance(temperature, bool) or not isinstance(temperature, (int, float)) or not math.isfinite(temperature):
            raise InvalidArgumentError(f"the temperature must be a number from 0 to 5, got {temperature!r}")
        if not 0 <= temperature <= 5:
            raise InvalidArgumentError(f"the temperature must be from 0 to 5, got {temperature:g}")
        chosen.config(None)
        return chosen

    def config(self, stop_token: int | None) -> GenerationConfig:
        """For a tokenizer's end-of-text token. Raises InvalidArgumentError naming the setting that is wrong."""
        return GenerationConfig(**asdict(self), stop_token=stop_token)


def _integer(what: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidArgumentError(f"{what} must be a whole number from {low:,} to {high:,}, got {value!r}")
    return value
