"""WebGPU in Chromium against NumPy in the same page: each operation, and whole models."""

from __future__ import annotations

import pytest

from evermind_web import ops
from evermind_web.backend.kernels import FAMILIES
from tests.browser.harness import PyodidePage
from tests.browser.payload import in_page
from tests.cases import MODEL_CASES, op_cases


def test_the_families_cover_every_operation() -> None:
    assert {name for names in FAMILIES.values() for name in names} == set(ops.OPS)


@pytest.mark.parametrize("family", FAMILIES)
async def test_operations(pyodide_page: PyodidePage, family: str) -> None:
    found = await in_page(pyodide_page, "operations(family)", family=family)
    assert found["problems"] == []
    assert found["compared"] >= 2 * len(op_cases(*FAMILIES[family]))
    assert found["dispatches"] >= 2 * len(op_cases(*FAMILIES[family]))


async def test_loss_logits_gradients_and_text_of_models(pyodide_page: PyodidePage) -> None:
    found = await in_page(pyodide_page, "models()")
    assert found["problems"] == []
    assert found["compared"] > 20 * len(MODEL_CASES)
