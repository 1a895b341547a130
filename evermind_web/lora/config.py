"""What an adapter is to be: rank, scale and targets, in the vocabulary of PEFT; and which tensors that means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evermind_web.checks import check_fields, number_in
from evermind_web.errors import InvalidArgumentError
from evermind_web.lora.adapter import DEFAULT_SEED, LoRAAdapter, check_rank
from evermind_web.params import ParamSpec, ParamTable
from evermind_web.rng import check_seed

EMBEDDING = "token_embedding.weight"
ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class LoraConfig:
    """Settings of one adapter; names and meaning are PEFT's.

    r, lora_alpha (None: r): rank, and scale = lora_alpha/r, with use_rslora lora_alpha/sqrt(r).
    target_modules: ends of tensor names, with or without ".weight" ("token_embedding", "conv", "router", "shared.w1",
    "experts.0.w1", "w1" …), one or several; "all-linear" is the embedding and every w1 and w2.
    rank_pattern, alpha_pattern: other values for some targets, by the end of their name. Every rank must be at most the
    smaller side of its matrix: conv (D,K) and router (E,D) mostly need a lower one.
    lora_dropout: part of the inputs of the low-rank path set to 0 while training. seed: of the first
    target's initial A; each further one has the next seed (0 after 2³²−1).
    Raises InvalidArgumentError for impossible values; whether the targets exist is known when it meets a model.
    """

    r: int = 8
    lora_alpha: float | None = None
    target_modules: str | Sequence[str] = ("token_embedding",)
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    use_rslora: bool = False
    lora_dropout: float = 0.0
    seed: int = DEFAULT_SEED

    def __post_init__(self) -> None:
        check_fields(self)
        for rank in (self.r, *self.rank_pattern.values()):
            check_rank(rank, 2**31, 2**31)
        for alpha in (self.alpha, *self.alpha_pattern.values()):
            if not math.isfinite(alpha):
                raise InvalidArgumentError(f"lora_alpha must be a finite number, got {alpha!r}")
        number_in("lora_dropout", self.lora_dropout, 0, 0.95)
        check_seed(self.seed)

    @property
    def alpha(self) -> float:
        """lora_alpha, or r where it is None."""
        return self.r if self.lora_alpha is None else self.lora_alpha

    @property
    def suffixes(self) -> tuple[str, ...]:
        """What the names of targets end with, "all-linear" written out."""
        given = (self.target_modules,) if isinstance(self.target_modules, str) else tuple(self.target_modules)
        return tuple(s for one in given for s in (("token_embedding", "w1", "w2") if one == ALL_LINEAR else (one,)))

    def targets(self, table: ParamTable) -> list[ParamSpec]:
        """The tensors meant, in canonical order. InvalidArgumentError: no such tensor, no matrix, rank too high."""
        chosen: set[str] = set()
        for suffix in self.suffixes:
            found = [spec for spec in table.specs if matches(spec.name, suffix)]
            if not found:
                raise InvalidArgumentError(f"target_modules: no tensor's name ends with {suffix!r}; see parameters()")
            for spec in found:
                if len(spec.shape) != 2:
                    raise InvalidArgumentError(f"{spec.name} has shape {spec.shape}: only a matrix can have an adapter")
            chosen |= {spec.name for spec in found}
        if not chosen:
            raise InvalidArgumentError("target_modules is empty; name at least one tensor")
        targets = [spec for spec in table.specs if spec.name in chosen]
        for spec in targets:
            check_rank(self.rank_of(spec.name), spec.shape[0], spec.shape[1], module_of(spec.name))
        return targets

    def rank_of(self, name: str) -> int:
        """Rank of a target by its tensor's name."""
        return next((rank for key, rank in self.rank_pattern.items() if matches(name, key)), self.r)

    def alpha_of(self, name: str) -> float:
        """alpha of a target by its tensor's name."""
        return next((alpha for key, alpha in self.alpha_pattern.items() if matches(name, key)), self.alpha)

    def adapters(self, table: ParamTable) -> dict[str, LoRAAdapter]:
        """Fresh adapters by tensor name; the seed goes up by one from target to target."""
        return {
            spec.name: LoRAAdapter(
                spec.shape[0], spec.shape[1], self.rank_of(spec.name), self.alpha_of(spec.name),
                (self.seed + number) % 2**32,
                self.use_rslora, module_of(spec.name),
            )
            for number, spec in enumerate(self.targets(table))
        }  # fmt: skip


def module_of(name: str) -> str:
    """A tensor's name without ".weight": what PEFT calls a module."""
    return name.removesuffix(".weight")


def matches(name: str, suffix: str) -> bool:
    """Whether a tensor's name, with or without ".weight", ends with these whole parts."""
    return any(full == suffix or full.endswith("." + suffix) for full in (name, module_of(name)))
