"""GP6: a device that is lost at any moment of learning costs the steps since the last snapshot, and no bit."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import evermind_web as ew
from evermind_web.backend.base import Array, Backend, Buf, Reading
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.errors import DeviceLostError, WebGPUUnavailableError
from evermind_web.session import Session
from evermind_web.training import EvermindLMTrainer, Snapshot

SAMPLES = Path(__file__).parent.parent.parent / "web" / "samples"
ALICE = (SAMPLES / "alice.txt").read_text(encoding="utf-8")[:1500]
WELLS = (SAMPLES / "time-machine.txt").read_text(encoding="utf-8")[:1500]
STEPS = {"steps": 5}
POINTS = int(os.environ.get("EVERMIND_LOST_POINTS") or 4)  # `make soak` takes more, piece by piece
SEED = int(os.environ.get("EVERMIND_LOST_SEED") or 6)


class Fragile(NumpyBackend):
    """NumPy under the name of a GPU that goes away after so many operations, reads or uploads."""

    def __init__(self, calls: float) -> None:
        super().__init__()
        self.name, self.adapter_name, self.left = "webgpu", "a fragile one", calls

    def _use(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise DeviceLostError("the GPU device was lost (unknown: hung); request a new backend")

    def run(self, op: str, ins: Sequence[Buf], outs: Sequence[Buf], scalars: Sequence[int]) -> None:
        self._use()
        super().run(op, ins, outs, scalars)

    def write(self, buf: Buf, array: Array) -> None:
        self._use()
        super().write(buf, array)

    def start_read(self, *bufs: Buf) -> Reading[list[Array]]:
        self._use()
        return super().start_read(*bufs)

    async def read(self, *bufs: Buf) -> list[Array]:
        return await self.start_read(*bufs)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[float]], list[Fragile]]:
    """Sets after how many calls each device that the session opens is lost; then there are no more devices."""

    def give(budgets: list[float]) -> list[Fragile]:
        opened: list[Fragile] = []

        async def request(name: str) -> Backend:
            if name == "numpy":
                return NumpyBackend()
            if len(opened) == len(budgets):
                raise WebGPUUnavailableError("WebGPU not available: no adapter")
            opened.append(Fragile(budgets[len(opened)]))
            return opened[-1]

        monkeypatch.setattr("evermind_web.session.devices.request_backend", request)
        monkeypatch.setattr("evermind_web.session.fitting.SNAPSHOT_SECONDS", 0.0)
        return opened

    return give


Learned = tuple[str, dict[str, Any], list[dict[str, Any]]]


async def learn(session: Session) -> Learned:
    """A base and an adapter; the fingerprint of both, the base's result, all reports."""
    reports: list[dict[str, Any]] = []
    result = await session.train(ALICE, STEPS, reports.append)
    await session.personalize(WELLS, "Wells", STEPS, reports.append)
    assert session.current is not None
    adapter = session.current.adapters["Wells"]
    return session.current.fingerprint + adapter.data.hex(), result, reports


async def undisturbed(give: Callable[[list[float]], list[Fragile]]) -> tuple[Learned, float]:
    """What is learned by a device that stays, and how many calls it takes; found out once."""
    if not _undisturbed:
        opened = give([10**9])
        learned = await learn(await Session.open())
        _undisturbed.append((learned, 10**9 - opened[0].left))
    return _undisturbed[0]


_undisturbed: list[tuple[Learned, float]] = []


async def test_gp6_learning_goes_on_from_the_last_snapshot_with_the_same_bits(devices: Any) -> None:
    (expected, result, _), calls = await undisturbed(devices)
    source = random.Random(SEED)
    for _ in range(POINTS):
        at = source.randrange(10, int(calls))
        devices([at, 10**9])
        session = await Session.open()
        found, again, reports = await learn(session)
        assert found == expected, f"lost after {at} of {calls} calls"
        assert again["loss_after"] == result["loss_after"]
        assert session.describe()["backend"] == "webgpu"
        notices = [r["notice"] for r in reports if "notice" in r]
        assert len(notices) == 1, notices
        steps = [p[0] for r in reports if r["phase"] == "train" for p in r["points"]]
        last = steps[-1]  # of the adapter, which learns in whole passes
        assert steps == [*range(1, 6), *range(1, last + 1)], "the curve has each step once"


async def test_gp6_a_device_lost_while_the_learned_model_is_read_costs_nothing(devices: Any) -> None:
    async def fingerprint() -> str:
        session = await Session.open()
        await session.train(ALICE, STEPS)
        assert session.current is not None
        return session.current.fingerprint

    opened = devices([10**9])
    expected = await fingerprint()
    calls = int(10**9 - opened[0].left)
    for at in range(calls - 8, calls):
        opened = devices([at, 10**9])
        assert await fingerprint() == expected, f"lost after {at} of {calls} calls"
        assert len(opened) == 2


async def test_gp6_writing_is_given_up_with_a_sentence_and_the_model_writes_the_same_again(devices: Any) -> None:
    devices([10**9] * (POINTS + 1))
    session = await Session.open()
    await session.train(ALICE, STEPS)
    options = {"max_new_tokens": 20, "temperature": 0.8}

    async def text() -> str:
        return "".join([piece async for piece in session.stream("Alice was", options)])

    expected = await text()
    assert isinstance(session.backend, Fragile)
    before = session.backend.left
    assert await text() == expected
    calls = int(before - session.backend.left)
    source = random.Random(SEED)
    for _ in range(POINTS):
        assert isinstance(session.backend, Fragile)
        session.backend.left = at = source.randrange(calls)
        with pytest.raises(
            DeviceLostError, match=r"GPU lost \(unknown: hung\): the model is as it was before.*Try again"
        ):
            await text()
        assert session.describe()["backend"] == "webgpu"
        assert await text() == expected, f"lost after {at} of {calls} calls"


async def test_gp6_the_notice_says_step_reason_and_checkpoint(devices: Any) -> None:
    _, calls = await undisturbed(devices)
    devices([calls // 12, 10**9])
    _, result, reports = await learn(await Session.open())
    (notice,) = result["notices"]
    words = r"GPU lost at step (\d+) \(unknown: hung\); last checkpoint: step (\d+)\. Learning goes on .* with WebGPU"
    found = re.match(words, notice)
    assert found, notice
    assert 0 <= int(found[1]) - int(found[2]) <= 1, "with a snapshot a step, at most one is made again"
    assert notice in [r.get("notice") for r in reports]


async def test_gp6_a_gpu_that_is_gone_for_good_ends_on_numpy(devices: Any) -> None:
    (expected, _, _), calls = await undisturbed(devices)
    for budgets in ([calls // 12], [calls // 12, calls // 30], [calls // 12, 5, 5, 5, 5]):
        devices(list(budgets))
        session = await Session.open()
        found, result, _ = await learn(session)
        assert found == expected
        assert session.describe()["backend"] == "numpy"
        assert session.describe()["fallback_reason"]
        assert "NumPy" in result["notices"][-1]


async def test_gp6_stop_during_the_way_back_keeps_what_the_snapshot_has(devices: Any) -> None:
    _, calls = await undisturbed(devices)
    devices([calls // 12, 10**9])
    session = await Session.open()

    def report(event: dict[str, Any]) -> None:
        if "notice" in event:
            session.stop()

    result = await session.train(ALICE, STEPS, report)
    assert result["stopped"]
    assert 0 < result["steps"] < STEPS["steps"]


def test_snapshots_put_a_trainer_where_it_was() -> None:
    sequences = [[1, 2, 3, 4, 5, 6], [6, 5, 4, 3], [2, 4, 6], [1, 3, 5]] * 3

    def trainer() -> EvermindLMTrainer:
        model = ew.EvermindLM(9, d_model=6, hidden_dim=4, seed=1)
        return EvermindLMTrainer(
            model, accum_steps=2, epochs=2, mixed_precision=True, dropout=0.1, lr_scheduler_type="cosine"
        )

    whole, kept = trainer(), list[Snapshot]()
    history = whole.fit(sequences, on_snapshot=kept.append, snapshot_seconds=0)
    assert [s.step for s in kept] == list(range(1, 13))
    for snapshot in (kept[0], kept[4], kept[-2]):
        again = trainer()
        assert again.fit(sequences, resume=snapshot) == history
        assert again.save_state() == whole.save_state()
    assert kept[4].position.window == 5, "a fit does not change the snapshot that it began with"
