"""Many at once: ten workers on one GPU, fifty clients of the static server."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from playwright.async_api import Page

WORKERS = 10


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
