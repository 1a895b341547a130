"""What can be set of a training run besides AdamW's own options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evermind_web.batch import Item, sequence_weights, token_weights
from evermind_web.checks import check_fields, number_in, whole_number
from evermind_web.errors import InvalidArgumentError
from evermind_web.network import Noise

SCHEDULES = ("constant", "linear", "cosine")
REDUCTIONS = ("sequence", "token")


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Options of a fit; every default leaves the reference's behaviour as it is.

    epochs, accum_steps: passes over the sequences; sequences of one optimizer step (their window).
    lr_scheduler_type: "constant", "linear" or "cosine", after `warmup_steps` of linear rise, down to
    `min_lr_ratio` × lr at the last step. It counts applied steps only.
    max_grad_norm: gradients are scaled down to this global norm; 0 is off.
    loss_reduction: "sequence" averages each sequence, then the window; "token" averages all scored positions.
    dropout: part of the normed inputs of each branch set to 0 while training. router_noise: amplitude of uniform noise
    on the router's scores while training. Both are drawn from seed, step and layer, so that a recompute repeats them.
    balance_coef: weight of the load-balance loss E·Σ f·P of each layer (its gradient; the reported loss is without).
    eval_every: optimizer steps between evaluations of `validation` (0: after each epoch). patience: evaluations
    without a better loss after which training stops (0: never). keep_best: end with the best evaluated weights.
    """

    epochs: int = 1
    accum_steps: int = 1
    lr_scheduler_type: str = "constant"
    warmup_steps: int = 0
    min_lr_ratio: float = 0.0
    max_grad_norm: float = 0.0
    loss_reduction: str = "sequence"
    dropout: float = 0.0
    router_noise: float = 0.0
    balance_coef: float = 0.0
    seed: int = 1
    eval_every: int = 0
    patience: int = 0
    keep_best: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("epochs", "accum_steps"):
            whole_number(name, getattr(self, name))
        for name in ("warmup_steps", "seed", "eval_every", "patience"):
            whole_number(name, getattr(self, name), 0)
        for name in ("max_grad_norm", "router_noise", "balance_coef"):
            number_in(name, getattr(self, name), 0, math.inf)
        number_in("dropout", self.dropout, 0, 0.95)
        number_in("min_lr_ratio", self.min_lr_ratio, 0, 1)
        for name, allowed in (("lr_scheduler_type", SCHEDULES), ("loss_reduction", REDUCTIONS)):
            if getattr(self, name) not in allowed:
                raise InvalidArgumentError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")

    def lr_factor(self, step: int, total: int) -> float:
        """What lr is multiplied by at applied step `step` (from 1) of `total`."""
        if step <= self.warmup_steps:
            return step / self.warmup_steps
        if self.lr_scheduler_type == "constant":
            return 1.0
        progress = min(1.0, (step - self.warmup_steps) / max(1, total - self.warmup_steps))
        left = 1 - progress if self.lr_scheduler_type == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * left

    def noise(self, step: int, loss_scale: float = 1.0) -> Noise | None:
        """What is random, or added to the loss, in step number `step`; None where nothing is."""
        if not (self.dropout or self.router_noise or self.balance_coef):
            return None
        return Noise(self.seed, step, self.dropout, self.router_noise, self.balance_coef, loss_scale)

    def weights(self, window: Sequence[Item]) -> list[float]:
        """Loss weights of the items of a window."""
        return token_weights(window) if self.loss_reduction == "token" else sequence_weights(window)
