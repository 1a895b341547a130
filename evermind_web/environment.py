"""Where the package runs, and everything that differs there. The only module that imports `js` or `pyodide`.

`IN_BROWSER` is decided once, at import. All that touches JavaScript goes through the functions below, so that
the rest of the package is plain Python and runs unchanged in CPython. Nothing here knows devices or storage.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import quote

from .errors import BlockingCallError, EvermindError, InvalidArgumentError

T = TypeVar("T")

IN_BROWSER: bool = sys.platform == "emscripten"
TESTED_PYODIDE = "0.28"
MINIMUM_PYTHON = (3, 11)

# Name under which a page may hand over the JavaScript modules before the package is imported, as
# `pyodide.registerJsModule("evermind_web_js", {bridge, store})`. Under a strict Content-Security-Policy this is
# the only way: it allows neither Blob URLs nor `eval`.
REGISTERED_MODULES = "evermind_web_js"

_NO_JSPI = "blocking calls need JSPI, which this browser lacks; use await"
_NO_STACK = (
    "a blocking call was made where Python cannot wait (Python was entered by a plain call or callback, "
    "not by runPythonAsync); use await"
)
_IN_LOOP = "a blocking call was made inside a running event loop and has to wait there; use await"


# ---- versions -------------------------------------------------------------------------------------------------


def pyodide_version() -> str:
    """Version of the Pyodide that runs this, such as "0.28.3"; "" in CPython."""
    if not IN_BROWSER:
        return ""
    import pyodide

    return str(pyodide.__version__)


def check_runtime(python: tuple[int, int] | None = None, pyodide: str | None = None) -> None:
    """Refuse a Python that is too old; warn, by name, of a Pyodide that was never tested.

    Args: `python` (major, minor) and `pyodide` version, by default those of the running interpreter.
    Raises: EvermindError, naming the version needed and the one found.
    """
    found = python or sys.version_info[:2]
    version = pyodide_version() if pyodide is None else pyodide
    if found < MINIMUM_PYTHON:
        runtime = f" (Pyodide {version})" if version else ""
        raise EvermindError(
            f"evermind_web needs Python ≥{MINIMUM_PYTHON[0]}.{MINIMUM_PYTHON[1]}, "
            f"found {found[0]}.{found[1]}{runtime}; load Pyodide {TESTED_PYODIDE}"
        )
    if version and not version.startswith(TESTED_PYODIDE + "."):
        warnings.warn(
            f"evermind_web is tested with Pyodide {TESTED_PYODIDE}; this page runs Pyodide {version}", stacklevel=2
        )


# ---- waiting --------------------------------------------------------------------------------------------------


def has_jspi() -> bool:
    """Whether this browser can suspend WebAssembly for a promise, which blocking calls to a device need."""
    if not IN_BROWSER:
        return False
    import js

    web_assembly = js.WebAssembly
    return hasattr(web_assembly, "Suspending") and hasattr(web_assembly, "promising")


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run `coroutine` to its end and return its result: the body of every synchronous twin.

    A coroutine that never really waits (all of them, on NumPy) is driven here without an event loop: cheap, and
    it works inside a running loop too. One that waits for a device is handed to JSPI where there is a browser.

    Raises: BlockingCallError where it has to wait and cannot; the coroutine is closed, so its `finally` ran.
    """
    try:
        awaited = coroutine.send(None)
        while awaited is None:  # a bare yield: `asyncio.sleep(0)`, a courtesy to others
            awaited = coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    problem = _why_not_wait()
    if problem:
        coroutine.close()
        raise BlockingCallError(problem)
    from pyodide.ffi import run_sync

    return run_sync(_Resumed(coroutine, awaited))  # type: ignore[no-any-return]


def _why_not_wait() -> str:
    if not IN_BROWSER:
        return _IN_LOOP
    if not has_jspi():
        return _NO_JSPI
    from pyodide.ffi import can_run_sync

    return "" if can_run_sync() else _NO_STACK


class _Resumed:
    """Awaitable for the rest of a coroutine that was already driven up to its first real wait."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], awaited: Any) -> None:
        self._coroutine = coroutine
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        awaited = self._awaited
        while True:
            try:
                try:
                    value = yield awaited
                except BaseException as error:
                    awaited = self._coroutine.throw(error)
                else:
                    awaited = self._coroutine.send(value)
            except StopIteration as end:
                return end.value


# ---- values that cross ----------------------------------------------------------------------------------------


def to_js_object(value: Any) -> Any:
    """Deep copy of dicts, lists, strings, numbers and None as plain JavaScript objects (never a Map or a proxy).

    None becomes `undefined`, which a WebGPU descriptor reads as absent; JavaScript values pass as they are; NumPy
    scalars become numbers. In CPython the value comes back with its dicts and lists copied, for tests.
    Raises: InvalidArgumentError naming the path of a value that has no plain counterpart.
    """
    plain = _plain(value, "value")
    if not IN_BROWSER:
        return plain
    import js
    from pyodide.ffi import to_js

    return to_js(plain, dict_converter=js.Object.fromEntries, create_pyproxies=False)


def _plain(value: Any, path: str) -> Any:
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise InvalidArgumentError(f"{path}: keys must be strings, got {key!r} ({type(key).__name__})")
        return {key: _plain(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return _plain(value.item(), path)  # np.int64 crosses as BigInt, which no WebGPU call takes
    if IN_BROWSER:
        from pyodide.ffi import JsProxy

        if isinstance(value, JsProxy):
            return value
    raise InvalidArgumentError(f"{path}: a {type(value).__name__} has no plain JavaScript form")


def to_js_bytes(data: bytes | bytearray | memoryview) -> Any:
    """Copy of `data` as a Uint8Array on an ArrayBuffer of its own, exactly as long: safe to store or transfer."""
    import js

    view = memoryview(data).cast("B")
    array = js.Uint8Array.new(view.nbytes)
    if view.nbytes:
        array.assign(view)
    return array


def js_from_json(text: str) -> Any:
    """JavaScript's value of a JSON text; unlike `to_js_object` it keeps null."""
    import js

    return js.JSON.parse(text)


def js_to_json(value: Any) -> str:
    """JSON text of a plain JavaScript value: many fields in one crossing."""
    import js

    return str(js.JSON.stringify(value))


def js_error_name(error: BaseException) -> str:
    """`error.name` of an exception that JavaScript threw, such as "QuotaExceededError"; "" for any other."""
    if not IN_BROWSER:
        return ""
    from pyodide.ffi import JsException

    return str(error.name) if isinstance(error, JsException) else ""


def js_error_message(error: BaseException) -> str:
    """`error.message` of an exception that JavaScript threw; `str(error)` of any other."""
    return str(getattr(error, "message", "")) or str(error)


def user_agent() -> str:
    """The browser and its version; "" in CPython."""
    if not IN_BROWSER:
        return ""
    import js

    return str(js.navigator.userAgent)


async def recall(key: str) -> bool:
    """Whether `remember(key)` was called in this browser; False wherever that cannot be known."""
    if not IN_BROWSER:
        return False
    try:
        return (await (await _notes()).match(_note(key))) is not None
    except Exception:  # no cache: an insecure page, a private window, storage that is switched off
        return False


async def remember(key: str) -> None:
    """Keep `key` for later visits, if the browser allows it."""
    if not IN_BROWSER:
        return
    import js

    with suppress(Exception):
        await (await _notes()).put(_note(key), js.Response.new("1"))


async def _notes() -> Any:
    import js

    return await js.caches.open("evermind_web notes")


def _note(key: str) -> str:
    import js

    return f"{js.location.origin}/__evermind_web_note__?{quote(key)}"


def wasm_module() -> Any:
    """Pyodide's own WebAssembly module; its `HEAPU8` is Python's memory, and is replaced when that grows."""
    import pyodide_js

    return pyodide_js._module


def load_wasm_library(module: bytes) -> Any:
    """The exports of a WebAssembly module that imports `env.memory`: loaded into Python's own memory.

    Pyodide does not hand that memory out; its loader of shared libraries gives it to a module that names itself one.
    Needs 'wasm-unsafe-eval' of a Content-Security-Policy, as Pyodide does. Raises what the loader raises.
    """
    return wasm_module().loadWebAssemblyModule(
        to_js_bytes(module), to_js_object({"loadAsync": False, "allowUndefined": True})
    )


class Proxies:
    """Python functions handed to JavaScript, kept alive until `dispose` and freed there exactly once.

    A function passed straight to JavaScript dies when the call returns; an event that fires later would fail.
    """

    def __init__(self) -> None:
        self._held: list[Any] = []

    def hold(self, function: Callable[..., Any]) -> Any:
        """A handle on `function` that JavaScript may keep and call until `dispose`. In CPython: `function`."""
        if not IN_BROWSER:
            return function
        from pyodide.ffi import create_proxy

        proxy = create_proxy(function)
        self._held.append(proxy)
        return proxy

    def __len__(self) -> int:
        return len(self._held)

    def dispose(self) -> None:
        """Free every handle. A second call does nothing."""
        held, self._held = self._held, []
        for proxy in held:
            proxy.destroy()


# ---- JavaScript modules ---------------------------------------------------------------------------------------

# `import … from "./x.mjs"`, `export … from "./x.mjs"`, `import "./x.mjs"`, `import("./x.mjs")`; relative paths only.
_IMPORT = re.compile(r"""(\bfrom\s*|\bimport\s*\(?\s*)(["'])(\.{1,2}/[^"']+)\2""")

_modules: dict[str, Any] = {}
_blob_urls: dict[str, str] = {}


async def load_js_module(name: str) -> Any:
    """The JavaScript module `web/<name>` as a JsProxy; the same object on every call.

    Taken from the modules that the page registered (see `REGISTERED_MODULES`), else imported from Blob URLs made
    of the sources in the wheel, so that any Pyodide page can use it, on the main thread and in a worker.

    Raises: EvermindError in CPython, or where the page's security policy forbids Blob URLs.
    """
    if not IN_BROWSER:
        raise EvermindError(f"{name} is a JavaScript module and needs a browser with Pyodide")
    if name not in _modules:
        registered = _registered_module(name)
        _modules[name] = registered if registered is not None else await _import_from_wheel(name)
    return _modules[name]


def _registered_module(name: str) -> Any:
    try:
        page_modules = __import__(REGISTERED_MODULES)
    except ImportError:
        return None
    return getattr(page_modules, name.removesuffix(".mjs"), None)


async def _import_from_wheel(name: str) -> Any:
    from pyodide.ffi import JsException

    try:
        return await _run_js("(url) => import(url)")(_blob_url(name, ()))
    except JsException as error:
        raise EvermindError(
            f"cannot import {name} from the wheel: {js_error_message(error)}. If this page has a Content-Security-"
            f"Policy, import the file in JavaScript and hand it over before the package is used: "
            f'pyodide.registerJsModule("{REGISTERED_MODULES}", {{bridge, store}})'
        ) from error


def _run_js(code: str) -> Any:
    from pyodide.code import run_js

    return run_js(code)


def _blob_url(name: str, importers: tuple[str, ...]) -> str:
    """Blob URL of `web/<name>` with its own imports replaced by Blob URLs; one URL a file, so one instance of it."""
    if name in importers:
        raise EvermindError(f"web modules import each other in a circle: {' → '.join((*importers, name))}")
    if name not in _blob_urls:
        import js

        source = rewrite_imports(_web_source(name), name, lambda path: _blob_url(path, (*importers, name)))
        blob = js.Blob.new(to_js_object([source]), to_js_object({"type": "text/javascript"}))
        _blob_urls[name] = str(js.URL.createObjectURL(blob))
    return _blob_urls[name]


def rewrite_imports(source: str, name: str, url_of: Callable[[str], str]) -> str:
    """`source` of `web/<name>` with each relative import replaced by `url_of(path below web/)`."""

    def replace(match: re.Match[str]) -> str:
        return f"{match[1]}{match[2]}{url_of(_resolve(name, match[3]))}{match[2]}"

    def rewrite(line: str) -> str:  # type comments import too, and may do so in a circle
        return line if line.lstrip().startswith(("//", "/*", "*")) else _IMPORT.sub(replace, line)

    return "".join(rewrite(line) for line in source.splitlines(keepends=True))


def _resolve(importer: str, relative: str) -> str:
    parts = importer.split("/")[:-1]
    for part in relative.split("/"):
        if part == "..":
            if not parts:
                raise EvermindError(f"{importer} imports {relative}, which lies outside web/")
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def _web_source(name: str) -> str:
    from . import resources

    return resources.read_text("web", name)


check_runtime()
