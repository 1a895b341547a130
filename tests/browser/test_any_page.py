"""The wheel alone, in somebody else's page: no policy, no worker, no modules handed over, only `micropip.install`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from tools.browser import config
from tools.serve import Server, in_background

HERE = Path(__file__).parent

BOOT = """async ([wheel]) => {
    const { loadPyodide } = await import(new URL("/pyodide/pyodide.mjs", location.href));
    globalThis.py = await loadPyodide();
    await py.loadPackage("micropip");
    await py.pyimport("micropip").install(new URL(wheel, location.href).href);
}"""


@pytest.fixture(scope="module")
def plain_server(dist: Path) -> Iterator[str]:
    """Pyodide, the wheel and an empty page, served without a policy."""
    server = Server(0, {"/pyodide/": dist / "pyodide", "/": HERE}, content_security_policy="")
    in_background(server)
    yield server.url
    server.shutdown()
    server.server_close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def plain_page(browser: Browser, plain_server: str, dist: Path) -> AsyncIterator[Page]:
    """A page that has installed the released wheel with micropip, on its main thread."""
    context = await browser.new_context()
    page = await context.new_page()
    page.set_default_timeout(config.READY_TIMEOUT_MS)
    await page.goto(f"{plain_server}blank.html")
    await page.evaluate(BOOT, [json.loads((dist / "evermind.json").read_text())["wheel"]])
    yield page
    await context.close()


async def run(page: Page, code: str) -> Any:
    """Run Python whose last expression is a JSON string, and return it parsed."""
    return json.loads(await page.evaluate("code => py.runPythonAsync(code)", code))


async def test_wheel_trains_on_webgpu(plain_page: Page) -> None:
    """Kernels and bridge come out of the wheel, by Blob URLs."""
    losses, name = await run(
        plain_page,
        """
import json
import evermind_web as ew
backend = await ew.request_backend("webgpu")
model = ew.EvermindLM(vocab_size=37, d_model=12, num_layers=1, conv_kernel=3, hidden_dim=16, num_experts=3, top_k=2,
                      seed=1, backend=backend)
losses = await ew.EvermindLMTrainer(model, lr=0.02, epochs=4).fit_async([[i % 7 for i in range(20)]] * 2)
model.dispose()
backend.dispose()
json.dumps([[float(loss) for loss in losses], backend.name])
""",
    )
    assert name == "webgpu"
    assert len(losses) == 4
    assert losses[-1] < 0.8 * losses[0]


async def test_wheel_keeps_things_in_indexeddb(plain_page: Page) -> None:
    names, data = await run(
        plain_page,
        """
import json
from evermind_web.store import open_store
store = await open_store("any-page")
await store.save("a", bytes(range(256)), "state")
names = [record.name for record in await store.list()]
_, data = await store.load("a")
await store.delete("a")
store.close()
json.dumps([names, list(data)])
""",
    )
    assert names == ["a"]
    assert data == list(range(256))
