"""Python's face over the same records."""

from __future__ import annotations

from tests.browser.harness import PyodidePage


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
