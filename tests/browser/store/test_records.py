"""What a store does in a browser: records in and out, names, all or nothing, bytes as they were."""

from __future__ import annotations

from playwright.async_api import Page

from tests.browser.store.snippets import js


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
        await store.save("d", bytes(4), {kind: "base"});
        const none = await fails(store.delete("d", "x", "b"));
        const still = [...(await store.load("b")).data, ...(await store.load("d")).data];
        await store.delete("d", "b");
        return { none, still, collision, missing, names: (await store.list()).map(({ name }) => name),
                 data: [...(await store.load("c")).data], gone: await fails(store.delete("b")),
                 bad: [await fails(store.rename("c", " ")), await fails(store.rename("c", "é".repeat(201))),
                       await fails(store.rename("c", "\\ud800"))] };
        """,
    )
    assert "the name b is taken" in found["collision"]
    assert found["missing"].startswith("RecordNotFoundError")
    assert found["gone"].startswith("RecordNotFoundError")
    assert "checkpoint x is no longer" in found["none"]
    assert found["still"] == [2, 4]
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
        const read = [];
        for (const method of ["get", "getAll", "openCursor"]) {
            const original = IDBObjectStore.prototype[method];
            IDBObjectStore.prototype[method] = function (...args) {
                read.push(this.name);
                return original.apply(this, args);
            };
        }
        const started = performance.now();
        const listed = (await store.list()).length;
        const took = performance.now() - started;
        const of_list = [...new Set(read)];
        await store.load("adapter 7");
        return { listed, took, of_list, of_load: [...new Set(read)] };
        """,
    )
    print(f"listing 1,000 adapters took {found['took']:.0f} ms")
    assert (found["listed"], found["of_list"]) == (1000, ["records"])
    assert "blobs" in found["of_load"], "the count must see reads of bytes"


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
