"""Saved things and files: whole sets, names, other people's files, and that a refusal loses nothing."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest

import evermind_web as ew
from evermind_web import BPETokenizer, EvermindLM
from evermind_web.errors import (
    ConfigMismatchError,
    EvermindError,
    FormatError,
    InvalidArgumentError,
    RecordNotFoundError,
    StorageError,
    StorageFullError,
)
from evermind_web.formats import stored_zip
from evermind_web.session import Library, Session
from evermind_web.session.adapter_file import PEFT
from evermind_web.session.container import ADAPTER, MANIFEST, MODEL, TOKENIZER, Package, pack, unpack
from evermind_web.session.texts import check_learnable, excerpt, read_text, split, training_windows
from evermind_web.store import MemoryStore

SAMPLES = Path(__file__).parent.parent / "web" / "samples"
TEXT = (SAMPLES / "alice.txt").read_text(encoding="utf-8")[:4000]
OTHER = (SAMPLES / "time-machine.txt").read_text(encoding="utf-8")[:4000]


async def taught(text: str = TEXT, adapter: str = "Wells") -> Library:
    """A library over an empty store; its session has a model and one adapter, both unsaved."""
    session = await Session.open("numpy")
    await session.train(text, {"steps": 1})
    if adapter:
        await session.personalize(OTHER, adapter, {"steps": 1})
    return Library(session, MemoryStore())


async def written(library: Library, **options: object) -> str:
    return "".join([p async for p in library.session.stream("The", {"max_new_tokens": 12, **options})])


async def names(library: Library) -> dict[str, str]:
    return {item["name"]: item["kind"] for item in await library.items()}


# ---- saved things ---------------------------------------------------------------------------------------------


async def test_a_saved_set_comes_back_whole_in_another_session() -> None:
    library = await taught()
    texts = {a: await written(library, adapter=a) for a in (None, "Wells")}
    assert texts[None] != texts["Wells"]
    saved = await library.save(" Alice ")
    assert saved["model"]["saved"]
    assert saved["model"]["name"] == "Alice"
    assert {i["name"]: i["base"] for i in await library.items()} == {"Wells": "Alice", "Alice": ""}
    assert {r.kind for r in await library.store.list()} == {"base", "adapter", "tokenizer"}

    again = Library(await Session.open("numpy"), library.store)
    described = await again.load("Wells")  # an adapter brings its model
    assert described["active_adapter"] == "Wells"
    assert described["model"]["name"] == "Alice"
    assert {a: await written(again, adapter=a) for a in (None, "Wells")} == texts
    assert (await again.load("Alice"))["active_adapter"] is None


async def test_names_are_never_overwritten_by_something_else() -> None:
    library = await taught()
    await library.save("Alice")
    await library.save("Alice")  # the same thing again is fine
    other = await taught(OTHER, "Verne")
    other.store = library.store
    for name, why in (("Alice", "another saved model"), ("Wells", "another saved adapter"), ("Verne", "adapter")):
        with pytest.raises(InvalidArgumentError, match=why):
            await other.save(name)
    for name in ("", "  ", "a\nb", "x" * 81):
        with pytest.raises(InvalidArgumentError, match="name"):
            await other.save(name)
    assert await names(library) == {"Alice": "base", "Wells": "adapter"}


async def test_rename_and_delete_follow_into_memory() -> None:
    library = await taught()
    await library.save("Alice")
    assert (await library.rename("Alice", "Lewis"))["model"]["name"] == "Lewis"
    assert (await library.rename("Wells", "H. G."))["active_adapter"] == "H. G."
    with pytest.raises(InvalidArgumentError, match="taken"):
        await library.rename("Lewis", "H. G.")
    assert await names(library) == {"Lewis": "base", "H. G.": "adapter"}
    text = await written(library)
    filename, data = await library.export_file("Lewis")
    copy = (await library.import_file(data, filename))["name"]
    deleted = await library.delete(copy)
    assert deleted["needing"] == []  # the other one is still there
    assert (deleted["session"]["model"]["name"], deleted["session"]["model"]["saved"]) == ("Lewis", True)
    deleted = await library.delete("Lewis")
    assert deleted["needing"] == ["H. G."]
    assert not deleted["session"]["model"]["saved"]
    assert [(i["name"], i["base"]) for i in await library.items()] == [("H. G.", "")]
    assert not (await library.load("H. G."))["model"]["saved"]  # its model is still in memory
    assert await written(library) == text  # what is in memory stays
    assert [r.kind for r in await library.store.list()] == ["adapter"]  # the tokenizer went with its model
    with pytest.raises(StorageError, match="not in this browser"):
        await Library(await Session.open("numpy"), library.store).load("H. G.")
    with pytest.raises(RecordNotFoundError, match="no longer"):
        await library.load("Lewis")
    await library.save("Lewis")
    assert (await library.load("H. G."))["model"]["name"] == "Lewis"


async def test_deleting_by_mistake_can_be_undone() -> None:
    library = await taught()
    await library.save("Alice")
    text = await written(library)
    for name in ("Wells", "Alice"):
        filename, data = await library.export_file(name)
        described = (await library.delete(name))["session"]
        assert not all(x["saved"] for x in (described["model"], *described["adapters"]))
        imported = await library.import_file(data, filename)
        assert imported["name"] == name
        assert all(x["saved"] for x in (imported["session"]["model"], *imported["session"]["adapters"]))
    assert await written(library) == text


async def test_loading_keeps_adapters_that_are_not_saved_yet() -> None:
    library = await taught()
    await library.save("Alice")
    await library.session.personalize(OTHER, "Verne", {"steps": 1})
    filename, data = await library.export_file("Wells")
    described = await library.load("Alice")
    assert [(a["name"], a["saved"]) for a in described["adapters"]] == [("Wells", True), ("Verne", False)]
    await library.delete("Wells")
    await library.session.personalize(OTHER[::-1], "Wells", {"steps": 1})  # now another one has its name
    assert (await library.import_file(data, filename))["name"] == "Wells 2"


async def test_two_models_that_share_a_tokenizer_keep_it_until_the_last_goes() -> None:
    library = await taught(adapter="")
    await library.save("Alice")
    filename, data = await library.export_file("Alice")
    assert (await library.import_file(data, filename))["name"] == "Alice 2"
    assert len([r for r in await library.store.list() if r.kind == "tokenizer"]) == 1
    assert (await library.delete("Alice"))["needing"] == []
    assert (await library.load("Alice 2"))["model"]["name"] == "Alice 2"
    await library.delete("Alice 2")
    assert await library.store.list() == []


async def test_a_full_store_says_so_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    library = await taught()
    await library.save("Alice")
    before = await library.store.list()

    async def full(*_: object, **__: object) -> None:
        raise StorageFullError("browser storage is full: need 1.00 MiB, free 0.10 MiB")

    with monkeypatch.context() as patch:
        patch.setattr(library.store, "save_many", full)
        await library.session.personalize(OTHER, "Verne", {"steps": 1})
        with pytest.raises(StorageFullError, match="full"):
            await library.save("Alice")
    assert await library.store.list() == before
    assert not library.session.describe()["adapters"][1]["saved"]
    assert await written(library)


# ---- files ----------------------------------------------------------------------------------------------------


async def test_files_carry_a_model_and_its_adapter_to_another_browser() -> None:
    library = await taught()
    await library.save("Alice")
    text = await written(library, adapter="Wells")
    files = [await library.export_file(name) for name in ("Alice", "Wells")]
    assert [name for name, _ in files] == ["Alice.model.zip", "Wells.adapter.zip"]
    assert files == [await library.export_file(name) for name in ("Alice", "Wells")]  # the same bytes each time

    there = Library(await Session.open("numpy"), MemoryStore())
    with pytest.raises(EvermindError, match="model that this adapter belongs to first"):
        await there.import_file(files[1][1], files[1][0])
    for name, data in files:
        await there.import_file(data, name)
    await there.load("Wells")
    assert await written(there) == text


async def test_an_adapter_of_another_base_is_refused_by_fingerprint_and_by_shape() -> None:
    library = await taught()
    await library.save("Alice")
    filename, data = await library.export_file("Wells")
    assert library.session.current is not None
    blob = ew.EvermindLMLoRA(library.session.current.model, rank=2).serialize_adapter()
    peft = {name: data for name, data in unpack(data, filename).files.items() if name in PEFT}
    bare = stored_zip.write({**peft, PEFT[0]: peft[PEFT[0]].replace(b"base_fingerprint", b"elsewhere")})

    same_shape = await taught(TEXT[::-1], "")
    with pytest.raises(ConfigMismatchError, match="fingerprint"):
        await same_shape.import_file(data, filename)
    with pytest.raises(ConfigMismatchError, match="fingerprint"):
        await same_shape.import_file(stored_zip.write(peft), "adapter.zip")
    for file, name in ((blob, "Wells.lora"), (bare, "Wells.zip")):
        assert "only its shape was checked" in (await same_shape.import_file(file, name))["notice"]

    other_shape = await taught(TEXT[:1000], "")
    with pytest.raises(ConfigMismatchError, match=r"another model .*460, 64"):
        await other_shape.import_file(blob, "Wells.lora")
    with pytest.raises(ConfigMismatchError, match="token_embedding: adapter"):
        await other_shape.import_file(bare, "Wells.zip")
    assert await names(other_shape) == {}


async def test_a_bare_checkpoint_needs_its_own_tokenizer() -> None:
    library = await taught(adapter="")
    await library.save("Alice")
    files = unpack((await library.export_file("Alice"))[1], "x.zip").files
    there = Library(await Session.open("numpy"), MemoryStore())
    with pytest.raises(FormatError, match="no tokenizer"):
        await there.import_file(files[MODEL], "Alice.evl0")
    with pytest.raises(FormatError, match="together with its checkpoint"):
        await there.import_file(files[TOKENIZER], "tokenizer.json")
    with pytest.raises(FormatError, match=r"not a tokenizer\.json"):
        await there.import_file(files[MODEL], "Alice.evl0", b"[1, 2")
    small = await taught(TEXT[:1000], "")
    await small.save("Small")
    smaller = unpack((await small.export_file("Small"))[1], "x.zip").files[MODEL]
    with pytest.raises(ConfigMismatchError, match="460 tokens"):
        await there.import_file(smaller, "Small.evl0", files[TOKENIZER])
    rows = EvermindLM(BPETokenizer.from_str(files[TOKENIZER].decode()).vocab_size + 9, 4, 1, backend="numpy")
    with pytest.raises(ConfigMismatchError, match="does not belong to this model"):  # too few tokens are as wrong
        await there.import_file(rows.export_weights(), "More.evl0", files[TOKENIZER])
    assert (await there.import_file(files[MODEL], "Alice.evl0", files[TOKENIZER]))["name"] == "Alice"
    assert (await there.load("Alice"))["model"]["parameters"] > 100_000


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html><html><title>404 Not Found</title>", "web page.*404"),
        (b"\xef\xbb\xbf\n <html>", "web page"),
        (b"\x80\x04\x95abc", "pickle"),
        (b"\x89PNG\r\n\x1a\n", "PNG"),
        (b"just words", "not a model"),
        (b"PK\x03\x04 cut off", "damaged"),
        (b"0LVE\x01", "truncated"),
        (b"AROL\x01", "truncated"),
    ],
)
async def test_other_files_are_called_what_they_are(data: bytes, words: str) -> None:
    library = Library(await Session.open("numpy"), MemoryStore())
    with pytest.raises(FormatError, match=words):
        await library.import_file(data, "some.file")
    assert await library.store.list() == []


def test_a_package_is_refused_when_any_part_of_it_changed() -> None:
    data = pack(Package("adapter", "Wells", {ADAPTER: b"content of it"}, "ab" * 32))
    assert unpack(data, "x.zip").files[ADAPTER] == b"content of it"
    at = data.index(b"content of it")
    for broken in (data[: at + 5] + b"?" + data[at + 6 :], data[:-9], data[: len(data) // 2]):
        with pytest.raises(FormatError, match="damaged"):
            unpack(broken, "x.zip")


def repacked(manifest: dict[str, object], compression: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        archive.writestr(MANIFEST, json.dumps(manifest))
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (repacked({"format": "other"}), "not one that this page exported"),
        (repacked({"format": "evermind", "version": 2}), "version 2"),
        (repacked({"format": "evermind", "version": 1, "kind": "base"}), "cannot read"),
        (repacked({"format": "evermind", "version": 1, "x": "y" * 9999}, zipfile.ZIP_DEFLATED), "packed again"),
    ],
)
def test_foreign_and_newer_zips_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        unpack(data, "x.zip")


# ---- texts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xef\xbb\xbfna\xc3\xafve\r\nyes\rno", "naïve\nyes\nno"),
        ("\ufeffhi".encode("utf-16-le"), "hi"),
        ("\ufeffhi".encode("utf-16-be"), "hi"),
        ("tab\there", "tab\there"),
    ],
)
def test_text_files_are_read(data: bytes | str, text: str) -> None:
    assert read_text(data) == text


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "photo.png looks like a binary file"),
        (b"caf\xe9 au lait", "photo.png is not UTF-8 text .byte 3"),
        ("\x01\x02\x03\x04", "binary"),
    ],
)
def test_what_is_not_text_is_refused_by_name(data: bytes | str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        read_text(data, "photo.png")


@pytest.mark.parametrize(("text", "words"), [("", "no text yet"), (" \n", "no text yet"), ("Hello", "1 word")])
def test_too_little_text_is_refused_with_advice(text: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        check_learnable(text)
    check_learnable("word " * 50)


def test_windows_have_one_length_and_cover_short_texts() -> None:
    for count in (2, 3, 10, 64, 65, 130):
        windows = training_windows(range(100, 100 + count), 3, 1, [0, 5], 1)
        assert len(windows) == 24
        assert {len(w) for w in windows} == {min(64, count)}
        assert [i for i, w in enumerate(windows) if w[0] == 1] == [0, 8, 16]
    assert {w[0] for w in training_windows(range(100, 300), 20, 1, [7], 1)[0::8]} == {1}
    assert training_windows(range(64), 2, 5, [0], 1) == training_windows(range(64), 2, 5, [0], 1)


def test_every_token_of_a_text_is_read() -> None:
    seen = {i for w in training_windows(range(100, 400), 30, 1, [0], 1) for i in w}
    assert seen == {1, *range(100, 400)}


def test_held_out_text_is_its_end_and_never_empty() -> None:
    for count in (0, 1):
        with pytest.raises(InvalidArgumentError, match=f"need at least 2 tokens, got {count}"):
            split(range(count))
    short, long = split(range(2)), split(range(1000))
    assert (short.train, short.held_out) == ([0, 1], [0, 1])
    assert (long.train[-1], long.held_out[0], len(long.held_out)) == (899, 900, 100)


def test_an_excerpt_is_spread_over_the_text_and_ends_at_lines() -> None:
    text = "".join(f"line {i}\n" for i in range(10_000))
    part = excerpt(text, 5000)
    assert len(part) <= 5100
    lines = part.split("\n")
    assert all(line.startswith("line ") for line in lines if line)
    assert int(lines[-1].split()[1]) > 9900
    assert excerpt(text, 10**6) == text
    assert 900 < len(excerpt("x" * 10_000, 1000)) <= 1100
