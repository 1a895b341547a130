"""What a step and a token cost in the browser, counted by the bridge: no time is measured here."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tests.browser.harness import PyodidePage

RUN = """
import numpy as np
from evermind_web.backend.request import request_backend
from evermind_web.model import EvermindLM
from evermind_web.training import EvermindLMTrainer, Example

b = await request_backend("webgpu", check=False)
model = EvermindLM(40, 16, 2, 3, 24, 4, 2, backend=b)
trainer = EvermindLMTrainer(model, accum_steps=2, lr=1e-3)
ids = np.arange(17) % 40
window = [Example(ids[:-1], ids[1:])] * 2
rows = []

async def fit(steps):
    seen = []
    await trainer.fit_async(window * steps, on_step=lambda info: seen.append(info.loss))
    rows.append(b.stats())
    return seen

losses = await fit(2)
for _ in range(3):
    losses += await fit(4)
text = [await model.generate_async([1, 2, 3], max_new_tokens=8, temperature=1.0)]
b.flush()  # what was freed is given back with the next submit
rows.append(b.stats())
text.append(await model.generate_async([1, 2, 3], max_new_tokens=8, temperature=1.0))
b.flush()
rows.append(b.stats())
b.dispose()
{"rows": rows, "losses": losses, "text": text}
"""
CONSTANT = ("pipelines", "bind_groups", "buffers", "buffer_bytes", "scratch_bytes", "open_reads")


async def test_steps_and_tokens_repeat_without_making_anything(pyodide_page: PyodidePage) -> None:
    found: dict[str, Any] = await pyodide_page.run_python(RUN)
    first, *steps = found["rows"][:4]
    for row in steps:
        assert {name: row[name] for name in CONSTANT} == {name: first[name] for name in CONSTANT}
    for earlier, later in pairwise(steps):
        assert later["dispatches"] - earlier["dispatches"] == 4 * (first["dispatches"] // 2)
        # Four steps: one call and one submit each; a read of several takes one submit and two calls.
        assert 4 + 1 <= later["submits"] - earlier["submits"] <= 4 + 4
        assert later["crossings"] - earlier["crossings"] <= 4 + 2 * 4 + 2  # the losses' buffer, the end
    assert found["losses"] == sorted(found["losses"], reverse=True)
    before, once, twice = found["rows"][3:]
    assert twice["buffer_bytes"] == once["buffer_bytes"] <= before["buffer_bytes"]
    assert twice["pipelines"] == once["pipelines"]
    assert twice["dispatches"] - once["dispatches"] == once["dispatches"] - before["dispatches"]
    assert found["text"][0] == found["text"][1]
