"""EvermindLMTrainer: AdamW on all weights of a model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from evermind_web.backend.base import Buf
from evermind_web.batch import Example, Item, Tokens, Window, check_items
from evermind_web.checks import checked
from evermind_web.environment import run_blocking
from evermind_web.errors import InvalidArgumentError
from evermind_web.flat_vector import FlatVector, read_all
from evermind_web.model import EvermindLM
from evermind_web.optim import AdamWOptions, DynamicLossScaler, FlatAdamW, StepScalars
from evermind_web.training.loop import Best, Loop, OnEval, OnStep, Position
from evermind_web.training.options import TrainingOptions
from evermind_web.training.snapshot import SECONDS, OnSnapshot, Snapshot
from evermind_web.training.state import BEST, VECTORS, TrainingState, read_state, write_state


class EvermindLMTrainer:
    """AdamW on all weights of a model. Moments, step count and loss scale live on over several `fit` calls.

    lr … weight_decay, shard: `AdamWOptions`; shard (index, count) steps only every count-th tensor of parameters().
    Gains and biases are not decayed; `decay` names the tensors that are, by the end of their names ("w1").
    checkpoint: recompute activations in the backward pass. mixed_precision: False, True, or a dict of
    DynamicLossScaler options: gradients are scaled, rounded to fp16 and unscaled; a step that overflows is skipped.
    All other keywords, epochs and accum_steps among them, are those of `TrainingOptions`.
    """

    @checked
    def __init__(
        self,
        model: EvermindLM,
        lr: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        checkpoint: bool = False,
        mixed_precision: bool | dict[str, Any] = False,
        shard: tuple[int, int] | None = None,
        decay: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        self.model, self.backend, self.checkpoint = model, model.backend, checkpoint
        self.adamw = AdamWOptions(lr, beta1, beta2, eps, weight_decay, shard)
        self.options = TrainingOptions(**options)
        self.decayed = decayed_names([spec.name for spec in model.table.specs], decay)
        self.loss_scaler = DynamicLossScaler(**(mixed_precision if isinstance(mixed_precision, dict) else {}))
        self.mixed_precision = mixed_precision is not False
        self._scalars = StepScalars(self.adamw, self.options.max_grad_norm)
        self._adam: FlatAdamW | None = None
        self._loop: Loop | None = None
        self._position, self._best = Position(), Best()  # of a fit that was stopped, so that it can go on
        self._validation: list[Item] = []
        self._queued = 0  # steps handed to the device, ahead of the optimizer's count of applied ones

    @property
    def trained(self) -> FlatVector:
        """See `Steppable`."""
        return self.model.flat

    def _optimizer(self) -> FlatAdamW:
        if self._adam is None:
            groups = self.model.table.decay_groups(self.adamw.owned, self.decayed)
            self._adam = FlatAdamW(self.model.flat, groups)
        return self._adam

    def queue_step(self, window: Window, number: int, total: int, loss_scale: float) -> tuple[Buf, Buf, float]:
        """See `Steppable`."""
        model, adam, options = self.model, self._optimizer(), self.options
        # In mixed precision each step is read before the next, so that a skipped one does not count.
        self._queued = adam.step + 1 if self.mixed_precision else self._queued + 1
        lr = self.adamw.lr * options.lr_factor(self._queued - self._position.first_step, total)
        model.set_hyper(self._scalars.at(self._queued, lr, loss_scale))
        model.zero_grad()
        self.backend.zero(model.loss)
        noise = options.noise(number, loss_scale)
        for part, batch in enumerate(window.batches(options.weights, self.backend.row_multiple)):
            model.accumulate(batch, self.checkpoint, noise=noise and noise.part(part))
        adam.queue(model.flat_grads, model.hyper, half=self.mixed_precision)
        model.version += 1
        return model.loss, adam.stats, lr

    def applied(self) -> None:
        """See `Steppable`."""
        self._optimizer().step += 1

    async def validate(self) -> float:
        """See `Steppable`."""
        return await self.model.evaluate_items(self._validation, self.options.weights(self._validation))

    @checked
    async def fit_async(
        self,
        sequences: Sequence[Tokens | Example],
        on_step: OnStep | None = None,
        *,
        validation: Sequence[Tokens | Example] = (),
        on_eval: OnEval | None = None,
        resume: bool | Snapshot = False,
        on_snapshot: OnSnapshot | None = None,
        snapshot_seconds: float = SECONDS,
    ) -> list[float]:
        """Train; returns the mean loss of each epoch (nats a token; without validation or balance terms).

        Sequences (token lists, or `Example`s with targets of their own) are taken in order; those without a target do
        not count. `on_step(StepInfo)` is called for every step, on a GPU up to a few steps late, `on_eval(EvalInfo)`
        for every evaluation of `validation`. resume=True goes on where the last fit, or the loaded state, stopped.
        `on_snapshot(Snapshot)` is called between steps, `snapshot_seconds` or more apart: if the device is lost,
        a trainer of an equal model on another one goes on with resume=snapshot, as if nothing had happened.
        Raises InvalidArgumentError before anything is trained if an id is outside the vocabulary, no sequence can be
        used, or another fit of the model is going on; NonFiniteError with the step if the loss blows up.
        """
        with self.model.fitting():
            items, self._validation = (
                check_items(given, self.model.config.vocab_size) for given in (sequences, validation)
            )
            if validation and not any(item.scored for item in self._validation):
                raise InvalidArgumentError("the validation sequences have no target to score; give longer ones")
            self._place(resume)
            scaler = self.loss_scaler if self.mixed_precision else None
            loop = Loop(self, self.options, scaler, on_step, on_eval, bool(validation), self._position, self._best)
            loop.resumable = True
            if on_snapshot:
                loop.keep, loop.keep_seconds = partial(self._snapshot, loop, on_snapshot), snapshot_seconds
            self._loop = loop
            try:
                return await loop.run(items)
            finally:
                self._position, self._loop = loop.position, None
                self.model.version += 1  # the best weights may have come back
                self.model.set_hyper({})

    def _place(self, resume: bool | Snapshot) -> None:
        """Bring everything to where the fit begins."""
        if isinstance(resume, Snapshot):
            self._best.free()
            self._position, self._best = resume.put_back(self.trained, self._optimizer())
            if resume.scaler:
                self.loss_scaler.load_state(resume.scaler)
        self._queued = self._optimizer().step
        if not resume or not self._position.window:
            self._best.free()
            self._position, self._best = Position(first_step=self._queued), Best()
        self._best.go_on(self.trained)

    async def _snapshot(self, loop: Loop, on_snapshot: OnSnapshot) -> None:
        scaler = self.loss_scaler.state() if self.mixed_precision else None
        on_snapshot(await Snapshot.take(self.trained, self._optimizer(), self._position, loop.best, scaler))

    def fit(self, sequences: Sequence[Tokens | Example], on_step: OnStep | None = None, **options: Any) -> list[float]:
        """Blocking twin of `fit_async`."""
        return self.model.alone(self.fit_async(sequences, on_step, **options))

    @property
    def done(self) -> bool:
        """Whether there is nothing to resume: no fit was stopped before its last step."""
        return not self._position.window

    def stop(self) -> None:
        """End a running fit after the step in flight; what was learned stays."""
        if self._loop is not None:
            self._loop.stopped = True

    # ---- saving where it stands ----

    async def save_state_async(self) -> bytes:
        """Weights, moments, step count, loss scale, data position and seed: training can go on as if never stopped.

        The weights are those where training stands, and the best evaluated ones are beside them if they are others.
        A safetensors file with a versioned manifest and a CRC-32 a member. Call it between fits, or in `on_eval`.
        """
        adam, best, table = self._optimizer(), self._best, self.model.table
        kept = [best.weights] if best.weights else []
        read = await read_all(best.stood or self.model.flat, adam.m, adam.v, *kept)
        vectors = {name: table.pack(vector) for name, vector in zip((*VECTORS, BEST), read, strict=False)}
        scaler, seed = self.loss_scaler.state(), self.options.seed
        return write_state(TrainingState(self.model.config, vectors, adam.step, scaler, self._position, seed, best))

    def save_state(self) -> bytes:
        """Blocking twin of `save_state_async`."""
        return run_blocking(self.save_state_async())

    @checked
    def load_state(self, data: bytes) -> None:
        """Take over a state saved by `save_state`; go on with `fit(…, resume=True)` on the same sequences.

        Raises FormatError or ConfigMismatchError before anything changes. A bare EVL0 checkpoint is accepted with a
        warning: it has no optimizer state, so training starts fresh at step 0.
        """
        state = read_state(data, self.model.config)
        self.model.load_packed(state.vectors["weights"])
        adam, table = self._optimizer(), self.model.table
        for moment, name in ((adam.m, "exp_avg"), (adam.v, "exp_avg_sq")):
            if name in state.vectors:
                moment.write(table.pad(state.vectors[name]))
            else:
                moment.zero()
        self._best.free()
        adam.step, self._position, self._best = state.step, state.position, state.best
        if BEST in state.vectors:
            self._best.weights = self.model.flat.like()
            self._best.weights.write(table.pad(state.vectors[BEST]))
        if state.scaler:
            self.loss_scaler.load_state(state.scaler)

    def dispose(self) -> None:
        """Give back the moments, what is kept of a fit that was stopped, and what the model's passes took."""
        self.model.free_tapes()
        self._best.free()
        if self._adam is not None:
            self._adam.free()
            self._adam = None


def decayed_names(names: Sequence[str], suffixes: Sequence[str] | None) -> frozenset[str] | None:
    """The tensors whose name ends with one of the suffixes; None, which means every matrix, for None."""
    if suffixes is None:
        return None
    chosen = set()
    for suffix in suffixes:
        found = {name for name in names if name == suffix or name.endswith("." + suffix)}
        if not found:
            raise InvalidArgumentError(f"no tensor's name ends with {suffix!r}; parameters() lists the names")
        chosen |= found
    return frozenset(chosen)
