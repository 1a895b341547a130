"""Sizes that no device holds are refused before anything is made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evermind_web import EvermindLM, EvermindLMTrainer
from evermind_web.backend.base import Backend
from evermind_web.errors import InvalidArgumentError


@pytest.mark.parametrize("sizes", [{"num_layers": 10**9}, {"d_model": 10**6}, {"num_experts": 10**8, "top_k": 1}])
def test_too_much_is_refused_at_once(sizes: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="more than any device here holds"):
        EvermindLM(100, backend="numpy", **sizes)


def test_eps_of_zero_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="eps must be above 0"):
        EvermindLMTrainer(EvermindLM(10, 4, backend="numpy"), eps=0)


def test_expert_use_adds_up_and_ties_go_to_the_first(backend: Backend) -> None:
    model = EvermindLM(23, 8, 2, num_experts=4, top_k=2, seed=3, backend=backend)
    use = model.expert_use([1, 5, 9, 2, 2])
    assert use.shape == (2, 4)
    assert use.sum(axis=1) == pytest.approx([1, 1])
    model.set_parameter("layers.1.moe.router.weight", np.zeros((4, 8)))
    assert model.expert_use([1, 5, 9])[1].tolist() == [0.5, 0.5, 0, 0]
    with pytest.raises(InvalidArgumentError, match="no tokens"):
        model.expert_use([])
