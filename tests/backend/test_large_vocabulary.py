"""A large vocabulary on a long text trains without the logits of all its tokens in memory."""

from __future__ import annotations

import numpy as np
import pytest

from evermind_web import EvermindLM
from evermind_web.backend.base import Backend
from evermind_web.backend.webgpu_backend import WebGPUBackend

V, T = 32_768, 1_024


def test_logits_are_made_in_chunks(gpu: Backend, cpu: Backend) -> None:
    assert isinstance(gpu, WebGPUBackend)
    tokens = np.random.default_rng(1).integers(0, V, T)
    models = [EvermindLM(V, 8, 1, 2, 8, 2, 1, seed=2, backend=backend) for backend in (cpu, gpu)]
    losses = [model.loss_and_backward(tokens) for model in models]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    expected, found = (model.gradients()[0].data for model in models)
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
    assert gpu.stats()["scratch_bytes"] < 0.3 * V * T * 4
    models[1].dispose()
