"""Training against the reference engine: loss histories, final weights, loss scaler, shards, AdamW alone."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evermind_web.backend.base import Array, Backend
from evermind_web.optim import AdamW, DynamicLossScaler
from evermind_web.training import EvermindLMTrainer
from tests.golden_data import GoldenCase, load_cases
from tests.golden_models import body, keywords, model_of
from tests.parity import weights_agree

CASES = load_cases("lm_fit")
FITS = [case for case in CASES if case.name.startswith("lm_fit")]
# Adam's first steps turn rounding of tiny gradients into whole steps; decay differs by what it is applied to.
FIRST_EPOCH, LATER_EPOCHS, LOOSE = 1e-4, 2e-3, 1e-2


def histories_agree(got: list[float], want: list[float], first: float, later: float) -> None:
    assert len(got) == len(want)
    assert got[:1] == pytest.approx(want[:1], rel=first)
    assert got[1:] == pytest.approx(want[1:], rel=later)


@pytest.mark.parametrize("case", FITS, ids=str)
def test_fit(case: GoldenCase, backend: Backend) -> None:
    options = keywords(case["options"])
    model = model_of(case, backend)
    trainer = EvermindLMTrainer(model, **options)
    got = [fit(trainer, sequences) for sequences in case["fits"]]
    final = np.concatenate([p.data.ravel() for p in model.parameters()])
    if case["weights_unchanged"]:
        assert final.tobytes() == body(case.raw("checkpoint")).tobytes()
    decay, mixed = options.get("weight_decay", 0) > 0, "mixed_precision" in options
    first, later = (LOOSE, LOOSE) if mixed else (LATER_EPOCHS, LOOSE) if decay else (FIRST_EPOCH, LATER_EPOCHS)
    for i, want in enumerate(case["histories"]):
        if got[i] is not None:
            histories_agree(got[i], want, first if i == 0 else later, later)
    if case["scaler"]:
        scaler = trainer.loss_scaler
        assert (scaler.scale, scaler.overflows, scaler.skipped) == tuple(
            case["scaler"][name] for name in ("scale", "overflows", "skipped")
        )
    if case.has("final") and not decay:
        step = options.get("lr", 0.01) * (10 if mixed else 1)
        assert weights_agree(str(case), final, body(case.raw("final")), step) == []
    elif case.has("final"):
        steps = sum(math.ceil(len(s) / options.get("accum_steps", 1)) for s in case["fits"]) * options["epochs"]
        strength = options.get("lr", 0.01) * options["weight_decay"] * steps
        sizes = [np.abs(matrices(model.table.specs, w)).mean() for w in (final, body(case.raw("final")))]
        assert sizes[0] == pytest.approx(sizes[1], rel=0.2 * strength + 1e-5)
    trainer.dispose()
    model.dispose()


def fit(trainer: EvermindLMTrainer, sequences: list[list[int]]) -> list[float] | None:
    """The history; None where every window overflows, which this package reports instead of going on."""
    try:
        return trainer.fit(sequences)
    except ArithmeticError:
        return None


def matrices(specs: list[Any], packed: Array) -> Array:
    """The values that are decayed here; the reference decays gains and biases too."""
    return np.concatenate([packed[s.offset : s.offset + s.size] for s in specs if s.decays]).astype(np.float64)


def test_there_are_cases_of_every_kind() -> None:
    names = " ".join(case.name for case in FITS)
    assert all(part in names for part in ("default", "accum", "checkpoint", "two_calls", "mp_", "shard", "one_expert"))


@pytest.mark.parametrize("case", [case for case in CASES if case.name.startswith("adamw")], ids=str)
def test_adamw_alone(case: GoldenCase) -> None:
    borders = np.cumsum(case.config["tensor_lengths"])[:-1]
    params = [SimpleNamespace(data=part.copy()) for part in np.split(case.file("params0").ravel(), borders)]
    grads = [SimpleNamespace(data=np.zeros_like(p.data)) for p in params]
    target = SimpleNamespace(parameters=lambda: params, gradients=lambda: grads)
    optimizer = AdamW(target, **keywords(case["options"]))
    for g, want in zip(case.file("grads"), case.file("params"), strict=True):
        for holder, part in zip(grads, np.split(g.ravel(), borders), strict=True):
            holder.data[...] = part
        optimizer.step()
        assert np.concatenate([p.data for p in params]) == pytest.approx(want.ravel(), abs=1e-5)
    assert optimizer.state_bytes() == case["state_bytes"]


@pytest.mark.parametrize("case", [case for case in CASES if case.name.startswith("loss_scaler")], ids=str)
def test_loss_scaler_alone(case: GoldenCase) -> None:
    scaler = DynamicLossScaler(**keywords(case.config["options"]))
    for row in case["trace"]:
        assert scaler.update(row["overflow"]) == row["proceed"]
        assert (scaler.scale, scaler.overflows, scaler.skipped) == (row["scale"], row["overflows"], row["skipped"])
    part = SimpleNamespace(data=np.array(case["unscale_input"], np.float32))
    scaler.unscale([part])
    assert part.data == pytest.approx(np.array(case["unscale_output"]), rel=1e-6)
    for name, values in {"finite": [1, -2], "inf": [1, math.inf], "nan": [math.nan, 0], "empty": []}.items():
        assert scaler.check([SimpleNamespace(data=np.array(values, np.float32))]) == case["check"][name]
