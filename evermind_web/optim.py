"""AdamW and the dynamic loss scaler (FORMAT 8)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from evermind_web import ops
from evermind_web.backend.base import Buf
from evermind_web.backend.reference.optim import adamw_update
from evermind_web.checks import check_fields, checked, number_in, whole_number
from evermind_web.errors import InvalidArgumentError
from evermind_web.flat_vector import FlatVector
from evermind_web.layout import ALIGN
from evermind_web.params import F32


@dataclass(frozen=True, slots=True)
class AdamWOptions:
    """lr, betas, eps, decoupled weight decay (times lr), and the share of tensors (index, count) that is stepped."""

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    shard: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.eps == 0:
            raise InvalidArgumentError("eps must be above 0: a gradient of exactly 0 would give 0/0")
        for name in ("lr", "eps", "weight_decay"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidArgumentError(f"{name} must be a finite number from 0 on, got {value!r}")
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise InvalidArgumentError(f"{name} must be in [0, 1), got {value!r}")
        index, count = self.shard or (0, 1)
        if not (count > 0 and 0 <= index < count):
            raise InvalidArgumentError(f"shard must be (index, count) with 0 <= index < count, got {self.shard!r}")

    @property
    def owned(self) -> tuple[int, int]:
        """The shard, (0, 1) where there is none."""
        return self.shard or (0, 1)

    def hyper(self, step: int) -> dict[str, float]:
        """The step scalars of step number `step` (from 1), by their names in `ops.HYPER`."""
        return {
            "lr": self.lr,
            "beta1": self.beta1,
            "one_minus_beta1": 1 - self.beta1,
            "beta2": self.beta2,
            "one_minus_beta2": 1 - self.beta2,
            "eps": self.eps,
            "weight_decay": self.weight_decay,
            "bias_correction1": 1 - self.beta1**step,
            "bias_correction2": 1 - self.beta2**step,
        }


class StepScalars:
    """The contents of a `hyper` buffer, step by step: only what changes is written anew."""

    def __init__(self, options: AdamWOptions, max_grad_norm: float = 0.0) -> None:
        self.options = options
        self._vector = ops.hyper_vector(options.hyper(1) | {"max_grad_norm": max_grad_norm})

    def at(self, step: int, lr: float, loss_scale: float = 1.0) -> F32:
        """The vector (16) of step number `step` (from 1); the next call overwrites it."""
        vector, options = self._vector, self.options
        vector[_LR] = lr
        vector[_CORRECTION1] = 1 - options.beta1**step
        vector[_CORRECTION2] = 1 - options.beta2**step
        vector[_SCALE] = loss_scale
        vector[_UNSCALE] = 1 / loss_scale
        return vector


_LR, _CORRECTION1, _CORRECTION2, _SCALE, _UNSCALE = (
    ops.HYPER[name] for name in ("lr", "bias_correction1", "bias_correction2", "grad_scale", "inv_grad_scale")
)


class FlatAdamW:
    """AdamW over a flat padded vector p (P) on its backend, part by part. `queue` queues a step; nothing waits.

    groups (P/64): see `ops.adamw`. `step` counts applied steps; the owner raises it once it is known that a step was
    not skipped.
    """

    def __init__(self, p: FlatVector, groups: F32) -> None:
        self.backend, self.p, self.step = p.backend, p, 0
        self.m, self.v = p.like(), p.like()
        self.group = FlatVector.alloc(p.backend, [part.size // ALIGN for part in p.parts])
        self.stats = p.backend.alloc((2,))
        self.group.write(groups)

    def queue(self, g: FlatVector, hyper: Buf, half: bool = False) -> None:
        """stats = of all parts of g; then p, m, v take one step with the scalars in `hyper`, unless g is not finite."""

        def build() -> None:
            for number, part in enumerate(g.parts):
                ops.grad_stats(self.backend, (part, hyper), (self.stats,), half=int(half), add=int(number > 0))
            vectors = (g, self.group, self.p, self.m, self.v)
            for dp, group, *updated in zip(*(vector.parts for vector in vectors), strict=True):
                ops.adamw(self.backend, (dp, group, hyper, self.stats), updated, half=int(half))

        self.backend.replay(("adamw", self.stats.id, g.parts[0].id, hyper.id, half), build)

    def free(self) -> None:
        """Give the moments back."""
        for vector in (self.m, self.v, self.group):
            vector.free()
        self.backend.free(self.stats)


@runtime_checkable
class Holder(Protocol):
    """A named array; `data` is changed in place."""

    data: Any


@runtime_checkable
class Target(Protocol):
    """What a bare AdamW steps: live arrays, such as those of a model on NumPy."""

    def parameters(self) -> Sequence[Any]: ...

    def gradients(self) -> Sequence[Any]: ...


class AdamW:
    """AdamW over `target.parameters()` and `target.gradients()`, live float32 arrays, each decayed.

    shard (index, count): only parameters number p with p mod count = index are stepped and have moments.
    """

    @checked
    def __init__(
        self,
        target: Target,
        lr: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        shard: tuple[int, int] | None = None,
    ) -> None:
        self.options = AdamWOptions(lr, beta1, beta2, eps, weight_decay, shard)
        self.target = target
        index, count = self.options.owned
        parameters = list(target.parameters())
        self._owned = [i for i in range(len(parameters)) if i % count == index]
        self._moments = [tuple(np.zeros_like(parameters[i].data, np.float32) for _ in range(2)) for i in self._owned]
        self._step = 0

    def step(self) -> None:
        """One step on the gradients as they are; they are not zeroed."""
        self._step += 1
        hyper = ops.hyper_vector(self.options.hyper(self._step))
        parameters, gradients = self.target.parameters(), self.target.gradients()
        with np.errstate(all="ignore"):
            for i, (m, v) in zip(self._owned, self._moments, strict=True):
                adamw_update(parameters[i].data, gradients[i].data, m, v, hyper, 1.0)

    def state_bytes(self) -> int:
        """Bytes of the moments: 8 per owned element."""
        return sum(m.nbytes + v.nbytes for m, v in self._moments)


class DynamicLossScaler:
    """Grows the loss scale after `growth_interval` good steps, backs off on overflow, never below `min_scale`."""

    def __init__(
        self,
        init_scale: float = 16384,
        growth_factor: float = 2,
        backoff_factor: float = 0.5,
        growth_interval: int = 200,
        min_scale: float = 1,
    ) -> None:
        for name, value in (("init_scale", init_scale), ("min_scale", min_scale)):
            number_in(name, value, 0, math.inf, open_ends=True)
        number_in("growth_factor", growth_factor, 1, math.inf)
        number_in("backoff_factor", backoff_factor, 0, 1)
        whole_number("growth_interval", growth_interval)
        self.scale = float(init_scale)
        self.growth_factor, self.backoff_factor = growth_factor, backoff_factor
        self.growth_interval, self.min_scale = growth_interval, float(min_scale)
        self.overflows = self.skipped = self._streak = 0

    @checked
    def check(self, parts: Iterable[Holder]) -> bool:
        """Whether any element of any `.data` is NaN or infinite."""
        return not all(np.isfinite(part.data).all() for part in parts)

    @checked
    def unscale(self, parts: Iterable[Holder]) -> None:
        """Multiply every `.data` by 1/scale, in place."""
        for part in parts:
            part.data *= np.float32(1 / self.scale)

    @checked
    def update(self, overflow: bool) -> bool:
        """Take note of a step; returns whether it is to be applied."""
        if overflow:
            self.overflows += 1
            self.skipped += 1
            self.scale = max(self.min_scale, self.scale * self.backoff_factor)
            self._streak = 0
            return False
        self._streak += 1
        if self._streak >= self.growth_interval:
            self.scale *= self.growth_factor
            self._streak = 0
        return True

    def state(self) -> dict[str, float | int]:
        """What `load_state` takes: scale, counters, streak."""
        return {"scale": self.scale, "overflows": self.overflows, "skipped": self.skipped, "streak": self._streak}

    @checked
    def load_state(self, state: dict[str, float]) -> None:
        """Go on from a saved state."""
        missing = self.state().keys() - state.keys()
        if missing:
            raise InvalidArgumentError(f"this state of a loss scaler lacks {', '.join(sorted(missing))}; see state()")
        self.scale, self.overflows = float(state["scale"]), int(state["overflows"])
        self.skipped, self._streak = int(state["skipped"]), int(state["streak"])
