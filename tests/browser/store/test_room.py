"""A full disk (DB1), a private window (DB3), eviction (DB4): said clearly, and nothing is lost."""

from __future__ import annotations

import time

import pytest
from playwright.async_api import Page

from tests.browser.store.snippets import js


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
    await js(
        blank,
        """
        globalThis.store = await openStore();
        await store.save("my model", bytes(1), {kind: "base"});
        await store.save("text:1", bytes(1), {kind: "text"});
        const notes = await caches.open("evermind_web notes");
        while ((await (await notes.matchAll()).at(-1)?.json())?.[0] !== "my model") await null;
        """,
    )
    cdp = await blank.context.new_cdp_session(blank)
    await cdp.send("Storage.clearDataForOrigin", {"origin": server.rstrip("/"), "storageTypes": "indexeddb"})
    found = await js(
        blank,
        """return { live: await fails(store.load("my model")), list: await store.list(), notice: store.notice,
                    fresh: await fails((await openStore()).load("my model")), persist: await store.persist() };""",
    )
    for text in (found["live"], found["fresh"]):
        assert text.startswith("RecordNotFoundError: checkpoint my model is no longer in this browser")
    assert found["list"] == []
    assert found["notice"] == "the browser has deleted its database. Gone: my model; restore a backup"
    assert found["persist"] in (True, False)


@pytest.mark.parametrize("megabytes", [1, 5, 50])
async def test_db1_a_quota_is_said_loses_nothing_and_is_gone_when_it_is_lifted(
    blank: Page, server: str, megabytes: int
) -> None:
    cdp = await blank.context.new_cdp_session(blank)
    origin = {"origin": server.rstrip("/")}
    await cdp.send("Storage.overrideQuotaForOrigin", {**origin, "quotaSize": megabytes * 2**20})
    full = await js(
        blank,
        """
        const store = await openStore();
        await store.save("small", bytes(1, 2), {kind: "base"});
        const part = new Uint8Array(argument * 0.6 * 2 ** 20).map((_, i) => (i * 2654435761) >>> 24);
        const large = new Uint8Array(argument * 1.1 * 2 ** 20).fill(7);
        const backup = ["one", "two"].map((name) => ({name, data: part, kind: "base"}));
        const found = [await fails(store.save("large", large, {kind: "base"})),
            await fails(store.save("small", large, {kind: "base", replace: true})),
            await fails(store.saveMany(backup))];
        await store.save("tiny", bytes(3), {kind: "base"});
        const names = (await store.list()).map(({ name }) => name);
        return { found, names, data: [...(await store.load("small")).data] };
        """,
        megabytes,
    )
    for text in full["found"]:
        assert text.startswith("StorageFullError: browser storage is full: need "), text
    assert (full["names"], full["data"]) == (["small", "tiny"], [1, 2]), "nothing is lost, and what has room is saved"
    await cdp.send("Storage.overrideQuotaForOrigin", origin)
    again = await js(
        blank,
        """
        const store = await openStore();
        let answer = "";
        const large = new Uint8Array(argument * 1.1 * 2 ** 20).fill(7);
        // Chromium remembers for half a minute how much room there was.
        for (let i = 0; i < 60 && answer !== "no error"; i++) {
            answer = await fails(store.save("large", large, {kind: "base"}));
            if (answer !== "no error") await new Promise((resolve) => setTimeout(resolve, 1000));
        }
        return [answer, (await store.list()).length];
        """,
        megabytes,
    )
    assert again == ["no error", 3]
