"""JavaScript on web/store.mjs, for the tests of this folder."""

from __future__ import annotations

from typing import Any

from playwright.async_api import Page

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
