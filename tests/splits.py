"""Models whose vectors lie in several buffers against the same ones in a single buffer; also runs inside a page."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from evermind_web.backend.base import Array, Backend
from evermind_web.training import EvermindLMTrainer, StepInfo
from tests.cases import model_case
from tests.counting import CountingBackend
from tests.parity import LR, Findings, make_model, weights_agree

# Case, bytes of a buffer, parts that this makes of the weights.
SPLITS = (
    ("repeated-tokens", 13_056, 4),  # the mixture of a layer just fits; the last part is one of them alone
    ("repeated-tokens", 16_384, 2),
    ("idle-experts", 29_440, 4),
    ("no-layers", 1_792, 1),
)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scaled": {"mixed_precision": {"init_scale": 8.0}},
    "best of validation": {"eval_every": 1},
    "clipped": {"max_grad_norm": 0.1},
}


class Narrow(CountingBackend):
    """A backend as it is, that says its buffers hold `max_buffer_bytes`."""

    def __init__(self, inner: Backend, max_buffer_bytes: int) -> None:
        super().__init__(inner)
        self.max_buffer_bytes = max_buffer_bytes

    def replay(self, key: Hashable, build: Callable[[], None]) -> None:
        self.inner.replay(key, build)


async def trained(backend: Backend, name: str, options: dict[str, Any]) -> tuple[int, list[StepInfo], Array]:
    """Number of parts, three steps, and the packed weights after them."""
    case = model_case(name)
    model, sequences = make_model(backend, case), case.sequences()
    trainer = EvermindLMTrainer(model, lr=LR, weight_decay=0.01, epochs=3, accum_steps=len(sequences), **options)
    steps: list[StepInfo] = []
    try:
        validation = sequences[:1] if "eval_every" in options else ()
        await trainer.fit_async(sequences, steps.append, validation=validation)
        return len(model.flat.parts), steps, await model.packed_weights_async()
    finally:
        trainer.dispose()
        model.dispose()


async def compare_splits(backend: Backend, splits: Sequence[tuple[str, int, int]] = SPLITS) -> Findings:
    """Three steps, cut and in one part: bit for bit, but for clipping, whose norm is summed in another order."""
    findings = Findings()
    for name, nbytes, parts in splits:
        for note, options in OPTIONS.items():
            what = f"{name} of {nbytes} bytes, {note}"
            one, want, whole = await trained(backend, name, options)
            cut, got, weights = await trained(Narrow(backend, nbytes), name, options)
            if (one, cut, len(got)) != (1, parts, 3):
                findings.problems.append(f"{what}: {one} and {cut} parts, {len(got)} steps")
            exact = note != "clipped"
            for field, rtol in (("loss", 0.0 if exact else 1e-5), ("grad_norm", 1e-5)):
                numbers = [np.array([getattr(step, field) for step in steps]) for steps in (got, want)]
                findings.close(f"{what}, {field}", *numbers, rtol)
            if exact:
                findings.close(f"{what}, weights", weights, whole, 0.0)
            else:
                findings.compared += 1
                findings.problems += weights_agree(f"{what}, weights", weights, whole, LR)
    return findings
