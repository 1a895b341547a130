"""Training on WebGPU in Chromium: three steps as NumPy takes them, vectors in parts, and the main job on real text."""

from __future__ import annotations

from pathlib import Path

from tests.browser.harness import PyodidePage
from tests.browser.payload import in_page
from tests.cases import MODEL_CASES
from tests.splits import OPTIONS

DATA = Path(__file__).parent.parent / "data"


async def test_three_steps_agree_with_numpy(pyodide_page: PyodidePage) -> None:
    found = await in_page(pyodide_page, "steps()")
    assert found["problems"] == []
    assert found["compared"] == 4 * len(MODEL_CASES)


async def test_vectors_in_several_buffers_train_the_same(pyodide_page: PyodidePage) -> None:
    found = await in_page(pyodide_page, "splits()")
    assert found["problems"] == []
    assert found["compared"] == 3 * len(OPTIONS)


async def test_a_book_is_learned_and_another_author_helps_himself(pyodide_page: PyodidePage) -> None:
    text, other = ((DATA / name).read_text(encoding="utf-8") for name in ("alice.txt", "time-machine.txt"))
    found = await in_page(pyodide_page, "learn(text, other)", text=text, other=other)
    print(found["numbers"])
    assert found["dispatches"] > 1000
    assert found["problems"] == []
