"""Holds one backend against another on the cases of `tests.cases`; runs in CPython and inside a page.

Each function returns what differs, as sentences: an empty list is agreement. Every one of them also says how much
it compared, so that comparing nothing is no agreement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from evermind_web import ops
from evermind_web.backend.base import Array, Backend
from evermind_web.environment import run_blocking
from evermind_web.model import EvermindLM
from evermind_web.training import EvermindLMTrainer
from tests.cases import ModelCase, OpCase

# Float32 sums in another order, relative to the largest gradient (or logit) of the model.
MODEL_RTOL = 1e-4


@dataclass
class Findings:
    """What differs, and how many arrays were compared."""

    problems: list[str] = field(default_factory=list)
    compared: int = 0

    def close(self, what: str, got: Array, want: Array, rtol: float, largest: float | None = None) -> None:
        """Errors ≤ rtol × the largest |want| (or × `largest`); integers and non-finite values must be equal."""
        self.compared += 1
        if got.shape != want.shape:
            self.problems.append(f"{what}: shape {got.shape}, expected {want.shape}")
            return
        if want.dtype.kind == "i" or rtol == 0:
            wrong = ~((got == want) | ((got != got) & (want != want)))
            error = wrong.astype(np.float64)
            limit = 0.0
        else:
            finite = np.isfinite(want)
            error = np.where(finite, np.abs(np.where(finite, got, 0) - np.where(finite, want, 0)), 0)
            error = np.where(np.isfinite(got) == finite, error, np.inf)
            limit = rtol * (float(np.abs(want[finite]).max(initial=0)) if largest is None else largest)
        if error.size and not float(error.max()) <= limit:
            at = np.unravel_index(int(error.argmax()), error.shape)
            place = tuple(int(i) for i in at)
            self.problems.append(
                f"{what}: at {place} expected {want[at]}, got {got[at]}; error {error.max():.3g}, allowed {limit:.3g}"
            )


async def run_op(backend: Backend, case: OpCase) -> dict[str, Array]:
    """The operation's outputs by name."""
    op, drawn = ops.OPS[case.op], case.operands()
    bufs = {}
    for arg in (*op.ins, *op.outs):
        bufs[arg.name] = backend.alloc(drawn[arg.name].shape, arg.dtype)
        backend.write(bufs[arg.name], drawn[arg.name])
    names = [arg.name for arg in op.outs]
    try:
        for _ in range(drawn["draws"].shape[1] if case.op == "sample" else 1):
            op(backend, [bufs[arg.name] for arg in op.ins], [bufs[name] for name in names], **case.scalars)
        return dict(zip(names, await backend.read(*[bufs[name] for name in names]), strict=True))
    finally:
        for buf in bufs.values():
            backend.free(buf)


async def compare_ops(reference: Backend, candidate: Backend, cases: Iterable[OpCase]) -> Findings:
    """Each operation's outputs on both backends, within the operation's own tolerance; twice, bit for bit the same."""
    findings = Findings()
    for case in cases:
        rtol = ops.OPS[case.op].rtol
        want, got, again = [await run_op(backend, case) for backend in (reference, candidate, candidate)]
        for name, array in want.items():
            if case.op == "sample" and name == "out":  # ids, and log-probabilities by their bits
                findings.close(f"{case} logprobs", got[name][:, 1].view(np.float32), array[:, 1].view(np.float32), 1e-5)
                findings.close(f"{case} ids", got[name][:, 0], array[:, 0], 0.0)
            else:
                findings.close(f"{case} {name}", got[name], array, rtol)
            findings.close(f"{case} {name}, run again", again[name], got[name], 0.0)
    return findings


@dataclass
class ModelRun:
    """What a model gives for a case: loss, gradients by tensor, logits of the last sequence, a sampled text."""

    loss: float
    gradients: dict[str, Array]
    logits: Array
    text: list[int]


async def run_model(backend: Backend, case: ModelCase, checkpoint: bool = False) -> ModelRun:
    """All sequences of the case in one batch, through the model's own parts."""
    model = make_model(backend, case)
    try:
        model.zero_grad()
        backend.zero(model.loss)
        model.accumulate(case.batch(backend.row_multiple), checkpoint)
        (loss,) = await backend.read(model.loss)
        gradients = {p.name: p.data.copy() for p in await model.gradients_async()}
        sequence = case.sequences()[-1]
        logits = await model.forward_async(sequence)
        text = await model.generate_async(sequence, max_new_tokens=6, temperature=4.0, seed=7)
        return ModelRun(float(loss[0]), gradients, logits, text)
    finally:
        model.dispose()


def make_model(backend: Backend, case: ModelCase) -> EvermindLM:
    """A model with the weights of the case."""
    model = EvermindLM(**case.arch._asdict(), backend=backend)
    model.flat.write(case.weights())
    return model


def damage(model: EvermindLM, row: int, value: float) -> None:
    """Fill a row of the embedding with NaN or infinity, as a damaged checkpoint may: `set_parameter` refuses them."""
    packed = run_blocking(model.packed_weights_async()).copy()
    packed[row * model.config.d_model : (row + 1) * model.config.d_model] = value
    model.load_packed(packed)


async def compare_models(reference: Backend, candidate: Backend, cases: Iterable[ModelCase]) -> Findings:
    """Loss, logits and every gradient, the latter within MODEL_RTOL of the largest; checkpointed ones bit for bit."""
    findings = Findings()
    for case in cases:
        want, got = await run_model(reference, case), await run_model(candidate, case)
        checkpointed = await run_model(candidate, case, checkpoint=True)
        compare_runs(findings, str(case), got, want)
        findings.compared += 1
        if got.text != want.text:
            findings.problems.append(f"{case}: writes {got.text}, expected {want.text}")
        for name, array in got.gradients.items():
            findings.close(f"{case} {name}, checkpointed", checkpointed.gradients[name], array, 0.0)
    return findings


def compare_runs(findings: Findings, what: str, got: ModelRun, want: ModelRun) -> None:
    """Two runs of one case."""
    largest = max(float(np.abs(g).max()) for g in want.gradients.values())
    if not largest > 0:
        findings.problems.append(f"{what}: all gradients are zero, so nothing is shown")
    findings.close(f"{what} loss", np.array([got.loss]), np.array([want.loss]), MODEL_RTOL)
    findings.close(f"{what} logits", got.logits, want.logits, MODEL_RTOL)
    for name, array in want.gradients.items():
        findings.close(f"{what} gradient of {name}", got.gradients[name], array, MODEL_RTOL, largest)
        # a small tensor must not hide behind a large one
        findings.close(
            f"{what} gradient of {name}, on its own", got.gradients[name], array, 1e-2, _floor(array, largest)
        )


def _floor(array: Array, largest: float) -> float:
    return max(float(np.abs(array).max(initial=0)), 1e-5 * largest)


LR = 0.01


async def three_steps(backend: Backend, case: ModelCase) -> tuple[list[float], Array]:
    """Losses of three optimizer steps over the case's sequences, and the padded weights after them."""
    model = make_model(backend, case)
    sequences = case.sequences()
    trainer = EvermindLMTrainer(model, lr=LR, weight_decay=0.01, epochs=3, accum_steps=len(sequences))
    losses: list[float] = []
    try:
        await trainer.fit_async(sequences, on_step=lambda step: losses.append(step.loss))
        return losses, np.concatenate([p.data.ravel() for p in await model.parameters_async()])
    finally:
        trainer.dispose()
        model.dispose()


async def compare_training(reference: Backend, candidate: Backend, cases: Sequence[ModelCase]) -> Findings:
    """Three steps: losses 1e-4 relative, weights by `weights_agree`."""
    findings = Findings()
    for case in cases:
        (want_losses, want), (got_losses, got) = [await three_steps(b, case) for b in (reference, candidate)]
        if len(want_losses) != 3:
            findings.problems.append(f"{case}: {len(want_losses)} steps instead of 3")
        for i, (a, b) in enumerate(zip(got_losses, want_losses, strict=True)):
            findings.close(f"{case} loss of step {i + 1}", np.array([a]), np.array([b]), 1e-4)
        findings.compared += 1
        findings.problems.extend(weights_agree(f"{case} weights after 3 steps", got, want, LR))
    return findings


def weights_agree(what: str, got: Array, want: Array, step: float, share: float = 0.02) -> list[str]:
    """Trained weights: at most `share` of them off by more than 5 % of one Adam step, none by three.

    Adam moves a weight with a vanishing gradient by a full step in a direction that rounding decides.
    """
    if got.shape != want.shape:
        return [f"{what}: {got.size} values, expected {want.size}"]
    error = np.abs(got.astype(np.float64) - want)
    far = float((error > 0.05 * step).mean()) if error.size else 0.0
    if far <= share and error.max(initial=0) <= 3 * step:
        return []
    return [f"{what}: largest error {error.max():.3g}, {far:.1%} of them off by more than {0.05 * step:.2g}"]
