"""IndexedDB through both faces, web/store.mjs and evermind_web.store, with the faults that browsers bring.

Names of tests begin with the case of the project's fault list that they hold (DB1 full, DB2 other tabs, DB3 private
window, DB4 evicted, DB7 dropped connection, CK9 signed CRC).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import BrowserContext, Page

from tests.browser.harness import PyodidePage

# Every snippet sees these names. `fails` gives "Name: message" of the error that a promise rejects with.
PRELUDE = """
    const { openStore, persistStorage } = await import("/store.mjs");
    const { MIGRATIONS } = await import("/store_engines.mjs");
    const fails = async (promise) => {
        try { await promise; } catch (error) { return `${error.name}: ${error.message}`; }
        return "no error";
    };
    const bytes = (...values) => new Uint8Array(values);
    const second = [...MIGRATIONS, (db) => { db.createObjectStore("later"); }];
"""


async def js(page: Page, body: str, argument: Any = None) -> Any:
    """Run JavaScript in a page of the served origin; its `return` value comes back."""
    return await page.evaluate(f"async (argument) => {{ {PRELUDE} {body} }}", argument)


@pytest_asyncio.fixture(loop_scope="session")
async def blank(page: Page) -> Page:
    await page.goto("/__test__/blank.html")
    return page


@pytest_asyncio.fixture(loop_scope="session")
async def tabs(context: BrowserContext) -> AsyncIterator[list[Page]]:
    """Three tabs of one profile."""
    opened = [await context.new_page() for _ in range(3)]
    for tab in opened:
        await tab.goto("/__test__/blank.html")
    yield opened


# ---- what a store does ----------------------------------------------------------------------------------------


async def test_a_record_survives_a_reload_with_its_bytes_and_fields(blank: Page) -> None:
    saved = await js(
        blank,
        """
        const store = await openStore();
        return store.save("名 <b>\\u0000", bytes(1, 2, 3, 255), {
            kind: "adapter", baseFingerprint: "f00d", metadata: {rank: 8, none: null, nested: {"__proto__": 1}}});
        """,
    )
    await blank.reload()
    loaded = await js(
        blank,
        """
        const store = await openStore();
        const { record, data } = await store.load("名 <b>\\u0000");
        return { record, data: [...data], persistent: store.persistent, notice: store.notice,
                 list: await store.list(), polluted: {}.polluted !== undefined };
        """,
    )
    assert loaded["record"] == saved
    assert loaded["data"] == [1, 2, 3, 255]
    assert loaded["list"] == [saved]
    assert saved["size"] == 4
    assert saved["crc32"] == 0x9C53D059  # zlib.crc32(bytes([1, 2, 3, 255]))
    assert saved["metadata"]["none"] is None
    assert (loaded["persistent"], loaded["notice"]) == (True, "")


async def test_only_the_bytes_of_a_view_are_stored_and_later_changes_are_not(blank: Page) -> None:
    found = await js(
        blank,
        """
        const heap = new Uint8Array(4 * 2 ** 20);
        heap.set([7, 8, 9], 1000);
        const store = await openStore();
        const saving = store.save("view", heap.subarray(1000, 1003), {kind: "base"});
        heap.fill(1);
        await saving;
        const { data } = await store.load("view");
        const raw = await new Promise((resolve) => {
            const opening = indexedDB.open("evermind");
            opening.onsuccess = () => {
                const request = opening.result.transaction("blobs").objectStore("blobs").getAll();
                request.onsuccess = () => { resolve(request.result); opening.result.close(); };
            };
        });
        return { data: [...data], buffer: data.buffer.byteLength, kept: raw.map((one) => one.byteLength),
                 plain: raw.every((one) => one instanceof ArrayBuffer) };
        """,
    )
    assert found == {"data": [7, 8, 9], "buffer": 3, "kept": [3], "plain": True}


async def test_a_taken_name_is_refused_and_replaced_only_on_purpose(blank: Page) -> None:
    found = await js(
        blank,
        """
        const store = await openStore();
        const first = await store.save("a", bytes(1), {kind: "base"});
        const refused = await fails(store.save("a", bytes(2), {kind: "base"}));
        const before = [...(await store.load("a")).data];
        const replaced = await store.save("a", bytes(3, 3), {kind: "adapter", replace: true});
        return { refused, before, after: [...(await store.load("a")).data], kind: (await store.list())[0].kind,
                 sameDate: replaced.created === first.created };
        """,
    )
    assert found["refused"].startswith("StorageError: the name a is taken")
    assert (found["before"], found["after"], found["kind"]) == ([1], [3, 3], "adapter")
    assert found["sameDate"]


async def test_save_many_is_all_or_nothing(blank: Page) -> None:
    found = await js(
        blank,
        """
        const store = await openStore();
        await store.save("tokenizer", bytes(1), {kind: "tokenizer"});
        const pair = [{name: "base", data: bytes(2), kind: "base"},
                      {name: "tokenizer", data: bytes(3), kind: "tokenizer"}];
        const refused = await fails(store.saveMany(pair));
        const between = (await store.list()).map(({ name }) => name);
        await store.saveMany(pair, {replace: true});
        return { refused, between, after: (await store.list()).map(({ name }) => name),
                 twice: await fails(store.saveMany([pair[0], pair[0]], {replace: true})) };
        """,
    )
    assert "taken" in found["refused"]
    assert found["between"] == ["tokenizer"]
    assert found["after"] == ["base", "tokenizer"]
    assert found["twice"].startswith("InvalidArgumentError")


async def test_rename_keeps_the_bytes_and_refuses_a_collision(blank: Page) -> None:
    found = await js(
        blank,
        """
        const store = await openStore();
        await store.saveMany([{name: "a", data: bytes(1), kind: "base"}, {name: "b", data: bytes(2), kind: "base"}]);
        const collision = await fails(store.rename("a", "b"));
        const missing = await fails(store.rename("x", "y"));
        await store.rename("a", "c");
        await store.rename("c", "c");
        await store.delete("b");
        return { collision, missing, names: (await store.list()).map(({ name }) => name),
                 data: [...(await store.load("c")).data], gone: await fails(store.delete("b")),
                 bad: [await fails(store.rename("c", " ")), await fails(store.rename("c", "é".repeat(201))),
                       await fails(store.rename("c", "\\ud800"))] };
        """,
    )
    assert "the name b is taken" in found["collision"]
    assert found["missing"].startswith("RecordNotFoundError")
    assert found["gone"].startswith("RecordNotFoundError")
    assert (found["names"], found["data"]) == (["c"], [1])
    assert all(text.startswith("InvalidArgumentError") for text in found["bad"])


async def test_damaged_bytes_are_refused_at_load(blank: Page) -> None:
    found = await js(
        blank,
        """
        const store = await openStore();
        await store.saveMany([{name: "flip", data: bytes(1, 2, 3), kind: "base"},
                              {name: "cut", data: bytes(1, 2, 3), kind: "base"}]);
        store.close();
        await new Promise((resolve) => {
            const opening = indexedDB.open("evermind");
            opening.onsuccess = () => {
                const tx = opening.result.transaction("blobs", "readwrite");
                tx.objectStore("blobs").put(bytes(1, 2, 4).buffer, 1);
                tx.objectStore("blobs").put(bytes(1, 2).buffer, 2);
                tx.oncomplete = () => { opening.result.close(); resolve(); };
            };
        });
        const again = await openStore();
        return [await fails(again.load("flip")), await fails(again.load("cut")), await fails(store.list())];
        """,
    )
    assert found[0].startswith("StorageError: flip is damaged: CRC-32 is ")
    assert "cut is truncated: have 2 of 3 bytes" in found[1]
    assert "the store is closed" in found[2]


async def test_a_thousand_adapters_are_listed_without_their_bytes(blank: Page) -> None:
    found = await js(
        blank,
        """
        const store = await openStore();
        const data = new Uint8Array(16384);
        await store.saveMany(Array.from({length: 1000}, (_, i) => ({name: `adapter ${i}`, data, kind: "adapter",
            metadata: {rank: 8, loss: 1.5}})));
        let best = Infinity;
        for (let i = 0; i < 3; i++) {
            const started = performance.now();
            if ((await store.list()).length !== 1000) throw new Error("not all are listed");
            best = Math.min(best, performance.now() - started);
        }
        return best;
        """,
    )
    assert found <= 200, f"listing 1,000 adapters took {found:.0f} ms"


async def test_bytes_over_the_size_of_one_value_are_kept_in_pieces(blank: Page) -> None:
    """Chromium refuses a single value over 127 MiB."""
    found = await js(
        blank,
        """
        const count = async (key) => {
            const db = await new Promise((resolve) => {
                indexedDB.open("evermind").onsuccess = ({ target }) => resolve(target.result);
            });
            const request = db.transaction(key).objectStore(key).count();
            await new Promise((resolve) => { request.onsuccess = resolve; });
            db.close();
            return request.result;
        };
        const size = 3 * 2 ** 24 + 5;
        const store = await openStore();
        await store.save("large", new Uint8Array(size).map((_, i) => i >>> 16), {kind: "base"});
        await store.save("empty", bytes(), {kind: "base"});
        await store.rename("large", "renamed");
        const { data } = await store.load("renamed");
        const same = data.length === size && data.every((one, i) => one === (i >>> 16 & 255));
        const pieces = await count("blobs");
        await store.save("renamed", bytes(1), {kind: "base", replace: true});
        return { same, pieces, replaced: await count("blobs"), empty: (await store.load("empty")).data.length };
        """,
    )
    assert found == {"same": True, "pieces": 5, "replaced": 2, "empty": 0}


async def test_ck9_crc32_in_javascript_is_unsigned(blank: Page) -> None:
    found = await blank.evaluate(
        """async () => {
            const { crc32 } = await import("/crc32.mjs");
            const text = new TextEncoder().encode("123456789");
            return [crc32(text), crc32(new Uint8Array(0)), crc32(text.subarray(0, 8)), crc32(text.subarray(1))];
        }"""
    )
    assert found == [3421780262, 0, 0x9AE0DAAF, 0x71952670]


# ---- faults ---------------------------------------------------------------------------------------------------


async def test_db1_a_full_disk_rejects_at_once_and_keeps_the_older_record(blank: Page, server: str) -> None:
    cdp = await blank.context.new_cdp_session(blank)
    # Before the first save: Chromium remembers for half a minute how much room there was.
    await cdp.send("Storage.overrideQuotaForOrigin", {"origin": server.rstrip("/"), "quotaSize": 2**20})
    await js(blank, "await (await openStore()).save('model', bytes(5, 6), {kind: 'base'});")
    started = time.monotonic()
    found = await js(
        blank,
        """
        const store = await openStore();
        const data = new Uint8Array(2 * 2 ** 20).map((_, i) => (i * 2654435761) >>> 24);
        const small = {name: "tokenizer", data: bytes(1), kind: "tokenizer"};
        return { replaced: await fails(store.save("model", data, {kind: "base", replace: true})),
                 pair: await fails(store.saveMany([small, {name: "large", data, kind: "base"}])),
                 names: (await store.list()).map(({ name }) => name), data: [...(await store.load("model")).data] };
        """,
    )
    for text in (found["replaced"], found["pair"]):
        assert text.startswith("StorageFullError: browser storage is full: need 2.00 MiB, free "), text
        assert "free 10240" not in text  # what this Chromium estimates, whatever is free
    assert (found["names"], found["data"]) == (["model"], [5, 6])
    assert time.monotonic() - started < 5


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


@pytest.mark.parametrize(
    "stub",
    [
        "Object.defineProperty(globalThis, 'indexedDB', {value: undefined});",
        """IDBFactory.prototype.open = () => { throw new DOMException(
               "A mutation operation was attempted on a database that did not allow mutations.", "InvalidStateError");
           };""",
        """await new Promise((resolve) => { indexedDB.open("evermind", 9).onsuccess = resolve; });
           Object.defineProperty(IDBRequest.prototype, "error",
               {get: () => new DOMException("not allowed to mutate", "InvalidStateError")});""",
    ],
    ids=["no indexedDB", "open throws", "open fails"],
)
async def test_db3_a_private_window_gets_a_store_in_memory_and_a_notice(blank: Page, stub: str) -> None:
    found = await js(
        blank,
        stub
        + """
        const store = await openStore();
        const data = bytes(1, 2);
        await store.save("a", data, {kind: "base"});
        data[0] = 9;
        const { data: loaded } = await store.load("a");
        loaded[1] = 9;
        await store.rename("a", "b");
        await store.save("c", bytes(3), {kind: "base"});
        const refused = await fails(store.save("b", bytes(3), {kind: "base"}));
        await store.delete("c");
        const found = { persistent: store.persistent, notice: store.notice, data: [...(await store.load("b")).data],
            names: (await store.list()).map(({ name }) => name), refused, persist: await store.persist() };
        store.close();
        return { ...found, closed: await fails(store.load("b")) };
        """,
    )
    assert found["persistent"] is False
    assert found["notice"] == "not saved in a private window; download instead"
    assert (found["names"], found["data"], found["persist"]) == (["b"], [1, 2], False)
    assert "the store is closed" in found["closed"]
    assert "taken" in found["refused"]


async def test_db4_an_evicted_record_is_named_never_replaced_by_an_empty_one(blank: Page, server: str) -> None:
    await js(blank, "globalThis.store = await openStore(); await store.save('my model', bytes(1), {kind: 'base'});")
    cdp = await blank.context.new_cdp_session(blank)
    await cdp.send("Storage.clearDataForOrigin", {"origin": server.rstrip("/"), "storageTypes": "indexeddb"})
    found = await js(
        blank,
        """return { live: await fails(store.load("my model")), list: await store.list(),
                    fresh: await fails((await openStore()).load("my model")), persist: await store.persist() };""",
    )
    for text in (found["live"], found["fresh"]):
        assert text.startswith("RecordNotFoundError: checkpoint my model is no longer in this browser")
    assert found["list"] == []
    assert found["persist"] in (True, False)


@pytest.mark.parametrize("name", ["UnknownError", "InvalidStateError"])
async def test_db7_a_dropped_connection_is_opened_again_once(blank: Page, name: str) -> None:
    found = await js(
        blank,
        """
        const store = await openStore();
        const { transaction } = IDBDatabase.prototype;
        const { open } = IDBFactory.prototype;
        let failures = 1, opened = 0;
        IDBFactory.prototype.open = function (...args) { opened++; return open.apply(this, args); };
        IDBDatabase.prototype.transaction = function (...args) {
            if (failures-- > 0) throw new DOMException("Connection to Indexed Database server lost", argument);
            return transaction.apply(this, args);
        };
        await store.save("a", bytes(1), {kind: "base"});
        const once = opened;
        failures = 2;
        const twice = await fails(store.list());
        return { once, twice, then: (await store.list()).length };
        """,
        name,
    )
    assert found["once"] == 1
    assert found["twice"].startswith("StorageError: the browser's storage failed")
    assert found["then"] == 1


async def test_db7_an_open_that_never_answers_times_out(blank: Page) -> None:
    found = await js(
        blank,
        """
        (await openStore()).close();
        const { open } = IDBFactory.prototype;
        IDBFactory.prototype.open = function (...args) {
            const request = open.apply(this, args);
            request.addEventListener = () => {};
            return request;
        };
        const started = performance.now();
        const text = await fails(openStore({timeout: 300}));
        IDBFactory.prototype.open = open;
        return { text, took: performance.now() - started, then: (await (await openStore()).list()).length };
        """,
    )
    assert found["text"].startswith("StorageError: the browser's storage did not open within 0.3 s")
    assert "close other tabs of this page" in found["text"]
    assert 250 < found["took"] < 3000
    assert found["then"] == 0


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


# ---- Python's face --------------------------------------------------------------------------------------------


async def test_python_and_javascript_see_the_same_records(pyodide_page: PyodidePage) -> None:
    found = await pyodide_page.run_python(
        """
        import zlib
        from evermind_web.store import SaveItem, export_all, import_all, open_store

        store = await open_store("python and javascript")
        pair = [SaveItem("base", data, "base", "f00d", {"rank": 8, "none": None, "list": [1, {"a": "é"}]}),
                SaveItem("tokenizer", memoryview(b"xx{}yy")[2:4], "tokenizer")]
        saved = await store.save_many(pair)
        loaded, back = await store.load("base")
        backup = await export_all(store)
        await store.rename("base", "other")
        await store.delete("tokenizer")
        names = [record.name for record in await store.list()]
        await store.delete("other")
        imported = await import_all(store, backup)
        used, quota = await store.estimate()
        texts = [record.to_json() for record in await store.list()]
        store.close()
        {"same": loaded == saved[0], "crc": loaded.crc32 == zlib.crc32(data), "data": back, "names": names,
         "imported": texts, "persistent": store.persistent, "estimate": [used > 0, quota > used],
         "dates": [one.created == two.created for one, two in zip(imported, saved)]}
        """,
        data=bytes(range(256)) * 300,
    )
    assert found["same"]
    assert found["crc"]
    assert found["data"] == bytes(range(256)) * 300
    assert found["names"] == ["other"]
    assert [one["name"] for one in found["imported"]] == ["base", "tokenizer"]
    assert found["imported"][0]["metadata"] == {"rank": 8, "none": None, "list": [1, {"a": "é"}]}
    assert found["imported"][1]["size"] == 2
    assert found["dates"] == [True, True]
    assert (found["persistent"], found["estimate"]) == (True, [True, True])


async def test_errors_of_the_store_are_python_classes_of_the_same_name(pyodide_page: PyodidePage) -> None:
    found = await pyodide_page.run_python(
        """
        from evermind_web import errors
        from evermind_web.store import SaveItem, open_store

        store = await open_store("python errors")
        await store.save("a", b"1", "base", replace=True)

        async def error_of(call):
            try:
                await call
            except errors.EvermindError as error:
                return f"{type(error).__name__}: {error}"
            return "no error"

        result = [
            await error_of(store.load("gone")),
            await error_of(store.save("a", b"2", "base")),
            await error_of(store.save("", b"2", "base")),
            await error_of(store.save("b", b"2", "")),
            await error_of(store.save("b", b"2", "base", metadata={"n": 2**60})),
            await error_of(store.save_many([SaveItem("b", b"", "x"), SaveItem("b", b"", "x")])),
        ]
        names = [record.name for record in await store.list()]
        store.close()
        result += [await error_of(store.list()), names]
        result
        """
    )
    assert found[0].startswith("RecordNotFoundError: checkpoint gone is no longer in this browser")
    assert found[1].startswith("StorageError: the name a is taken")
    assert [text.split(":")[0] for text in found[2:6]] == ["InvalidArgumentError"] * 4
    assert found[6].startswith("StorageError: the store is closed")
    assert found[7] == ["a"]
