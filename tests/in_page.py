"""What runs inside the page for tests/browser/: the shared cases on NumPy in Pyodide and on the browser's WebGPU."""

from __future__ import annotations

from typing import Any

from evermind_web.backend.kernels import FAMILIES
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.backend.request import request_backend
from evermind_web.backend.webgpu_backend import WebGPUBackend
from tests import golden_models, learning, parity
from tests.cases import MODEL_CASES, op_cases
from tests.splits import SPLITS, compare_splits

_opened: list[WebGPUBackend] = []


async def webgpu() -> WebGPUBackend:
    """The browser's WebGPU, opened once: compiled kernels are used again."""
    if not _opened:
        backend = await request_backend("webgpu")
        assert isinstance(backend, WebGPUBackend)
        _opened.append(backend)
    return _opened[0]


def close() -> None:
    """Give the device back."""
    while _opened:
        _opened.pop().dispose()


def report(findings: parity.Findings) -> dict[str, Any]:
    """Findings as JSON, and how many kernels have run on the device so far."""
    dispatches = _opened[0].stats()["dispatches"] if _opened else 0
    return {"compared": findings.compared, "problems": findings.problems[:20], "dispatches": dispatches}


async def golden() -> dict[str, Any]:
    """NumPy in Pyodide against the reference's values."""
    return report(await golden_models.check_all(NumpyBackend()))


async def operations(family: str) -> dict[str, Any]:
    """The kernels of one family against NumPy."""
    return report(await parity.compare_ops(NumpyBackend(), await webgpu(), op_cases(*FAMILIES[family])))


async def models() -> dict[str, Any]:
    """Loss, logits, gradients and text of every model case."""
    return report(await parity.compare_models(NumpyBackend(), await webgpu(), MODEL_CASES))


async def steps() -> dict[str, Any]:
    """Three optimizer steps of every model case."""
    return report(await parity.compare_training(NumpyBackend(), await webgpu(), MODEL_CASES))


async def splits() -> dict[str, Any]:
    """Models whose vectors lie in several buffers."""
    return report(await compare_splits(await webgpu(), SPLITS[:1]))


async def learn(text: str, other: str) -> dict[str, Any]:
    """The main job on WebGPU."""
    backend = await webgpu()
    before = backend.stats()["dispatches"]
    learned = await learning.learn(backend, text, other)
    dispatches = backend.stats()["dispatches"] - before
    return {"numbers": str(learned), "problems": learning.problems(learned), "dispatches": dispatches}
