"""Backends that tests run on.

gpu       WebGPU in CPython (wgpu-py). It is optional: without the package or a Vulkan driver its tests are deselected,
          and the end of the run says so. The browser's WebGPU, in tests/browser/, is not optional.
backend   "numpy", and "wgpu" where there is one
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from evermind_web.backend.base import Backend
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.backend.request import request_backend
from evermind_web.errors import WebGPUUnavailableError


@cache
def open_native() -> Backend | str:
    """The native WebGPU backend, or why there is none."""
    try:
        return asyncio.run(request_backend("wgpu"))
    except WebGPUUnavailableError as error:
        return str(error)


def _needs_native(item: pytest.Item) -> bool:
    if "gpu" in getattr(item, "fixturenames", ()):
        return True
    call = getattr(item, "callspec", None)
    return call is not None and call.params.get("backend") == "wgpu"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what needs native WebGPU where there is none."""
    wanted = [item for item in items if _needs_native(item)]
    if wanted and isinstance(open_native(), str):
        config.hook.pytest_deselected(items=wanted)
        items[:] = [item for item in items if item not in wanted]
        config.stash[_MISSING] = len(wanted)


_MISSING = pytest.StashKey[int]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was left out."""
    if count := config.stash.get(_MISSING, 0):
        reason = open_native()
        terminalreporter.write_line(f"{count} tests left out: no native WebGPU in CPython: {reason}", yellow=True)


ROOT = Path(__file__).parents[1]
TOOLS_FILES = {".pytest_cache", ".hypothesis", ".cache", "test-results", "build", "dist", "release", "demo.png"}


@pytest.fixture(scope="session", autouse=True)
def clean_checkout() -> Iterator[None]:
    """No test leaves anything in the folder that it runs in: a store of no name lay there once."""
    before = {*os.listdir(ROOT), *TOOLS_FILES}
    yield
    assert set(os.listdir(ROOT)) <= before


@pytest.fixture(scope="session")
def gpu() -> Iterator[Backend]:
    """Native WebGPU; one device for the session."""
    backend = open_native()
    assert not isinstance(backend, str), backend
    yield backend
    backend.dispose()
    open_native.cache_clear()


@pytest.fixture
def cpu() -> Backend:
    """NumPy, float32."""
    return NumpyBackend()


@pytest.fixture(params=["numpy", "wgpu"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each backend that CPython has."""
    chosen: Backend = NumpyBackend() if request.param == "numpy" else request.getfixturevalue("gpu")
    return chosen
