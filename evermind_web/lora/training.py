"""Training an adapter: its optimizer steps, driven by the same loop as those of a whole model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from evermind_web import ops
from evermind_web.backend.base import Buf
from evermind_web.batch import Example, Item, Tokens, Window, check_items
from evermind_web.checks import checked, number_in
from evermind_web.errors import InvalidArgumentError
from evermind_web.flat_vector import FlatVector
from evermind_web.language_model import LanguageModel
from evermind_web.lora.bound import AdaptedWeights, AdapterGradients, BoundAdapter, Factors
from evermind_web.lora.config import EMBEDDING
from evermind_web.network import Noise
from evermind_web.optim import AdamWOptions, FlatAdamW
from evermind_web.training.loop import Best, Loop, OnEval, OnStep, Position
from evermind_web.training.options import TrainingOptions
from evermind_web.training.snapshot import SECONDS, OnSnapshot, Snapshot


class AdapterTraining:
    """One fit of the active adapter of `weights`; see `training.loop.Steppable`."""

    def __init__(
        self,
        model: LanguageModel,
        weights: AdaptedWeights,
        adamw: AdamWOptions,
        options: TrainingOptions,
        validation: Sequence[Item],
        lora_dropout: float = 0.0,
        checkpoint: bool = False,
    ) -> None:
        assert weights.bound is not None
        self.model, self.weights, self.backend = model, weights, model.backend
        self.bound: BoundAdapter = weights.bound
        self.adamw, self.options, self.dropout, self.checkpoint = adamw, options, lora_dropout, checkpoint
        self._validation = validation
        self.gradients = AdapterGradients(weights)
        if options.balance_coef and not all(layer.moe for layer in self.gradients.grads.layers):
            self.gradients.free()
            raise InvalidArgumentError(
                "balance_coef trains the routers, which this adapter does not touch in every layer; "
                'add "router" to target_modules, or leave balance_coef out'
            )
        self.adam = FlatAdamW(self.trained, self.bound.groups(adamw.owned))
        self._dropped = self.bound.twin() if lora_dropout and weights.spots() else None
        self._queued = 0

    @property
    def trained(self) -> FlatVector:
        """The adapter's vector, in one part."""
        return FlatVector(self.backend, (self.bound.flat,))

    def queue_step(self, window: Window, number: int, total: int, loss_scale: float) -> tuple[Buf, Buf, float]:
        """See `Steppable`."""
        model, options = self.model, self.options
        self._queued += 1
        lr = self.adamw.lr * options.lr_factor(self._queued, total)
        model.set_hyper(self.adamw.hyper(self._queued) | {"lr": lr, "max_grad_norm": options.max_grad_norm})
        noise = Noise(options.seed, number, options.dropout, options.router_noise, options.balance_coef)
        self.queue_gradients(window, noise)
        self.adam.queue(FlatVector(self.backend, (self.gradients.flat,)), model.hyper)
        self.weights.stale = True
        return model.loss, self.adam.stats, lr

    def queue_gradients(self, window: Window, noise: Noise) -> None:
        """Queue loss = and gradients = of a window."""
        model, bound = self.model, self.bound
        self.gradients.zero()
        self.backend.zero(model.loss)
        bound.set_noise(noise.seed, noise.step, self.dropout)
        factors = self._drop()
        self.weights.stale = True
        self.weights.queue_merge(factors)
        for part, batch in enumerate(window.batches(self.options.weights, self.backend.row_multiple)):
            own = noise.part(part)
            if self.dropout and part:
                bound.set_noise(own.seed, own.step, self.dropout, only=EMBEDDING)
            model.queue_gradients(batch, self.weights.views(), self.gradients.grads, self.checkpoint, own)
        self.gradients.contract(factors or bound.factors)

    def _drop(self) -> dict[str, Factors] | None:
        """Factors with dropout on the inputs of what is merged, None where there is none."""
        if self._dropped is None:
            return None
        flat, factors = self._dropped
        self.backend.copy(self.bound.flat, 0, flat, 0, flat.size)
        for name in self.weights.spots():
            ops.lora_dropout(self.backend, (factors[name].noise,), (factors[name].a,))
        return factors

    def applied(self) -> None:
        """See `Steppable`."""
        self.adam.step += 1

    async def validate(self) -> float:
        """See `Steppable`; without dropout."""
        self.bound.set_noise(0, 0, 0.0)
        self.weights.stale = True
        return await self.model.evaluate_items(self._validation, self.options.weights(self._validation))

    async def snapshot(self, loop: Loop, on_snapshot: OnSnapshot) -> None:
        """Hand over where the fit stands; see `training.snapshot`."""
        on_snapshot(await Snapshot.take(self.trained, self.adam, loop.position, loop.best))

    def go_on(self, snapshot: Snapshot) -> tuple[Position, Best]:
        """Take a snapshot's place."""
        self._queued = snapshot.applied
        return snapshot.put_back(self.trained, self.adam)

    def free(self) -> None:
        """Give the buffers back and turn dropout off."""
        self.bound.set_noise(0, 0, 0.0)
        self.weights.stale = True
        self.adam.free()
        self.gradients.free()
        if self._dropped is not None:
            flat, factors = self._dropped
            self.bound.release(factors)
            self.backend.free(flat)
        self.model.set_hyper({})


class Tuner:
    """What a language model with an active adapter needs to train it: `fit` and `stop`."""

    def __init__(self) -> None:
        self._loop: Loop | None = None

    @property
    def running(self) -> bool:
        """Whether a fit is going on, so that the device holds what the host does not know yet."""
        return self._loop is not None

    @checked
    async def run(
        self,
        model: LanguageModel,
        weights: AdaptedWeights,
        sequences: Sequence[Tokens | Example],
        *,
        lr: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        shard: tuple[int, int] | None = None,
        on_step: OnStep | None = None,
        validation: Sequence[Tokens | Example] = (),
        on_eval: OnEval | None = None,
        lora_dropout: float = 0.0,
        checkpoint: bool = False,
        resume: Snapshot | None = None,
        on_snapshot: OnSnapshot | None = None,
        snapshot_seconds: float = SECONDS,
        **options: Any,
    ) -> list[float]:
        """See `EvermindLMLoRA.fit_async`."""
        if self.running:
            raise InvalidArgumentError("this adapter is in a fit already: wait for its end, or stop it")
        adamw, chosen = AdamWOptions(lr, beta1, beta2, eps, weight_decay, shard), TrainingOptions(**options)
        number_in("lora_dropout", lora_dropout, 0, 0.95)
        items, held_out = (check_items(given, model.config.vocab_size) for given in (sequences, validation))
        with weights.base.fitting():
            job = AdapterTraining(model, weights, adamw, chosen, held_out, lora_dropout, checkpoint)
            loop = self._loop = Loop(job, chosen, on_step=on_step, on_eval=on_eval, validating=bool(held_out))
            if resume is not None:
                loop.position, loop.best = job.go_on(resume)
            if on_snapshot is not None:
                loop.keep, loop.keep_seconds = partial(job.snapshot, loop, on_snapshot), snapshot_seconds
            try:
                return await loop.run(items)
            finally:
                self._loop = None
                try:  # what was learned stays, also after Stop or an error
                    await job.bound.download()
                finally:
                    job.free()

    def stop(self) -> None:
        """End a running fit after the step in flight; what was learned stays."""
        if self._loop is not None:
            self._loop.stopped = True
