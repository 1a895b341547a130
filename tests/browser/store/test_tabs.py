"""Other tabs (DB2): old versions, and a tab that is closed in the middle of a save."""

from __future__ import annotations

import asyncio
import time

from playwright.async_api import Page

from tests.browser.store.snippets import js


async def test_db2_tabs_behind_an_old_version_say_which_tabs_to_close(tabs: list[Page]) -> None:
    old, first, second = tabs
    await js(old, "(await openStore()).close();")
    await old.evaluate(
        """() => new Promise((resolve) => {
            const opening = indexedDB.open("evermind", 1);  // a page that knows no versionchange
            opening.onsuccess = () => { globalThis.held = opening.result; resolve(); };
        })"""
    )
    started = time.monotonic()
    attempt = "return fails(openStore({migrations: second}));"
    found = await asyncio.gather(js(first, attempt), js(second, attempt))
    assert time.monotonic() - started < 10
    for text in found:
        assert text.startswith("StorageError"), text
        assert "close other tabs of this page" in text
    await old.close()
    names = "return (await (await openStore({migrations: second})).list()).length;"
    assert await asyncio.gather(js(first, names), js(second, names)) == [0, 0]


async def test_db2_our_own_tab_lets_go_and_asks_for_a_reload(tabs: list[Page]) -> None:
    old, new, _ = tabs
    await js(
        old,
        """
        globalThis.changes = [];
        globalThis.store = await openStore({onversionchange: (change) => changes.push(change)});
        await store.save("kept", bytes(1), {kind: "base"});
        """,
    )
    found = await js(
        new,
        """
        const started = performance.now();
        const store = await openStore({migrations: second});
        return [(await store.list()).map(({ name }) => name), performance.now() - started];
        """,
    )
    assert found[0] == ["kept"]
    assert found[1] < 3000
    after = await js(old, "return [changes, await fails(store.list())];")
    assert after[0] == [{"oldVersion": 1, "newVersion": 2}]
    assert "newer version of this page" in after[1]
    assert "reload this page" in after[1]


async def test_a_save_cut_off_by_closing_the_tab_is_whole_or_absent(tabs: list[Page]) -> None:
    await js(tabs[2], "await (await openStore()).save('model', new Uint8Array(3e6).fill(1), {kind: 'base'});")
    for wait in (0, 0.005, 0.02, 0.05):
        writer = await tabs[2].context.new_page()
        await writer.goto("/__test__/blank.html")
        await js(
            writer,
            """const store = await openStore();
               store.save("model", new Uint8Array(3e6).fill(2), {kind: "base", replace: true});""",
        )
        await asyncio.sleep(wait)
        await writer.close()
        value = await js(
            tabs[2],
            """const { data } = await (await openStore()).load("model");
               return data.length === 3e6 && data.every((one) => one === data[0]) ? data[0] : -1;""",
        )
        assert value in (1, 2)
