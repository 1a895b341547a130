"""The backward pass of the whole model against central finite differences in float64."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from evermind_web import ops
from evermind_web.backend.base import Array
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.model import EvermindLM
from evermind_web.network import forward
from tests.cases import MODEL_CASES, ModelCase, model_case
from tests.finite_differences import RTOL, frozen_routing, gradient_errors
from tests.parity import make_model

SAMPLES = 5  # coordinates of each tensor, the one with the largest gradient among them


def batch_loss(model: EvermindLM, case: ModelCase, restart: Callable[[], None]) -> Callable[[], tuple[float, bytes]]:
    """The case's loss with the model's present weights, and the signs of its pre-activations."""
    backend, batch = model.backend, case.batch()
    assert isinstance(backend, NumpyBackend)
    tape = model.tape(len(batch.tokens), shared_layers=False)
    tape.load(batch)

    def loss() -> tuple[float, bytes]:
        restart()
        backend.zero(model.loss)
        scored = (forward(tape, model.weights), model.weights.emb, tape.targets, tape.weights)
        ops.head_xent_fwd(backend, scored, (model.loss,))
        signs = [np.packbits(backend.array(layer.hidden) > 0).tobytes() for layer in tape.layers]
        return float(backend.array(model.loss)[0]), b"".join(signs)

    return loss


def tensors(model: EvermindLM) -> dict[str, tuple[Array, Array]]:
    """Live values and gradients by name."""
    return {p.name: (p.data, g.data) for p, g in zip(model.parameters(), model.gradients(), strict=True)}


@pytest.mark.parametrize("case", MODEL_CASES, ids=str)
def test_gradients_of_all_tensors(case: ModelCase) -> None:
    model = make_model(NumpyBackend(np.float64), case)
    with frozen_routing() as restart:
        loss = batch_loss(model, case, restart)
        before = loss()[0]
        restart()
        model.backend.zero(model.loss)
        model.accumulate(case.batch())
        (after,) = asyncio.run(model.backend.read(model.loss))
        assert float(after[0]) == pytest.approx(before, rel=1e-12)
        checked = tensors(model)
        assert any(np.abs(gradient).max() > 1e-3 for _, gradient in checked.values())
        assert gradient_errors(loss, checked, SAMPLES, np.random.default_rng(case.seed)) == []


def test_the_check_sees_an_error_of_1e_5() -> None:
    """A gradient that is wrong by ten times the tolerance, in one tensor, is reported by that tensor's name."""
    case = model_case("smallest")
    model = make_model(NumpyBackend(np.float64), case)
    with frozen_routing() as restart:
        loss = batch_loss(model, case, restart)
        restart()
        model.accumulate(case.batch())
        checked = tensors(model)
        checked["layers.0.norm_moe.weight"][1][...] *= 1 + 10 * RTOL
        problems = gradient_errors(loss, checked, SAMPLES, np.random.default_rng(case.seed))
    assert len(problems) == 1
    assert problems[0].startswith("layers.0.norm_moe.weight: error")
