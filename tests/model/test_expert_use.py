"""How a text spreads over the experts of each layer."""

from __future__ import annotations

import numpy as np
import pytest

from evermind_web import EvermindLM
from evermind_web.backend.base import Backend
from evermind_web.errors import InvalidArgumentError
from evermind_web.paging import PagedEvermindLM


def test_expert_use_adds_up_and_ties_go_to_the_first(backend: Backend) -> None:
    model = EvermindLM(23, 8, 2, num_experts=4, top_k=2, seed=3, backend=backend)
    use = model.expert_use([1, 5, 9, 2, 2])
    assert use.shape == (2, 4)
    assert use.sum(axis=1) == pytest.approx([1, 1])
    model.set_parameter("layers.1.moe.router.weight", np.zeros((4, 8)))
    assert model.expert_use([1, 5, 9])[1].tolist() == [0.5, 0.5, 0, 0]
    with pytest.raises(InvalidArgumentError, match="no tokens"):
        model.expert_use([])


def test_a_paged_model_spreads_alike() -> None:
    model = EvermindLM(23, 8, 2, num_experts=4, top_k=2, seed=3)
    paged = PagedEvermindLM.open(model.export_weights(), 2**20)
    assert np.array_equal(paged.expert_use([1, 5, 9, 2, 2]), model.expert_use([1, 5, 9, 2, 2]))
