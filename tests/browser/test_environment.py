"""Where Python meets JavaScript: handles, plain objects, modules from the wheel, and blocking calls without JSPI."""

from __future__ import annotations

import json

from playwright.async_api import Browser

from tests.browser.conftest import PageLog, check, open_context
from tests.browser.harness import PyodidePage


async def test_py3_a_held_handler_runs_later_and_is_freed_once(pyodide_page: PyodidePage) -> None:
    found = await pyodide_page.run_python(
        """
        import asyncio, gc, js
        from evermind_web.environment import Proxies

        target = js.EventTarget.new()
        heard = []

        def register():
            proxies = Proxies()
            target.addEventListener("lost", proxies.hold(lambda event: heard.append(event.type)))
            return proxies

        proxies = register()
        gc.collect()
        await asyncio.sleep(0.01)
        target.dispatchEvent(js.Event.new("lost"))
        held = len(proxies)
        handle = proxies._held[0]
        proxies.dispose()
        proxies.dispose()
        try:
            handle()
            dead = False
        except Exception as error:
            dead = "destroyed" in str(error)
        [heard, held, len(proxies), dead]
        """
    )
    assert found == [["lost"], 1, 0, True]


async def test_py4_nested_dicts_arrive_as_plain_objects_at_every_level(pyodide_page: PyodidePage) -> None:
    found = await pyodide_page.run_python(
        """
        import js
        import numpy as np
        from evermind_web.environment import to_js_object

        value = to_js_object({"size": 16, "count": np.int64(3), "nested": {"a": {"b": [1, {"c": 2}]}}, "missing": None,
                              "entries": [{"binding": 0}, {"buffer": {"type": "storage"}}]})
        objects = [value, value.nested, value.nested.a, value.nested.a.b[1], value.entries[1].buffer]
        is_plain = lambda one: js.Object.is_(js.Object.getPrototypeOf(one), js.Object.prototype)
        {"json": js.JSON.stringify(value), "plain": [is_plain(one) for one in objects],
         "types": [js.Array.isArray(value.entries), type(value.count).__name__, value.size, value.missing]}
        """
    )
    assert json.loads(found["json"]) == {
        "size": 16,
        "count": 3,
        "nested": {"a": {"b": [1, {"c": 2}]}},
        "entries": [{"binding": 0}, {"buffer": {"type": "storage"}}],
    }
    assert found["plain"] == [True] * 5
    assert found["types"] == [True, "int", 16, None]


async def test_a_blocking_call_waits_by_jspi_where_it_is(pyodide_page: PyodidePage) -> None:
    found = await pyodide_page.run_python(
        """
        import asyncio
        from evermind_web.environment import has_jspi, run_blocking

        async def work():
            await asyncio.sleep(0)
            first = await asyncio.sleep(0.01, "a")
            return first + await asyncio.sleep(0.01, "b")

        [has_jspi(), run_blocking(work())]
        """
    )
    assert found == [True, "ab"]


async def test_bytes_cross_as_exact_copies(pyodide_page: PyodidePage) -> None:
    found = await pyodide_page.run_python(
        """
        from evermind_web.environment import to_js_bytes

        source = bytearray(b"0123456789")
        array = to_js_bytes(memoryview(source)[2:6])
        source[:] = b"x" * 10
        [array.to_bytes(), array.buffer.byteLength, to_js_bytes(b"").length]
        """
    )
    assert found == [b"2345", 4, 0]


# Any page with Pyodide: no module was registered, and the wheel's own are imported from Blob URLs.
LOAD_ON_MAIN_THREAD = """async () => {
    const manifest = await (await fetch("/evermind.json")).json();
    const { loadPyodide } = await import("/pyodide/pyodide.mjs");
    globalThis.pyodide = await loadPyodide({ indexURL: "/pyodide/" });
    await pyodide.loadPackage([manifest.package], { messageCallback: () => {} });
    globalThis.python = async (code) => JSON.parse(await pyodide.runPythonAsync("import json\\n" + code));
}"""


async def test_py6_without_jspi_the_async_api_works_and_the_blocking_one_says_why(
    browser: Browser, server: str
) -> None:
    context = await browser.new_context(base_url=server, bypass_csp=True)
    try:
        page = await context.new_page()
        log = PageLog(page, server)
        await page.add_init_script("delete WebAssembly.Suspending; delete WebAssembly.promising;")
        await page.goto("/__test__/blank.html")
        await page.evaluate(LOAD_ON_MAIN_THREAD)
        found = await page.evaluate(
            """() => python(`
import asyncio
from evermind_web.environment import has_jspi, load_js_module, run_blocking
from evermind_web.store import open_store

async def waits():
    await asyncio.sleep(0.01)

async def does_not_wait():
    await asyncio.sleep(0)
    return 3

try:
    run_blocking(waits())
    text = "no error"
except RuntimeError as error:
    text = str(error)
store = await open_store("without jspi")
record = await store.save("a", b"123456789", "base")
_, data = await store.load("a")
module = await load_js_module("store.mjs")
json.dumps([has_jspi(), text, run_blocking(does_not_wait()), record.crc32, data.decode(),
            store.persistent, module is await load_js_module("store.mjs")])`)"""
        )
        assert found == [
            False,
            "blocking calls need JSPI, which this browser lacks; use await",
            3,
            0xCBF43926,
            "123456789",
            True,
            True,
        ]
        check(log)
    finally:
        await context.close()


async def test_under_a_strict_policy_an_unregistered_module_says_how_to_register_it(
    browser: Browser, server: str
) -> None:
    context = await open_context(browser, server)
    try:
        page = await context.new_page()
        await page.goto("/__test__/blank.html")
        await page.evaluate(LOAD_ON_MAIN_THREAD)
        found = await page.evaluate(
            """() => python(`
from evermind_web.store import open_store
try:
    await open_store()
    text = "no error"
except Exception as error:
    text = f"{type(error).__name__}: {error}"
json.dumps(text)`)"""
        )
        assert found.startswith("EvermindError: cannot import store.mjs from the wheel")
        assert "registerJsModule" in found
    finally:
        await context.close()
