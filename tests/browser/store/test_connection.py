"""A connection that the browser drops, or never opens (DB7)."""

from __future__ import annotations

import pytest
from playwright.async_api import Page

from tests.browser.store.snippets import js


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
