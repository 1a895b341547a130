"""NumPy in Pyodide against the reference's values: WebAssembly's floats give the same logits, gradients and text."""

from __future__ import annotations

from tests.browser.harness import PyodidePage
from tests.browser.payload import in_page


async def test_numpy_in_pyodide_agrees_with_the_reference(pyodide_page: PyodidePage) -> None:
    found = await in_page(pyodide_page, "golden()")
    assert found["compared"] > 500
    assert found["problems"] == []
