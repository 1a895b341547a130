"""Which backend a session runs on."""

from __future__ import annotations

import re

from evermind_web.backend.base import Backend
from evermind_web.backend.request import NAMES, request_backend
from evermind_web.errors import BackendError

# Adapters that have no GPU behind them.
SOFTWARE = re.compile("swiftshader|llvmpipe|lavapipe|softpipe|basic render", re.IGNORECASE)


async def open_backend(name: str | None, software: bool = False) -> tuple[Backend, str]:
    """The backend of that name; for None WebGPU, or NumPy and the reason.

    software: also a WebGPU that computes on the processor will do.
    """
    if name is not None:
        return await request_backend(name), ""
    try:
        gpu = await request_backend("webgpu")
    except BackendError as error:
        return await request_backend("numpy"), str(error)
    if software or not SOFTWARE.search(gpu.adapter_name):
        return gpu, ""
    reason = f"WebGPU here is {gpu.adapter_name}, which computes on the processor: NumPy is faster at that"
    gpu.dispose()
    return await request_backend("numpy"), reason


async def open_wished(name: str | None) -> tuple[Backend, str]:
    """As `open_backend`, but a wish that cannot be had ends on NumPy too, with the reason."""
    if name is not None and name not in NAMES:
        return await request_backend("numpy"), f"there is no backend called “{name}”: choose webgpu or numpy"
    try:
        return await open_backend(name)
    except BackendError as error:
        return await request_backend("numpy"), str(error)
