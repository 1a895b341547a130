"""A paged model: the numbers of the whole one, under a ceiling that is never passed, from any kind of source."""

from __future__ import annotations

import os
import threading
import tracemalloc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from evermind_web import EvermindLM, EvermindModelPackage
from evermind_web.backend.base import Backend
from evermind_web.errors import EvermindError, FormatError, InvalidArgumentError, StorageError
from evermind_web.paging import HttpBytes, MemoryBytes, PagedEvermindLM
from evermind_web.store import MemoryStore
from tests.counting import CountingBackend

V, D, L, K, H, E, TOP = 120, 24, 3, 4, 20, 6, 2
EXPERT = 4 * (2 * D * H + H + D)
PLENTY = 10**9
IDS = np.random.default_rng(1).integers(0, V, 50).tolist()


def trained_like(backend: Backend | str = "numpy") -> EvermindLM:
    """A model whose tokens go to all experts."""
    model = EvermindLM(V, D, L, K, H, E, TOP, seed=3, backend=backend)
    rng = np.random.default_rng(5)
    for layer in range(L):
        model.set_parameter(f"layers.{layer}.moe.router.weight", rng.normal(size=(E, D)))
        model.set_parameter(f"layers.{layer}.conv.weight", rng.normal(size=(D, K)) / 2)
    return model


WHOLE = trained_like()
DATA, HALF = WHOLE.export_weights(), WHOLE.export_weights(fp16=True)


def least(data: bytes) -> int:
    """The lowest ceiling that `open` takes: it is in the message."""
    with pytest.raises(InvalidArgumentError, match="give at least") as refused:
        PagedEvermindLM.open(data, 1, "numpy")
    return int(str(refused.value).rpartition(" ")[2])


@pytest.mark.parametrize("data", [DATA, HALF], ids=["f32", "fp16"])
@pytest.mark.parametrize("more", [0, EXPERT, 5 * EXPERT, L * E * EXPERT])
def test_same_bits_as_the_whole_model_under_every_ceiling(data: bytes, more: int) -> None:
    whole = EvermindLM.from_checkpoint(data, backend="numpy")
    ceiling = least(data) + more
    paged = PagedEvermindLM.open(data, ceiling, "numpy")
    assert np.array_equal(paged.forward(IDS), whole.forward(IDS))
    assert paged.evaluate([IDS, IDS[:7]]) == whole.evaluate([IDS, IDS[:7]])
    for options in ({}, {"temperature": 0.9, "seed": 7}, {"temperature": 1.0, "repetition_penalty": 1.3}):
        assert paged.generate(IDS, max_new_tokens=20, **options) == whole.generate(IDS, max_new_tokens=20, **options)
    assert paged.generate(IDS[:1], max_new_tokens=6) == whole.generate(IDS[:1], max_new_tokens=6)
    assert paged.generate_many(IDS, 3, temperature=1.0) == whole.generate_many(IDS, 3, temperature=1.0)
    stop = whole.generate(IDS, max_new_tokens=4)[2]
    assert list(paged.stream(IDS, stop_token=stop)) == whole.generate(IDS, stop_token=stop)
    stats = paged.stats
    assert stats.resident_bytes <= stats.peak_bytes <= ceiling == stats.ceiling
    assert stats.bytes_read == stats.misses * EXPERT // (1 if data is DATA else 2)
    if more == 0:
        assert stats.hits == 0
    if more == L * E * EXPERT:
        assert (stats.misses, stats.evictions) == (L * E, 0)
    paged.dispose()


def test_memory_really_stays_under_the_ceiling(tmp_path: Path) -> None:
    """Measured by the allocator, not by our own counts: a model of 9 MB in 4 MB."""
    big = EvermindLM(64, 64, 4, 3, 256, 16, 2, seed=2, backend="numpy")
    path = tmp_path / "big.evl0"
    path.write_bytes(big.export_weights())
    size, ceiling, slack = 4 * big.num_parameters, 2_000_000, 700_000  # slack: activations, pieces of opening
    assert size > 4 * ceiling
    del big
    tracemalloc.start()
    paged = PagedEvermindLM.open(path, ceiling, "numpy")
    for seed in range(4):
        paged.generate([1, 2, 3], max_new_tokens=20, temperature=2.0, seed=seed)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert paged.stats.evictions > 50
    assert paged.stats.peak_bytes <= ceiling
    assert peak < ceiling + slack < size / 2
    paged.dispose()


@pytest.mark.parametrize("room", [4, 5])
def test_there_are_hits_where_less_than_one_token_fits(room: int) -> None:
    """A token needs 2 experts of each of 3 layers; plain LRU throws out what comes next, and never has a hit."""
    model = trained_like()
    for layer in range(L):  # all scores equal: always experts 0 and 1
        model.set_parameter(f"layers.{layer}.moe.router.weight", np.zeros((E, D)))
    data = model.export_weights()
    paged = PagedEvermindLM.open(data, least(data) + (room - 1) * EXPERT, "numpy")
    paged.generate(IDS[:1], max_new_tokens=5)
    paged.experts.reset()
    paged.generate(IDS[:1], max_new_tokens=20)
    assert paged.stats.hit_rate > 0.15
    assert paged.stats.resident_bytes == paged.stats.ceiling - EXPERT


def test_the_other_backend_writes_the_same(backend: Backend) -> None:
    counting = CountingBackend(backend)
    paged = PagedEvermindLM.open(DATA, least(DATA) + 4 * EXPERT, counting)
    np.testing.assert_allclose(paged.forward(IDS), WHOLE.forward(IDS), rtol=1e-4, atol=1e-4)
    assert paged.generate(IDS, max_new_tokens=8) == WHOLE.generate(IDS, max_new_tokens=8)
    assert paged.evaluate([IDS]) == pytest.approx(WHOLE.evaluate([IDS]), rel=1e-5)
    paged.dispose()
    paged.dispose()
    assert not counting.live


async def test_files_packages_and_stores_are_sources(tmp_path: Path) -> None:
    package = EvermindModelPackage.from_lm(WHOLE, "m", "1", {"description": "x"}).to_blob()
    (tmp_path / "m.evm1").write_bytes(package)
    store = MemoryStore()
    await store.save("m", DATA, "base")
    _, stored = await store.load("m")
    expected = WHOLE.forward(IDS[:9])
    for source in (tmp_path / "m.evm1", str(tmp_path / "m.evm1"), stored, MemoryBytes(package)):
        paged = await PagedEvermindLM.open_async(source, PLENTY, "numpy")
        assert np.array_equal(await paged.forward_async(IDS[:9]), expected)
        assert [t async for t in paged.stream_async(IDS, max_new_tokens=3)] == WHOLE.generate(IDS, max_new_tokens=3)
        paged.dispose()


async def test_a_file_that_is_replaced_stays_the_old_one_and_one_that_is_written_to_is_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "model.evl0", tmp_path / "other"
    path.write_bytes(DATA)
    paged = await PagedEvermindLM.open_async(path, PLENTY, "numpy")
    other.write_bytes(bytes(len(DATA)))
    other.replace(path)
    assert np.array_equal(await paged.forward_async(IDS), WHOLE.forward(IDS))
    paged.dispose()
    path.write_bytes(DATA)
    os.utime(path, (1, 1))  # clocks of files are coarse
    paged = await PagedEvermindLM.open_async(path, PLENTY, "numpy")
    for content in (DATA[:-900], bytes(len(DATA))):  # cut off behind the experts; as long as it was, but another
        path.write_bytes(content)
        with pytest.raises(StorageError, match="was written to since it was opened"):
            await paged.forward_async(IDS)
    paged.dispose()


@pytest.mark.parametrize("at", [60, len(DATA) // 2, len(DATA) - 3])
def test_damage_is_found_before_anything_is_used(at: int) -> None:
    damaged = bytearray(DATA)
    damaged[at] ^= 1
    with pytest.raises(FormatError, match="damaged"):
        PagedEvermindLM.open(bytes(damaged), PLENTY, "numpy")
    with pytest.raises(EvermindError):
        PagedEvermindLM.open(DATA[: at - 4], PLENTY, "numpy")


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    for wrong in (b"", b"GGUF" + bytes(100), DATA + b"more", DATA[:20], b"1MVE" + bytes(4)):
        with pytest.raises(FormatError):
            PagedEvermindLM.open(wrong, PLENTY, "numpy")
    with pytest.raises(StorageError, match="cannot be read"):
        PagedEvermindLM.open(tmp_path / "missing", PLENTY, "numpy")


# ── over HTTP ────────────────────────────────────────────────────────────────
class RangeHandler(BaseHTTPRequestHandler):
    """Answers range requests with a part of DATA; /plain ignores them; the ETag can be changed."""

    tag = '"1"'
    sent = 0

    def do_GET(self) -> None:
        if self.path == "/missing":
            self.send_error(404)
            return
        body = HALF
        first, last = (int(n) for n in self.headers["Range"].removeprefix("bytes=").split("-"))
        if self.path == "/plain":
            self.send_response(200)
        else:
            body = HALF[first : last + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(HALF)}")
        self.send_header("ETag", RangeHandler.tag)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        RangeHandler.sent += len(body)
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    RangeHandler.tag, RangeHandler.sent = '"1"', 0
    with ThreadingHTTPServer(("127.0.0.1", 0), RangeHandler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


async def test_a_server_with_ranges_sends_only_what_is_needed(server: str) -> None:
    paged = await PagedEvermindLM.open_async(await HttpBytes.open(f"{server}/model"), PLENTY, "numpy")
    sent = RangeHandler.sent
    assert sent < len(HALF) - L * E * EXPERT // 2 + 200  # no expert yet
    whole = EvermindLM.from_checkpoint(HALF, backend="numpy")
    assert await paged.generate_async(IDS[:1], max_new_tokens=3) == whole.generate(IDS[:1], max_new_tokens=3)
    assert RangeHandler.sent - sent == paged.stats.bytes_read < L * E * EXPERT // 2
    RangeHandler.tag = '"2"'
    with pytest.raises(StorageError, match="has changed on the server"):
        await paged.forward_async(IDS)
    paged.dispose()


async def test_servers_that_cannot_are_named(server: str) -> None:
    with pytest.raises(StorageError, match="ignores range requests"):
        await HttpBytes.open(f"{server}/plain")
    with pytest.raises(StorageError, match="HTTP 404"):
        await HttpBytes.open(f"{server}/missing")


async def test_a_pages_fetch_is_used_if_it_is_given() -> None:
    class Headers(dict[str, str]):
        pass

    class Body:
        def to_bytes(self) -> bytes:
            return DATA[:1]

    class Response:
        status = 206
        headers = Headers({"content-range": f"bytes 0-0/{len(DATA)}"})

        async def arrayBuffer(self) -> Body:
            return Body()

    async def fetch(url: str, options: object) -> Response:
        return Response()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evermind_web.environment.to_js_object", lambda value: value)
        source = await HttpBytes.open("model.evl0", fetch)
        assert source.size == len(DATA)
        assert await source.read(0, 1) == DATA[:1]
