"""LimbicTrainer: full-batch AdamW on experiences, with clipping; the optimizer is the language model's."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

from evermind_web import ops
from evermind_web.backend.base import Buf
from evermind_web.checks import checked, number_in
from evermind_web.environment import run_blocking
from evermind_web.errors import InvalidArgumentError, NonFiniteError
from evermind_web.limbic.model import LimbicModel
from evermind_web.optim import AdamWOptions, FlatAdamW
from evermind_web.params import whole_number

Sample = tuple[Any, Any, Any, float]  # input (I), state (A), target of the state's change (A), target of the reward


class LimbicTrainer:
    """Moments and step count live on over several `train` calls."""

    @checked
    def __init__(self, model: LimbicModel) -> None:
        self.model = model
        every = frozenset(model.table.by_name)
        self._adam = FlatAdamW(model.flat, model.table.decay_groups(names=every))
        self._hyper = model.backend.alloc((ops.HYPER_SIZE,))

    def _upload(self, samples: Sequence[Sample]) -> list[Buf]:
        model = self.model
        x, state, change, reward = zip(*samples, strict=True)
        targets = model.target_rows(change, reward, 1 / len(samples))
        hidden = [model.init_hidden()] * len(samples)
        return [*model.inputs(list(x), hidden, list(state)), model.upload(targets)]

    @checked
    async def train_async(
        self,
        samples: Sequence[Sample],
        learning_rate: float = 0.05,
        epochs: int = 50,
        weight_decay: float = 0.0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        max_grad_norm: float = 1.0,
        on_epoch_end: Callable[[int, float, float], None] | None = None,
    ) -> list[float]:
        """Mean loss of each epoch, before its step. The hidden state starts from zeros in every sample.

        on_epoch_end(epoch from 1, loss, gradient norm before clipping). max_grad_norm 0 turns clipping off.
        Raises InvalidArgumentError for no samples or while another training of the model goes on, NonFiniteError naming
        the epoch.
        """
        options = AdamWOptions(learning_rate, beta1, beta2, eps, weight_decay)
        whole_number("epochs", epochs)
        number_in("max_grad_norm", max_grad_norm, 0, math.inf)
        if not samples:
            raise InvalidArgumentError("no samples to train on; give at least one experience")
        history = list[float]()
        with self.model.fitting():
            bufs = self._upload(samples)
            try:
                for epoch in range(1, epochs + 1):
                    loss, norm = await self._step(bufs, options, max_grad_norm)
                    if not math.isfinite(norm) or not math.isfinite(loss):
                        raise NonFiniteError(f"loss is not finite at epoch {epoch}: its step was not applied")
                    self._adam.step += 1
                    history.append(loss)
                    if on_epoch_end:
                        on_epoch_end(epoch, loss, norm)
                    await asyncio.sleep(0)
            finally:
                for buf in bufs:
                    self.model.backend.free(buf)
        return history

    async def _step(self, bufs: Sequence[Buf], options: AdamWOptions, max_grad_norm: float) -> tuple[float, float]:
        """One step; returns the loss before it and the gradient norm before clipping, NaN if it was not applied."""
        model = self.model
        hyper = options.hyper(self._adam.step + 1) | {"max_grad_norm": max_grad_norm}
        model.backend.write(self._hyper, ops.hyper_vector(hyper))
        model.zero_grad()
        model.backend.zero(model.loss)
        model.queue_backward(bufs[:3], bufs[3])
        self._adam.queue(model.flat_grads, self._hyper)
        loss, (square, bad) = await model.backend.read(model.loss, self._adam.stats)
        return float(loss[0]), math.nan if bad else math.sqrt(float(square))

    def train(self, samples: Sequence[Sample], **options: Any) -> list[float]:
        """Blocking twin of `train_async`."""
        return run_blocking(self.train_async(samples, **options))

    @checked
    async def evaluate_async(self, samples: Sequence[Sample]) -> float:
        """Mean loss without an update; 0.0 for no samples."""
        if not samples:
            return 0.0
        model = self.model
        total = 0.0
        for x, state, change, reward in samples:
            step = await model.forward_async(x, model.init_hidden(), state)
            miss = float(sum((float(d) - float(t)) ** 2 for d, t in zip(step.delta, change, strict=True)))
            total += 0.5 * (miss + model.config.reward_weight * (step.reward - reward) ** 2)
        return total / len(samples)

    def evaluate(self, samples: Sequence[Sample]) -> float:
        """Blocking twin of `evaluate_async`."""
        return run_blocking(self.evaluate_async(samples))
