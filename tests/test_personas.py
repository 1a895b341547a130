"""Personas in CPython on NumPy: their texts, learning on, copies, mixing; backups; what a reader can look at."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evermind_web as ew
from evermind_web.errors import EvermindError, FormatError, InvalidArgumentError
from evermind_web.session import Library, Session, recipes
from evermind_web.session.container import unpack
from evermind_web.session.following import follow
from evermind_web.session.personas import Personas
from evermind_web.store import MemoryStore

SAMPLES = Path(__file__).parent.parent / "web" / "samples"
TEXT = (SAMPLES / "alice.txt").read_text(encoding="utf-8")[:4000]
OTHER = (SAMPLES / "time-machine.txt").read_text(encoding="utf-8")[:4000]


async def personas(saved: bool = True) -> Personas:
    """A model with one persona, "Wells", that knows one text."""
    session = await Session.open("numpy")
    await session.train(TEXT, {"steps": 2})
    made = Personas(Library(session, MemoryStore()))
    if saved:
        await made.library.save("Alice")
    await made.learn(OTHER, "Wells", {"steps": 2, "title": "machine.txt", "colour": "#aa0000"})
    return made


async def written(made: Personas, **options: Any) -> str:
    return "".join([p async for p in made.library.session.stream("The", {"max_new_tokens": 16, **options})])


async def kinds(made: Personas) -> list[str]:
    return sorted(r.kind for r in await made.library.store.list())


async def test_a_persona_of_a_saved_model_is_saved_at_once_with_its_text() -> None:
    made = await personas()
    assert await kinds(made) == ["adapter", "base", "text", "tokenizer"]
    (adapter,) = made.library.session.describe()["adapters"]
    assert adapter["saved"]
    assert adapter["training"]["persona"]["colour"] == "#aa0000"
    (text,) = await made.texts("Wells")
    assert (text["title"], text["text"], text["words"]) == ("machine.txt", OTHER, len(OTHER.split()))
    json.dumps(adapter)


async def test_a_persona_of_an_unsaved_model_waits_for_it() -> None:
    made = await personas(saved=False)
    assert await kinds(made) == []
    with pytest.raises(EvermindError, match="Save the model"):
        await made.remove("Wells")
    await made.library.save("Alice")
    assert await kinds(made) == ["adapter", "base", "text", "tokenizer"]


async def test_learning_on_starts_from_what_it_knows_and_keeps_both_texts() -> None:
    made = await personas()
    before = await written(made)
    result = await made.learn(TEXT.upper(), "Wells", {"steps": 1, "title": "loud", "go_on": True})
    first = made.library.session.describe()["adapters"][0]["training"]
    assert [t["title"] for t in await made.texts("Wells")] == ["machine.txt", "loud"]
    assert result["characters"] > len(OTHER) + len(TEXT)
    assert first["persona"]["colour"] == "#aa0000"
    assert await written(made) != before
    assert not result["replaced"]


async def test_learning_anew_under_a_name_can_be_undone_and_leaves_no_text_behind() -> None:
    made = await personas()
    before = await written(made)
    first = made.library.session.describe()["adapters"]
    assert (await made.learn(TEXT.upper(), "Wells", {"steps": 2}))["replaced"]
    assert [t["text"] for t in await made.texts("Wells")] == [TEXT.upper()]
    assert await kinds(made) == ["adapter", "base", "text", "tokenizer"]  # nobody learned from the other text
    undone = await made.unreplace()
    assert undone["session"]["adapters"] == first
    assert await written(made) == before
    assert [t["text"] for t in await made.texts("Wells")] == [OTHER]
    clean = Personas(Library(await Session.open("numpy"), made.library.store))
    await clean.library.load("Wells")
    assert await written(clean) == before
    assert [t["text"] for t in await clean.texts("Wells")] == [OTHER]
    assert await kinds(made) == ["adapter", "base", "text", "tokenizer"]
    with pytest.raises(EvermindError, match="another model"):
        await made.unreplace()  # once
    await made.learn(TEXT.upper(), "Wells", {"steps": 1})
    await made.library.session.train(OTHER, {"steps": 1})
    with pytest.raises(EvermindError, match="another model"):
        await made.unreplace()


@pytest.mark.parametrize("go_on", [False, True])
async def test_two_tabs_that_teach_one_persona_at_once_lose_nothing(go_on: bool, monkeypatch: Any) -> None:
    made = await personas()
    store, session = made.library.store, made.library.session
    other = Personas(Library(await Session.open("numpy"), store))
    await other.library.load("Alice")
    learn = session.personalize

    async def longer(*arguments: Any) -> dict[str, Any]:
        result = await learn(*arguments)
        theirs = await other.learn(TEXT.upper(), "Wells", {"steps": 1, "title": "loud", "go_on": go_on})
        assert (theirs["name"], theirs["notice"]) == ("Wells", "")
        return result

    monkeypatch.setattr(session, "personalize", longer)
    result = await made.learn(TEXT, "Wells", {"steps": 1, "title": "quiet", "go_on": go_on})
    assert result["name"] == "Wells 2"
    assert (
        "“Wells” was taught in another tab meanwhile and is as that left it; this one is “Wells 2”" in result["notice"]
    )
    assert (result["replaced"], session.active_adapter) == (False, "Wells 2")
    here = {a["name"]: [t["title"] for t in a["training"]["persona"]["texts"]] for a in session.describe()["adapters"]}
    first = ["machine.txt"] * go_on
    assert here == {"Wells": [*first, "loud"], "Wells 2": [*first, "quiet"]}
    third = Personas(Library(await Session.open("numpy"), store))
    await third.library.load("Alice")
    for name in here:
        assert third._current().adapter(name).data == made._current().adapter(name).data
        assert all(text["text"] for text in await third.texts(name))
    monkeypatch.undo()
    assert (await made.learn(TEXT, "Wells 2", {"steps": 1}))["name"] == "Wells 2"


async def test_learning_on_does_not_begin_at_the_base() -> None:
    made = await personas()
    await made.learn(OTHER, "Wells", {"steps": 8})
    fresh = await made.learn(OTHER + OTHER, "Fresh", {"steps": 1})
    again = await made.learn(OTHER, "Wells", {"steps": 1, "go_on": True})
    assert again["loss_before"] < fresh["loss_before"] - 0.01


async def test_a_text_can_be_forgotten_while_a_copy_that_needs_it_keeps_it() -> None:
    made = await personas()
    copy = (await made.duplicate("Wells"))["name"]
    assert copy == "Wells 2"
    assert await written(made, adapter=copy) == await written(made, adapter="Wells")
    (text,) = await made.texts("Wells")
    await made.remove_text("Wells", text["id"])
    assert (await made.texts("Wells"))[0]["text"] == ""
    assert (await made.texts(copy))[0]["text"] == OTHER
    await made.remove_text(copy, text["id"])
    assert "text" not in await kinds(made)


async def test_delete_and_put_back() -> None:
    made = await personas()
    text = await written(made)
    description, undo = await made.remove("Wells")
    assert description["adapters"] == []
    assert await kinds(made) == ["base", "tokenizer"]
    await made.library.put_back(undo)
    assert await written(made, adapter="Wells") == text
    assert (await made.texts("Wells"))[0]["text"] == OTHER


async def test_rename_and_paint_reach_the_store() -> None:
    made = await personas()
    await made.rename("Wells", "H. G.")
    await made.paint("H. G.", "#00aa00")
    session = await Session.open("numpy")
    again = Personas(Library(session, made.library.store))
    await again.library.load("Alice")
    (adapter,) = session.describe()["adapters"]
    assert adapter["name"] == "H. G."
    assert adapter["training"]["persona"]["colour"] == "#00aa00"
    assert (await again.texts("H. G."))[0]["text"] == OTHER


async def test_what_another_tab_taught_or_deleted_since_outlives_a_new_colour_and_a_removed_text() -> None:
    one = await personas()
    other = Personas(Library(await Session.open("numpy"), one.library.store))
    await other.library.load("Alice")
    await other.learn(TEXT.upper(), "Wells", {"steps": 1, "title": "loud", "go_on": True})
    taught = (await one.library.store.load("Wells"))[1]
    older = one.library.session.current.adapter("Wells").data  # type: ignore[union-attr]
    await one.paint("Wells", "#00ff00")
    await one.remove_text("Wells", (await one.texts("Wells"))[0]["id"])
    record, data = await one.library.store.load("Wells")
    persona = record.metadata["training"]["persona"]
    assert data == taught != older
    assert persona["colour"] == "#00ff00"
    assert [(t["title"], t.get("removed", False)) for t in persona["texts"]] == [("machine.txt", True), ("loud", False)]
    assert (await follow(one.library))["notices"] == [
        "“Wells” was changed in another tab; here it is the new one now, too."
    ]
    assert (await one.texts("Wells"))[1]["text"] == TEXT.upper()

    await other.remove("Wells")
    await one.paint("Wells", "#0000ff")
    assert "was deleted in another tab" in (await follow(one.library))["notices"][0]


async def test_a_mix_of_everything_of_one_is_that_one() -> None:
    made = await personas()
    session = made.library.session
    await made.learn(TEXT.upper(), "Loud", {"steps": 3})
    alone = {name: await written(made, adapter=name) for name in ("Wells", "Loud")}
    for name in alone:
        session.set_mix({"Wells": float(name == "Wells"), "Loud": float(name == "Loud")})
        assert await written(made) == alone[name]
    session.set_mix({"Wells": 0.5, "Loud": 0.5})
    assert session.describe()["mix"] == {"Wells": 0.5, "Loud": 0.5}
    assert await written(made) not in ("", alone["Wells"])
    assert session.set_adapter("Loud")["mix"] == {}
    assert await written(made) == alone["Loud"]
    with pytest.raises(InvalidArgumentError, match="no adapter called"):
        session.set_mix({"Nobody": 1.0})
    for share in (1e30, -11, "half", True):
        with pytest.raises(InvalidArgumentError, match="share of “Loud” must be a number from -10 to 10, got"):
            session.set_mix({"Loud": share})  # type: ignore[dict-item]


async def test_an_embedding_only_persona_of_before_works_beside_new_ones() -> None:
    made = await personas()
    current = made.library.session.current
    assert current is not None
    old = ew.EvermindLMLoRA(current.model, rank=4)
    old.adapter.B[:] = np.random.default_rng(1).normal(0, 0.1, old.adapter.B.shape)
    await made.library.store.save("Old", old.serialize_adapter(), "adapter", current.fingerprint, {"training": {}})
    again = Personas(Library(await Session.open("numpy"), made.library.store))
    await again.library.load("Old")
    alone = await written(again)
    codec = current.tokenizer
    assert alone.encode()[:8] == codec.decode(old.generate(codec.encode("The"), 16, 0.8)).encode()[:8]
    again.library.session.set_mix({"Old": 0.5, "Wells": 0.5})
    assert await written(again) not in (alone, await written(again, adapter="Wells"))
    filename, data = await again.library.export_file("Old")
    assert list(unpack(data, filename).files) == ["adapter.lora"]
    result = await again.learn(TEXT.upper(), "Old", {"steps": 4, "go_on": True})
    assert result["loss_after"] < result["loss_before"]
    assert (await again.duplicate("Old"))["name"] == "Old 2"


async def test_an_exported_persona_is_a_peft_folder_in_half_precision() -> None:
    made = await personas()
    session = made.library.session
    assert session.current is not None
    model, texts = session.current.model, [await written(made, adapter=None), await written(made)]
    filename, data = await made.library.export_file("Wells")
    files = unpack(data, filename).files
    assert sorted(files) == ["adapter_config.json", "adapter_model.safetensors"]
    lora = ew.LoraModel(model)
    lora.load_adapter("Wells", files)  # its base is checked by fingerprint
    assert set(lora.adapter("Wells").parts) == {
        p.name for p in model.parameters() if p.name.endswith(("embedding.weight", "w1", "w2"))
    }
    values = sum(part.num_params() for part in lora.adapter("Wells").parts.values())
    assert session.describe()["adapters"][0]["bytes"] == pytest.approx(2 * values, abs=8000)  # names
    assert [await written(made, adapter=None), await written(made)] == texts


async def test_what_helps_nothing_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = await personas()
    monkeypatch.setattr(recipes, "ONE_TEXT_RATE", 30.0)
    result = await made.learn(TEXT.upper(), "Ruin", {"steps": 2})
    assert not result["kept"]
    assert result["loss_after"] == result["loss_before"]
    assert "writes as before" in result["notice"]
    assert await written(made, adapter="Ruin") == await written(made, adapter=None)
    before = await written(made, adapter="Wells")
    assert not (await made.learn(TEXT.upper(), "Wells", {"steps": 2, "go_on": True}))["kept"]
    assert await written(made, adapter="Wells") == before


async def test_early_stop_ends_a_run_that_gains_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    made = await personas()
    monkeypatch.setattr(recipes, "ONE_TEXT_RATE", 0.06)
    result = await made.learn(OTHER, "Sated", {"length": "normal"})
    record = result["record"]["held_out"]
    assert result["steps"] < 40 < recipes.Recipe().epochs(11) * 2
    assert not result["stopped"]
    assert result["loss_after"] == pytest.approx(min(loss for _, loss in record), abs=1e-3)  # the best is kept


async def test_three_sides_write_what_each_writes_alone() -> None:
    made = await personas()
    await made.learn(TEXT.upper(), "Loud", {"steps": 3})
    options = {"max_new_tokens": 16, "adapter": "Wells", "second": "Loud"}
    sides = {"base": "", "adapter": "", "second": ""}
    async for side, piece in made.library.session.compare("The", options):
        sides[side] += piece
    assert sides["base"] == await written(made, adapter=None)
    assert sides["adapter"] == await written(made, adapter="Wells")
    assert sides["second"] == await written(made, adapter="Loud")


async def test_only_the_end_of_a_huge_text_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made = await personas()
    session = made.library.session
    assert session.current is not None
    read: list[int] = []
    encode = session.current.tokenizer.encode

    def counted(text: str) -> list[int]:
        read.append(len(text))
        return encode(text)

    monkeypatch.setattr(session.current.tokenizer, "encode", counted)
    long = "It was the best of times. " * 2000
    text = "".join([p async for p in session.stream(long, {"max_new_tokens": 8})])
    assert text == "".join([p async for p in session.stream(long[-20_000:], {"max_new_tokens": 8})])
    await session.token_shares(long, None)
    assert read == [20_000] * 3


async def test_backup_wipe_and_restore() -> None:
    made = await personas()
    text = await written(made)
    backup = await made.library.backup()
    file = await made.library.export_file("Wells")
    dates = [(item["name"], item["date"]) for item in await made.library.items()]
    said = (await made.library.storage())["kinds"]
    assert said["text"] == [1, len(OTHER.encode())]
    assert sum(size for _, size in said.values()) == (await made.library.storage())["used"]
    await made.library.wipe()
    assert not any(map(sum, (await made.library.storage())["kinds"].values()))
    assert await kinds(made) == []
    assert not made.library.session.describe()["model"]["saved"]
    with pytest.raises(FormatError):
        await made.library.restore(backup[:-40])
    clean = Personas(Library(await Session.open("numpy"), MemoryStore()))
    assert sorted(await clean.library.restore(backup)) == ["Alice", "Wells"]
    await clean.library.load("Wells")
    assert await written(clean) == text
    assert (await clean.texts("Wells"))[0]["text"] == OTHER
    # Not the time of the restore, nor that of an import or of another colour.
    assert [(item["name"], item["date"]) for item in await clean.library.items()] == dates
    await clean.paint("Wells", "#00aa00")
    await clean.library.import_file(file[1], file[0])
    found = {item["name"]: item["date"] for item in await clean.library.items()}
    assert found["Wells"] == found["Wells 2"] == dict(dates)["Wells"]
    assert (await clean.texts("Wells"))[0]["date"] == found["Wells"]


async def test_a_runs_record_has_both_curves() -> None:
    made = await personas()
    record = made.library.session.describe()["adapters"][0]["training"]["record"]
    assert [p[0] for p in record["points"]] == [1, 2]
    assert all(len(p) == 3 and p[2] > 0 for p in record["points"])
    assert record["held_out"][0][0] == 0
    assert record["skipped"] == 0
    await made.learn(OTHER, "Long", {"steps": 21})
    steps = [p[0] for p in made.library.session.describe()["adapters"][1]["training"]["record"]["held_out"]]
    assert steps == [0, *range(2, 23, 2)]  # after each pass


async def test_token_shares_are_the_models_own_probabilities() -> None:
    made = await personas()
    session = made.library.session
    shown = await session.token_shares("Alice was", None)
    assert "".join(t["text"] for t in shown) == "Alice was"
    assert all(0 < t["p"] <= t["others"][0][1] <= 1 for t in shown)
    assert session.current is not None
    ids = [session.current.tokenizer.bos_id, *session.current.tokenizer.encode("Alice was")]
    logits = session.current.model.forward(ids)[0].astype(np.float64)
    assert shown[0]["p"] == pytest.approx(np.exp(logits[ids[1]]) / np.exp(logits).sum(), rel=1e-4)
    assert await session.token_shares("", None) == []


async def test_expert_shares_sum_to_one_in_every_layer() -> None:
    made = await personas()
    shares = await made.library.session.expert_shares(TEXT, "Wells")
    assert [len(row) for row in shares] == [4, 4]
    assert [sum(row) for row in shares] == pytest.approx([1, 1], abs=1e-3)


async def test_sampling_settings_are_named_when_they_are_wrong() -> None:
    made = await personas()
    assert await written(made, temperature=1.0, top_k=1) == await written(made, temperature=0.0)
    for options, words in (({"top_p": 0}, "top_p"), ({"min_p": 1}, "min_p"), ({"top_k": -1}, "top_k")):
        with pytest.raises(InvalidArgumentError, match=words):
            await written(made, **options)


async def test_a_paused_run_goes_on_and_ends_with_the_same_losses() -> None:
    session = await Session.open("numpy")
    straight = await session.train(TEXT, {"steps": 12})
    points: list[int] = []
    paused = asyncio.Event()

    def report(progress: dict[str, Any]) -> None:
        points.extend(int(p[0]) for p in progress.get("points", []))
        if points and points[-1] >= 4 and not paused.is_set():
            session.pause(True)
            paused.set()

    run = asyncio.create_task(session.train(TEXT, {"steps": 12}, report))
    await paused.wait()
    await asyncio.sleep(0.3)
    assert not run.done()
    session.pause(False)
    result = await run
    assert result["steps"] == 12
    assert result["loss_after"] == straight["loss_after"]
    assert points == list(range(1, 13))


async def test_stop_ends_a_pause_and_keeps_what_was_learned() -> None:
    session = await Session.open("numpy")

    def report(progress: dict[str, Any]) -> None:
        if progress["phase"] == "train" and progress["step"] < 100:
            session.pause(True)
            asyncio.get_running_loop().call_later(0.2, session.stop)

    result = await asyncio.wait_for(session.train(TEXT, {"steps": 100}, report), 60)
    assert result["stopped"]
    assert 1 <= result["steps"] < 100
    assert result["loss_after"] < result["loss_before"]
