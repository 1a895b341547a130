"""Gradients of every kind of target against central finite differences in float64."""

from __future__ import annotations

import numpy as np
import pytest

from evermind_web.backend.base import Array
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.batch import Window, check_item, item_batches
from evermind_web.lora import LoraConfig, LoraModel
from evermind_web.lora.training import AdapterTraining
from evermind_web.network import Noise, forward
from evermind_web.optim import AdamWOptions
from evermind_web.training.options import TrainingOptions
from tests.finite_differences import frozen_routing, gradient_errors
from tests.lora.common import CASE, EVERYTHING, TEXTS, adapted

ITEMS = Window([check_item(text, CASE.arch.vocab_size) for text in TEXTS], keep=False)
KINDS = ["token_embedding", "conv", "router", "shared.w1", "shared.w2", "experts.1.w1", "experts.1.w2"]


def checked(model: LoraModel, dropout: float = 0.0, samples: int = 4) -> tuple[list[str], dict[str, Array]]:
    """What is wrong with the gradients of the active adapter, and the gradients."""
    backend = model.backend
    assert isinstance(backend, NumpyBackend)
    model.evaluate(TEXTS)
    options, noise = TrainingOptions(accum_steps=len(ITEMS)), Noise(seed=3, step=5)
    with frozen_routing() as restart:
        job = AdapterTraining(model, model._weights, AdamWOptions(), options, [], dropout)
        job.queue_gradients(ITEMS, noise)
        loss, gradients = float(backend.array(model.loss)[0]), dict(job.gradients.factors)
        tensors = {}
        for name, at in job.bound.factors.items():
            for kind in ("b", "a"):
                value, gradient = (backend.array(getattr(f, kind)) for f in (at, gradients[name]))
                tensors[f"{name} {kind}"] = (value, gradient.copy())

        def value() -> tuple[float, bytes]:
            restart()
            backend.zero(model.loss)
            model._weights.stale = True
            model._weights.queue_merge(job._drop())
            views = model._weights.views()
            for batch in item_batches(ITEMS, options.weights(ITEMS), 1):
                tape = model.tape(len(batch.tokens), shared_layers=False)
                tape.load(batch)
                views.embedding.loss(forward(tape, views), tape.targets, tape.weights, model.loss)
                signs = [np.packbits(backend.array(t.hidden) > 0).tobytes() for t in tape.layers]
            return float(backend.array(model.loss)[0]), b"".join(signs)

        assert value()[0] == pytest.approx(loss, rel=1e-12)
        problems = gradient_errors(value, tensors, samples, np.random.default_rng(1))
    return problems, {name: gradient for name, (_, gradient) in tensors.items()}


def test_gradients_of_all_targets_together() -> None:
    problems, gradients = checked(adapted(NumpyBackend(np.float64), EVERYTHING))
    assert problems == []
    assert len(gradients) == 2 * (1 + 2 * (1 + 1 + 2 * 4))
    assert sum(float(np.abs(g).max()) > 1e-4 for g in gradients.values()) > 0.8 * len(gradients)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_one_kind_alone(kind: str) -> None:
    """What is frozen around it is left out of the backward pass."""
    config = LoraConfig(r=2, lora_alpha=3, target_modules=[kind], use_rslora=True)
    problems, gradients = checked(adapted(NumpyBackend(np.float64), config))
    assert problems == []
    assert all(g.any() for g in gradients.values())


def test_gradients_under_dropout() -> None:
    """The masks of loss and gradients are the same, row by row at the head and by inputs where it is merged."""
    plain = checked(adapted(NumpyBackend(np.float64), EVERYTHING), samples=1)[1]
    problems, gradients = checked(adapted(NumpyBackend(np.float64), EVERYTHING), dropout=0.4)
    assert problems == []
    assert any(not np.allclose(gradients[name], plain[name]) for name in plain)


@pytest.mark.parametrize("quant", ["fp16", "int8", "int8-row"])
def test_gradients_over_a_packed_base(quant: str) -> None:
    config = LoraConfig(r=3, lora_alpha=6, target_modules=["token_embedding", "shared.w2"])
    problems, _ = checked(adapted(NumpyBackend(np.float64), config, quant))
    assert problems == []


def test_a_layer_below_all_targets_is_not_inverted() -> None:
    model = adapted(NumpyBackend(np.float64), LoraConfig(r=2, target_modules=["layers.1.moe.shared.w1"]))
    model.evaluate(TEXTS)
    job = AdapterTraining(model, model._weights, AdamWOptions(), TrainingOptions(), [])
    assert job.gradients.grads.lowest == 1
    assert checked(model)[0] == []
