"""What the benchmark page measures: its checks see a wrong result, and its numbers are about what they say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from bench import draw_curves, measure, operations, products, run
from bench.curves import VALUES
from bench.measure import Clock, compared, shape_of
from evermind_web.backend.base import Backend
from evermind_web.backend.kernels import Plan
from evermind_web.training import StepInfo

SPEC: dict[str, Any] = {"size": "tiny", "rows": [64], "repeats": 1, "rounds": 1}


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times need not be above the noise here."""
    monkeypatch.setattr(operations, "WORTH_S", 0.0)


async def kernel_rows(backend: Backend, monkeypatch: pytest.MonkeyPatch, **more: Any) -> list[dict[str, Any]]:
    monkeypatch.setitem(measure._backends, "tested", backend)
    return await operations.kernels(SPEC | {"backend": "tested"} | more)


@pytest.mark.usefixtures("at_once")
async def test_every_operation_of_a_step_is_timed_and_checked(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = await kernel_rows(backend, monkeypatch)
    assert {"moe_fwd", "moe_bwd", "head_logits", "head_xent_bwd"} <= {row["op"] for row in rows if "shape" in row}
    assert all(row["max_diff_numpy"] < 1e-5 and "wrong" not in row for row in rows)
    singles = [row["kernel"] for row in rows if "kernel" in row]
    assert singles == (list(products.PRODUCTS) if hasattr(backend, "device") else [])


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("kernel", products.PRODUCTS)
async def test_a_product_that_was_not_made_is_wrong(gpu: Backend, monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    """A kernel that does nothing is the fastest."""
    whole = products._as_operation

    def idle(name: str, dispatches: Any) -> str:
        if name.endswith(f": {kernel}"):
            dispatches = tuple(replace(d, grid=(1, 1, 1), uniform=(0,) * len(d.uniform)) for d in dispatches)
        return whole(f"idle {name}", dispatches)

    monkeypatch.setattr(products, "_as_operation", idle)
    row = await products.row(gpu, kernel, 64, SPEC)
    assert row["wrong"]
    assert row["max_diff_numpy"] > 0.1


def test_a_plan_is_taken_apart_before_the_dispatch() -> None:
    plan = products.plan_for("moe_bwd", operations.Operation.shapes("moe_bwd", LETTERS), (48, 1, 1))
    before, only = products._taken_apart(plan, "moe_bwd_rows", 11)
    assert [d.kernel for d in before] == ["moe_bwd_hidden"]
    assert only.operands == (11, 1, 4, 6, 12)  # its two pieces of scratch memory come after the operands
    with pytest.raises(ValueError, match="one dispatch of adamw"):
        products._taken_apart(Plan(before), "adamw", 11)


LETTERS = {"N": 64, "D": 32, "M": products.moe_layout(32, 48, 1).size, "H": 48, "E": 1, "k": 1}


def test_differences() -> None:
    right = np.array([1.0, -4.0])
    assert operations.difference(np.array([1.0, -3.0], np.float32), right) == 0.25
    assert operations.difference(np.array([1, 2], np.int32), np.array([1, 3], np.int32)) == 1
    assert compared(1e-6) == {"max_diff_numpy": 1e-6}
    assert compared(1e-3)["wrong"]
    assert compared(operations.difference(np.array([1.0, np.nan], np.float32), right)) == {
        "max_diff_numpy": None,
        "wrong": True,
    }  # and JSON that a page can read


class Answers:
    """A page that answers with what it is given, or fails."""

    def __init__(self, found: Any) -> None:
        self.found = found

    async def evaluate(self, expression: str) -> Any:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@pytest.mark.parametrize(
    ("found", "own", "failed"),
    [
        ({"tok_s": 1, "max_diff_numpy": 1e-6}, True, False),
        ({"tok_s": 1} | compared(2e-4), True, True),
        ([{"op": "adamw"}, {"op": "moe_bwd"} | compared(float("nan"))], True, True),
        ({"layers": [{"x": 1}], "tokens": [{"x": 1, "wrong": True}]}, True, True),
        ({"products": [{"m": 1, "wrong": True}]}, False, True),
        (RuntimeError("not installed"), False, False),
        (RuntimeError("lost"), True, True),
    ],
)
async def test_make_bench_fails_where_a_result_is_wrong(found: Any, own: bool, failed: bool) -> None:
    page: Any = Answers(found)
    assert run.fails(await run.measure(page, "bench()"), own) is failed


def test_parts_of_a_run_end_where_a_chunk_was_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, now = Clock(), 0.0
    monkeypatch.setattr(measure.time, "perf_counter", lambda: now)
    for chunk in range(40):
        now += 0.032  # 32 steps of a millisecond, reported together
        for _ in range(32):
            now += 1e-6
            clock(StepInfo(chunk, 1, 1, 1, 0.0, 0.0, 1, 0.0, False, 1.0, 0.1))
    parts = clock.parts()
    assert 8 <= len(parts) <= 2 * measure.SEGMENTS
    assert parts == pytest.approx([1.001] * len(parts))


@pytest.mark.parametrize("mode", ["full", "lora"])
async def test_a_row_of_training(backend: Backend, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setitem(measure._backends, "tested", backend)
    monkeypatch.setattr(measure, "_checked", {})
    monkeypatch.setattr(measure, "WARM_S", 0.0)
    spec = {"size": "tiny", "batch": 2, "seqLen": 16, "steps": 12, "backend": "tested", "mode": mode, "L": 1}
    row = await measure.train(spec)
    counted = {"dispatches", "crossings", "submits", "python_us"} if hasattr(backend, "device") else set[str]()
    assert {"tok_s", "ms_per_step", "gpu_bytes", *counted} <= set(row)
    assert row["ms_best"] <= row["ms_per_step"] <= row["ms_worst"]
    assert row["loss_last"] < row["loss_first"]
    assert row["max_diff_numpy"] < 1e-4
    assert "wrong" not in row


async def test_a_row_of_writing(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(measure._backends, "tested", backend)
    monkeypatch.setattr(measure, "_checked", {})
    spec = {"size": "tiny", "tokens": 8, "repeats": 1, "backend": "tested"}
    row = await measure.decode(spec)
    assert row["tok_s"] > 0
    assert row["max_diff_numpy"] == 0
    monkeypatch.setitem(measure._checked, ("tested", "text"), 1.0)
    assert (await measure.decode(spec))["wrong"]


def test_one_dimension_of_a_size_can_be_another() -> None:
    assert shape_of({"size": "M", "E": 64}) == (2048, 128, 4, 3, 256, 64, 2)


def test_curves_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = {name: [{"x": x, "ms": 0.5 + x} for x in values] for name, values in VALUES.items()}
    assert set(value) == set(draw_curves.PANELS)
    source, target = tmp_path / "curves.json", tmp_path / "curves.svg"
    source.write_text(json.dumps([{"expression": "start()", "value": {}}, {"expression": "curves()", "value": value}]))
    monkeypatch.setattr("sys.argv", ["draw_curves", str(source), str(target)])
    assert draw_curves.main() == 0
    drawn = ElementTree.parse(target).getroot()
    lines = [e for e in drawn.iter("{http://www.w3.org/2000/svg}polyline") if e.get("class") == "c0"]
    assert len(lines) == len(draw_curves.PANELS)
    for line in lines:
        points = [tuple(map(float, p.split(","))) for p in str(line.get("points")).split()]
        assert points == sorted(points, key=lambda p: (p[0], -p[1]))  # up and to the right
    source.write_text("{}")
    with pytest.raises(ValueError, match="found none"):
        draw_curves.main()
