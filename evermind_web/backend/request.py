"""Opening a backend by name, and choosing the one that a model runs on."""

from __future__ import annotations

from importlib.util import find_spec

from evermind_web import environment
from evermind_web.backend.base import Backend
from evermind_web.backend.device import Device
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.checks import checked
from evermind_web.errors import InvalidArgumentError, WebGPUUnavailableError

NAMES = ("numpy", "webgpu", "wgpu")

_default: Backend | None = None


@checked
async def request_backend(
    name: str = "webgpu",
    *,
    sync: bool | None = None,
    power_preference: str = "high-performance",
    check: bool | None = None,
) -> Backend:
    """Open a device and return its backend.

    Args:
        name: "numpy"; "webgpu", the browser's; or "wgpu", native in CPython (needs the package wgpu).
        sync: submit every operation on its own, so that errors name it; None reads EVERMIND_SYNC.
        power_preference: which GPU to take where there are two: "high-performance" or "low-power".
        check: compare every operation with NumPy first; None: only for "webgpu", whose drivers are the user's. A good
            verdict is remembered; operations that differ run on NumPy, and `adapter_name` says which.
    Raises:
        InvalidArgumentError: no such backend.
        WebGPUUnavailableError: there is no adapter here.
        BackendError: the device computes too much wrong.
    """
    if name not in NAMES:
        raise InvalidArgumentError(f"backend must be one of {', '.join(NAMES)}, got {name!r}")
    if name == "numpy":
        return NumpyBackend()
    from evermind_web.backend.selfcheck import verified
    from evermind_web.backend.webgpu_backend import WebGPUBackend

    backend = WebGPUBackend(await _open_device(name, power_preference), name, sync)
    if check or (check is None and name == "webgpu"):
        try:
            return await verified(backend)
        except BaseException:
            backend.dispose()
            raise
    return backend


async def _open_device(name: str, power_preference: str) -> Device:
    if name == "wgpu":
        if environment.IN_BROWSER:
            raise WebGPUUnavailableError('"wgpu" is the native backend of CPython; in a browser use "webgpu"')
        if find_spec("evermind_web.backend.native_webgpu") is None:
            raise WebGPUUnavailableError(
                'the "wgpu" backend is not installed: pip install \'evermind-web[native]\', or use "numpy"'
            )
        from evermind_web.backend.native_webgpu import NativeDevice

        return NativeDevice()
    if not environment.IN_BROWSER:
        raise WebGPUUnavailableError('"webgpu" needs a browser with Pyodide; in CPython use "wgpu" (native) or "numpy"')
    from evermind_web.backend.bridge_device import BridgeDevice

    return await BridgeDevice.open(power_preference)


def default_backend() -> Backend:
    """The backend of models that are made without one: NumPy, unless `set_default_backend` was called."""
    return _default or NumpyBackend()


@checked
def set_default_backend(backend: Backend | None) -> None:
    """Use `backend` for all models that are made without one from now on; None means NumPy again."""
    global _default
    _default = backend


@checked
def resolve_backend(backend: str | Backend | None) -> Backend:
    """A backend from what the user gave: None (the default), "numpy", the name of the default, or a Backend.

    Raises InvalidArgumentError for a name that has to be requested first.
    """
    if isinstance(backend, str):
        if backend == "numpy":
            return NumpyBackend()
        if _default is not None and _default.name == backend:
            return _default
        raise InvalidArgumentError(
            f'backend must be "numpy" or a Backend, got {backend!r}; '
            f"open a device with `await request_backend({backend!r})` first"
        )
    return backend or default_backend()
