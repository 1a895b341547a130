"""What comes from files and undone deletions replaces nothing, and only what it says in the right shape is believed."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from evermind_web.errors import EvermindError, FormatError, InvalidArgumentError
from evermind_web.session.core import Session
from evermind_web.session.library import Library
from evermind_web.session.metadata import training_of
from evermind_web.session.personas import Personas
from evermind_web.store import MemoryStore, SaveItem
from evermind_web.store.backup import export_all
from tests.test_personas import OTHER, TEXT, personas, written

RUN: dict[str, Any] = {
    "steps": 3, "loss_before": 2.5, "loss_after": 2.0, "first_loss": None, "stopped": True, "notices": ["GPU lost"],
    "date": "2026-11-30T16:00:00.000Z",
    "record": {"points": [[1, 2.0, 0.5]], "held_out": [[0, 2.5]], "skipped": 0},
    "persona": {"colour": "#aa0000", "texts": [{"id": "a", "title": "b", "words": 4}]},
}  # fmt: skip
LIES: list[tuple[str, Any]] = [
    ("loss_after", "x"), ("loss_before", float("inf")), ("steps", 10**400), ("seconds", float("nan")), ("stopped", 1),
    ("record", {"points": "abc", "held_out": [], "skipped": 0}), ("record", RUN["record"] | {"heldOut": 5}),
    ("record", {"points": [[1, 2, None]], "held_out": [], "skipped": 0}), ("persona", []),
    ("persona", {"texts": [None]}), ("persona", {"texts": {"a": 1}}), ("notices", "abc"),
    ("persona", {"texts": [{"id": 5, "title": {}, "words": "x"}]}),
    ("lossAfter", 1.0),
    ("date", 5), ("date", "yesterday"), ("date", "2026-11-31T16:00:00.000Z"), ("date", "2026-11-30"),
    ("persona", {"texts": [{"id": "a", "title": "b", "words": 4, "date": "soon"}]}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), LIES, ids=[f"{n}={str(v)[:30]}" for n, v in LIES])
def test_what_a_file_says_of_a_run_is_left_out_where_it_does_not_fit(name: str, value: Any) -> None:
    assert training_of({"training": RUN}) == RUN
    assert training_of({"training": RUN | {name: value}}) == {k: v for k, v in RUN.items() if k != name}
    assert training_of({"training": [value]}) == training_of({}) == {}


async def test_everything_a_run_tells_is_known() -> None:
    made = await personas()
    for adapter in made.library.session.describe()["adapters"]:
        assert training_of(adapter) == adapter["training"]
    model = made.library.session.describe()["model"]
    assert training_of(model) == model["training"]


async def test_undo_replaces_nothing_that_has_the_name_by_now() -> None:
    made = await personas()
    await made.learn(TEXT.upper(), "Loud", {"steps": 3})
    alone = {name: await written(made, adapter=name) for name in ("Wells", "Loud")}
    _, undo = await made.remove("Wells")
    await made.rename("Loud", "Wells")
    assert (await made.library.put_back(undo))["names"] == ["Wells 2"]
    clean = Personas(Library(await Session.open("numpy"), made.library.store))
    await clean.library.load("Alice")
    for found in (made, clean):
        assert await written(found, adapter="Wells") == alone["Loud"]
        assert await written(found, adapter="Wells 2") == alone["Wells"]


async def test_a_backup_replaces_nothing_that_learned_since() -> None:
    made = await personas()
    backup = await made.library.backup()
    before = await written(made, adapter="Wells")
    assert sorted(await made.library.restore(backup)) == ["Alice", "Wells"]  # all is here already
    assert {a["name"] for a in made.library.session.describe()["adapters"]} == {"Wells"}
    await made.learn(TEXT.upper(), "Wells", {"steps": 3})
    after = await written(made, adapter="Wells")
    assert sorted(await made.library.restore(backup)) == ["Alice", "Wells 2"]
    assert await written(made, adapter="Wells") == after != before
    assert await written(made, adapter="Wells 2") == before


@pytest.mark.parametrize(
    ("kind", "name"), [("tokenizer", "tokenizer:0123456789abcdef"), ("text", "text:0"), ("base", "text:1")]
)
async def test_a_backup_whose_records_are_not_what_their_names_say_is_refused(kind: str, name: str) -> None:
    evil = MemoryStore()
    await evil.save_many([SaveItem(name, b"anything", kind)])
    library = Library(await Session.open("numpy"), MemoryStore())
    with pytest.raises(FormatError, match="is not what its name says"):
        await library.restore(await export_all(evil))
    assert await library.store.list() == []


async def test_a_base_that_claims_another_as_its_tokenizer_does_not_take_it_along() -> None:
    made = await personas()
    (base,) = [r for r in await made.library.store.list() if r.kind == "base"]
    await made.library.store.save_many([SaveItem("Evil", b"model", "base", "0", {"tokenizer": "Alice"})])
    await made.library.delete("Evil")
    assert base.name in [r.name for r in await made.library.store.list()]


async def test_a_loaded_personas_texts_outlive_their_records() -> None:
    made = await personas()
    again = Personas(Library(await Session.open("numpy"), made.library.store))
    await again.library.load("Alice")
    await made.library.delete("Wells")  # as another tab does
    await again.library.save("Alice")
    assert [t["text"] for t in await again.texts("Wells")] == [OTHER]


async def test_a_name_that_could_not_be_saved_is_refused_before_anything_is_learned() -> None:
    made = await personas()
    with pytest.raises(InvalidArgumentError, match="“Alice” is the name of another saved model"):
        await made.learn(OTHER, "Alice", {"steps": 3})
    # Taken meanwhile, by another tab: what was learned stays in memory, and the notice says so.
    reports: list[dict[str, Any]] = []
    store = made.library.store
    real = store.list

    async def taken() -> list[Any]:
        if any(r["phase"] == "train" for r in reports):
            await store.save("Loud", b"x", "base", "0", replace=True)
        return await real()

    store.list = taken  # type: ignore[method-assign]
    result = await made.learn(OTHER, "Loud", {"steps": 3}, reports.append)
    assert "“Loud” is not saved: “Loud” is the name of another saved model" in result["notice"]
    assert [a["saved"] for a in result["session"]["adapters"] if a["name"] == "Loud"] == [False]


async def test_stop_is_heard_while_earlier_texts_are_looked_up() -> None:
    made = await personas()
    before = copy.deepcopy(made.library.session.describe())
    store, real = made.library.store, made.library.store.list

    async def stopped() -> list[Any]:
        made.library.session.stop()
        return await real()

    store.list = stopped  # type: ignore[method-assign]
    result = await made.learn(TEXT.upper(), "Wells", {"steps": 3, "go_on": True})
    assert (result["stopped"], result["steps"]) == (True, 0)
    assert result["session"] == before


async def test_renaming_what_another_tab_deleted_is_refused_by_name() -> None:
    made = await personas()
    await made.library.store.delete("Wells")
    with pytest.raises(EvermindError, match="Wells"):
        await made.library.rename("Wells", "H. G.")
