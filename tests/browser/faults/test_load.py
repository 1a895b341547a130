"""Many at once: workers that compute and that learn on one GPU, fifty clients of the static server."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from playwright.async_api import Page

WORKERS = 10
LEARNERS = int(os.environ.get("EVERMIND_LEARNERS") or 3)  # `make soak`: 10, each with a Python of its own


def fetch(address: str, path: str) -> tuple[int, str]:
    """Status and SHA-256 of one file over a connection of its own."""
    at = urlsplit(address)
    connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=60)
    try:
        connection.request("GET", f"/{path}")
        reply = connection.getresponse()
        return reply.status, hashlib.sha256(reply.read()).hexdigest()
    finally:
        connection.close()


async def test_fifty_pages_load_at_once(server: str, dist: Path) -> None:
    """Every client gets each file of a start whole: 50 connections, the runtime's largest files among them."""
    names = ["index.html", "app.mjs", "worker.mjs", "evermind.json", "pyodide/pyodide-lock.json", "pyodide/pyodide.mjs"]
    names += ["pyodide/python_stdlib.zip", json.loads((dist / "evermind.json").read_text())["wheel"]]
    right = {name: hashlib.sha256((dist / name).read_bytes()).hexdigest() for name in names}

    def client() -> list[tuple[int, str]]:
        return [fetch(server, name) for name in names]

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(50) as pool:
        all_clients = await asyncio.gather(*(loop.run_in_executor(pool, client) for _ in range(50)))
    for answers in all_clients:
        assert answers == [(200, right[name]) for name in names]


async def test_ten_workers_share_one_gpu_without_mixing_data(page: Page) -> None:
    await page.goto("/__test__/blank.html")
    found = await page.evaluate(
        """async (count) => {
            const one = (number) => new Promise((resolve) => {
                const worker = new Worker("/__test__/faults/load_worker.mjs", { type: "module" });
                worker.onmessage = ({ data }) => { worker.terminate(); resolve(data); };
                worker.onerror = (event) => resolve({ number, error: event.message });
                worker.postMessage(number);
            });
            return Promise.all(Array.from({ length: count }, (_, number) => one(number)));
        }""",
        WORKERS,
    )
    assert found == [{"number": number, "wrong": 0} for number in range(WORKERS)]


LEARN = """async ([count, steps]) => {
    globalThis.workers ??= [];
    while (workers.length < count) {
        workers.push(new Worker("/__test__/faults/learn_worker.mjs", { type: "module" }));
    }
    const one = (number) => new Promise((resolve, reject) => {
        workers[number].onmessage = ({ data }) => resolve(data);
        workers[number].onerror = (event) => reject(new Error(event.message));
        workers[number].postMessage([number, steps]);
    });
    const numbers = [...workers.keys()];
    const together = await Promise.all(numbers.map(one));
    const alone = [];
    for (const number of numbers) alone.push(await one(number));
    for (const worker of workers) worker.terminate();
    return { together, alone };
}"""


async def test_workers_that_learn_at_once_learn_what_each_learns_alone(page: Page) -> None:
    """Each has its own seed and text; losses and weights are the same bits as when it has the GPU for itself."""
    await page.goto("/__test__/blank.html")
    found = await page.evaluate(LEARN, [LEARNERS, 5])
    assert found["together"] == found["alone"]
    prints = {answer[-1] for answer in found["alone"]}
    assert len(prints) == LEARNERS, "each learned something of its own"
    for number, answer in enumerate(found["alone"]):
        assert answer[0] == number
        assert len(answer) == 3, answer
