"""Devices for kernels that are cut in two ways."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evermind_web.backend.base import Backend
from evermind_web.backend.kernels import tiles
from evermind_web.backend.native_webgpu import NativeDevice
from evermind_web.backend.webgpu_backend import WebGPUBackend


@pytest.fixture(scope="module", params=["many threads a row", "one thread a row"])
def device(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Plans as for a GPU, and as for a CPU that plays one."""
    backend = WebGPUBackend(NativeDevice(), "wgpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "software", request.param == "one thread a row")
        patch.setattr(tiles, "choose", lambda adapter_name: None)  # the backend would look at the adapter, a CPU
        yield backend
    backend.dispose()
