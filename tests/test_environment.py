"""The parts of the environment that need no browser; the others are in tests/browser/test_environment.py."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator

import numpy as np
import pytest

from evermind_web import environment
from evermind_web.errors import BlockingCallError, EvermindError, InvalidArgumentError


def test_cpython_is_not_a_browser() -> None:
    assert environment.IN_BROWSER is False
    assert environment.has_jspi() is False
    assert environment.pyodide_version() == ""


def test_py11_a_python_that_is_too_old_is_named_with_its_pyodide() -> None:
    with pytest.raises(EvermindError, match=r"needs Python ≥3\.11, found 3\.10 \(Pyodide 0\.21\.3\)"):
        environment.check_runtime((3, 10), "0.21.3")
    with pytest.raises(EvermindError, match=r"found 3\.9; load"):
        environment.check_runtime((3, 9), "")


def test_py11_an_untested_pyodide_warns_by_name() -> None:
    with pytest.warns(UserWarning, match=r"tested with Pyodide 0\.28; this page runs Pyodide 0\.29\.1"):
        environment.check_runtime((3, 13), "0.29.1")
    with pytest.warns(UserWarning, match=r"Pyodide 0\.2801"):
        environment.check_runtime((3, 13), "0.2801")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        environment.check_runtime((3, 13), "0.28.7")
        environment.check_runtime()


def test_run_blocking_drives_a_coroutine_that_only_yields() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return 7

    assert environment.run_blocking(work()) == 7


def test_run_blocking_passes_errors_on() -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    with pytest.raises(KeyError):
        environment.run_blocking(work())


async def test_run_blocking_in_a_running_loop_works_unless_it_has_to_wait() -> None:
    finished = []

    async def quick() -> str:
        return "done"

    async def slow() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            finished.append(True)

    assert environment.run_blocking(quick()) == "done"
    with pytest.raises(BlockingCallError, match="use await"):
        environment.run_blocking(slow())
    assert finished == [True]


async def test_the_rest_of_a_half_run_coroutine_can_be_awaited() -> None:
    """What run_blocking hands to JSPI, awaited here by a plain task."""
    seen = []

    async def work() -> int:
        seen.append(await asyncio.sleep(0.001, "first"))
        try:
            await asyncio.wait_for(asyncio.sleep(10), 0.001)
        except TimeoutError:
            seen.append("second")
        return 5

    coroutine = work()
    awaited = coroutine.send(None)
    assert await environment._Resumed(coroutine, awaited) == 5
    assert seen == ["first", "second"]


def test_py4_plain_copies_name_the_value_that_has_no_plain_form() -> None:
    source = {"size": np.int64(16), "list": [{"a": None}], "pair": (1, 2.5), "on": True}
    copy = environment.to_js_object(source)
    assert copy == {"size": 16, "list": [{"a": None}], "pair": [1, 2.5], "on": True}
    assert type(copy["size"]) is int
    with pytest.raises(InvalidArgumentError, match=r"value\.list\[1\]\.x: a set has no plain"):
        environment.to_js_object({"list": [0, {"x": {1}}]})
    with pytest.raises(InvalidArgumentError, match="keys must be strings, got 1"):
        environment.to_js_object({1: 2})


def test_proxies_outside_a_browser_are_the_functions_themselves() -> None:
    proxies = environment.Proxies()
    assert proxies.hold(print) is print
    proxies.dispose()
    proxies.dispose()
    assert len(proxies) == 0


def test_imports_of_a_module_are_rewritten_and_those_of_comments_are_not() -> None:
    source = (
        'import { a,\n  b } from "./vendor/x.mjs";\nimport "../y.mjs";\nexport * from \'./z.mjs\';\n'
        'const m = await import("./late.mjs");\n/** @typedef {import("./self.mjs").T} T */\n'
        ' * @param {import("./self.mjs").T} t\nimport z from "bare";\n'
    )
    asked = []

    def url_of(path: str) -> str:
        asked.append(path)
        return f"blob:{len(asked)}"

    rewritten = environment.rewrite_imports(source, "sub/self.mjs", url_of)
    assert asked == ["sub/vendor/x.mjs", "y.mjs", "sub/z.mjs", "sub/late.mjs"]
    assert 'b } from "blob:1"' in rewritten
    assert 'import "blob:2"' in rewritten
    assert "from 'blob:3'" in rewritten
    assert 'import("blob:4")' in rewritten
    assert rewritten.count("./self.mjs") == 2
    assert '"bare"' in rewritten


def test_an_import_may_not_leave_the_folder() -> None:
    with pytest.raises(EvermindError, match="outside web/"):
        environment.rewrite_imports('import "../x.mjs";', "a.mjs", str)


@pytest.fixture
def _no_modules() -> Iterator[None]:
    environment._modules.clear()
    yield
    environment._modules.clear()


@pytest.mark.usefixtures("_no_modules")
async def test_loading_a_javascript_module_in_cpython_says_what_it_needs() -> None:
    with pytest.raises(EvermindError, match=r"store\.mjs is a JavaScript module and needs a browser"):
        await environment.load_js_module("store.mjs")
