"""Sizes that no device holds are refused before anything is made of them."""

from __future__ import annotations

from typing import Any

import pytest

from evermind_web import EvermindLM
from evermind_web.errors import InvalidArgumentError


@pytest.mark.parametrize("sizes", [{"num_layers": 10**9}, {"d_model": 10**6}, {"num_experts": 10**8, "top_k": 1}])
def test_too_much_is_refused_at_once(sizes: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="more than any device here holds"):
        EvermindLM(100, backend="numpy", **sizes)
