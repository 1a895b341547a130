"""Everything that decides a pretraining run, in one record: the same recipe and texts give the same run."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from evermind_web.errors import InvalidArgumentError
from evermind_web.formats.arch import Arch

PRECISIONS = ("auto", "bf16", "fp32")
KINDS = ("evermind", "transformer")


def _set(default: Any, about: str) -> Any:
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True, slots=True)
class Recipe:
    """Options of `python -m evermind_web.pretrain`, under the same names; the help of each is its metadata."""

    vocab_size: int = _set(4096, "tokens of a tokenizer that is trained here")
    kind: str = _set("evermind", "evermind, or transformer: a teacher of the same D, L and H")
    d_model: int = _set(192, "model width D")
    num_layers: int = _set(8, "layers L")
    conv_kernel: int = _set(8, "taps of each convolution K; the model sees L·(K−1)+1 tokens")
    hidden_dim: int = _set(384, "hidden width of an expert H")
    num_experts: int = _set(4, "routed experts E")
    top_k: int = _set(2, "experts per token k")
    window: int = _set(256, "tokens of a training window T")
    batch: int = _set(64, "windows per step, over all processes")
    epochs: float = _set(20.0, "passes over the training text")
    seconds: float = _set(0.0, "instead of epochs: as many steps as fit, by a measured step (0: off)")
    lr: float = _set(2e-3, "peak learning rate")
    min_lr_ratio: float = _set(0.02, "learning rate at the end, as a part of the peak")
    warmup: int = _set(100, "steps of linear rise")
    beta1: float = _set(0.9, "AdamW")
    beta2: float = _set(0.95, "AdamW")
    weight_decay: float = _set(0.1, "AdamW, on matrices only")
    grad_clip: float = _set(1.0, "largest global gradient norm (0: off)")
    balance: float = _set(0.01, "weight of the load-balance loss")
    teaching: float = _set(0.75, "part of the loss that compares with the teachers, if there are any")
    dropout: float = _set(0.1, "of embedded tokens and of what each branch adds")
    hidden_dropout: float = _set(0.0, "inside the experts")
    token_dropout: float = _set(0.0, "part of the input tokens that are blanked")
    subword_dropout: float = _set(0.0, "chance that a merge of the tokenizer is skipped, drawn anew each epoch")
    ema: float = _set(0.998, "decay of the averaged weights that are kept (0: the plain weights)")
    val_fraction: float = _set(0.02, "end of each text that is held out")
    eval_every: int = _set(500, "steps between evaluations")
    save_seconds: float = _set(20.0, "a checkpoint follows an evaluation if the last one is older (0: always)")
    seed: int = _set(1, "of weights, order and dropout")
    precision: str = _set("auto", "auto (bf16 on a GPU), bf16 or fp32")
    compile: bool = _set(True, "torch.compile on a GPU")

    def __post_init__(self) -> None:
        for name in ("batch", "window", "eval_every"):
            _check(name, getattr(self, name), 1, math.inf)
        for name in ("dropout", "hidden_dropout", "token_dropout", "subword_dropout"):
            _check(name, getattr(self, name), 0, 0.95)
        for name in ("val_fraction", "min_lr_ratio", "beta1", "beta2", "ema", "teaching"):
            _check(name, getattr(self, name), 0, 1)
        for name in ("lr", "weight_decay", "grad_clip", "balance", "epochs", "seconds", "warmup", "seed",
                     "save_seconds"):  # fmt: skip
            _check(name, getattr(self, name), 0, math.inf)
        if self.kind not in KINDS:
            raise InvalidArgumentError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.precision not in PRECISIONS:
            raise InvalidArgumentError(f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}")

    def arch(self, vocab_size: int) -> Arch:
        """The model's shape with a tokenizer of this many ids."""
        return Arch(
            vocab_size, self.d_model, self.num_layers, self.conv_kernel, self.hidden_dim, self.num_experts, self.top_k
        )

    def lr_at(self, step: int, total: int) -> float:
        """Learning rate of step `step` (from 0) of `total`: linear rise, then half a cosine."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        progress = min(1.0, (step - self.warmup) / max(1, total - 1 - self.warmup))
        left = 0.5 * (1 + math.cos(math.pi * progress))
        return self.lr * (self.min_lr_ratio + (1 - self.min_lr_ratio) * left)

    def to_json(self) -> dict[str, Any]:
        """For files; `from_json` reads it."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Recipe:
        """A recipe from a dict; InvalidArgumentError for a name that it does not have."""
        unknown = values.keys() - {f.name for f in fields(cls)}
        if unknown:
            raise InvalidArgumentError(f"a recipe has no {min(unknown)!r}; see --help for the names")
        return cls(**values)


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InvalidArgumentError(f"{name} must be in {low}…{high}, got {value!r}")
