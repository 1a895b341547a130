"""A paged model in a page: experts come by range requests; NumPy gives the whole model's bits, WebGPU its ids."""

from __future__ import annotations

from playwright.async_api import Route

from evermind_web import EvermindLM
from tests.browser.harness import PyodidePage

CODE = """
import js
import numpy as np
from evermind_web import EvermindLM, request_backend
from evermind_web.paging import HttpBytes, PagedEvermindLM

address, ids, ceiling = f"{js.location.origin}/paged.evl0", [1, 5, 9, 2, 7, 40, 3], 60_000
whole = EvermindLM.from_checkpoint(data, backend="numpy")
found = []
for backend in ("numpy", await request_backend("webgpu")):
    paged = await PagedEvermindLM.open_async(await HttpBytes.open(address, js.fetch), ceiling, backend)
    logits = await paged.forward_async(ids)
    written = await paged.generate_async(ids, max_new_tokens=6)
    stats = paged.stats
    found.append({
        "same bits": bool((logits == whole.forward(ids)).all()),
        "error": float(np.abs(logits - whole.forward(ids)).max()),
        "same ids": written == whole.generate(ids, max_new_tokens=6),
        "under the ceiling": stats.peak_bytes <= ceiling < 4 * whole.num_parameters,
        "misses": stats.misses,
        "evictions": stats.evictions,
    })
    paged.dispose()
    if backend != "numpy":
        backend.dispose()
found
"""


async def test_experts_come_by_range_requests(pyodide_page: PyodidePage) -> None:
    model = EvermindLM(90, 24, 2, 3, 32, 8, 2, seed=4, backend="numpy")
    model.set_parameter("token_embedding.weight", model.parameters()[0].data * 30)  # logits that are far apart
    data, sizes = model.export_weights(fp16=True), list[int]()

    async def answer(route: Route) -> None:
        first, last = (int(n) for n in route.request.headers["range"].removeprefix("bytes=").split("-"))
        body = data[first : last + 1]
        sizes.append(len(body))
        await route.fulfill(status=206, body=body, headers={"Content-Range": f"bytes {first}-{last}/{len(data)}"})

    await pyodide_page.page.context.route("**/paged.evl0", answer)
    try:
        on_numpy, on_webgpu = await pyodide_page.run_python(CODE, data=data)
    finally:
        await pyodide_page.page.context.unroute("**/paged.evl0", answer)
    assert on_numpy["same bits"]
    assert on_webgpu["error"] < 1e-4
    for found in (on_numpy, on_webgpu):
        assert found["same ids"]
        assert found["under the ceiling"]
        assert found["evictions"] > 0
    expert = 2 * (2 * 24 * 32 + 24 + 32)
    assert sizes.count(expert) >= on_numpy["misses"] + on_webgpu["misses"]
    assert max(sizes) < len(data) / 2  # never the file
