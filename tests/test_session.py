"""The page's story in CPython on NumPy: learning, writing, adapters, Stop, and the one-job rule."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evermind_web.errors import DeviceLostError, EvermindError, InvalidArgumentError, WebGPUUnavailableError
from evermind_web.formats.arch import Arch
from evermind_web.session import Face, Library, Session, recipes
from evermind_web.session.face import LABELS
from evermind_web.session.recipes import SAMPLING, merges_for, sampling, steps_for
from evermind_web.store import MemoryStore

SAMPLES = Path(__file__).parent.parent / "web" / "samples"
ALICE = (SAMPLES / "alice.txt").read_text(encoding="utf-8")
WELLS = (SAMPLES / "time-machine.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
async def taught() -> Session:
    """A session whose model had a dozen steps on the sample; tests must not train its base."""
    session = await Session.open("numpy")
    await session.train(ALICE, {"steps": 12})
    return session


async def written(session: Session, prompt: str, **options: Any) -> str:
    return "".join([piece async for piece in session.stream(prompt, options)])


async def test_training_lowers_the_loss_on_text_that_was_held_out(taught: Session) -> None:
    assert taught.current is not None
    training = taught.current.metadata
    assert training["steps"] == 12
    assert training["loss_after"] < training["loss_before"] - 0.5
    assert training["loss_before"] == pytest.approx(6.24, abs=0.3)  # ln 512: it knows nothing yet
    assert 4 < training["unigram"] < training["loss_before"]
    assert taught.describe()["model"]["vocab_size"] == 512


async def test_progress_names_phases_in_order_and_loses_no_point() -> None:
    session = await Session.open("numpy")
    reports: list[dict[str, Any]] = []
    await session.train(ALICE[:3000], {"steps": 3}, reports.append)
    phases = list(dict.fromkeys(r["phase"] for r in reports))
    assert phases == ["tokenizer", "encode", "evaluate", "train"]
    training = [r for r in reports if r["phase"] == "train"]
    assert [p[0] for r in training for p in r["points"]] == [1, 2, 3]
    assert training[-1]["seconds_left"] == 0
    assert training[-1]["tokens_per_second"] > 0
    json.dumps(reports)


async def test_writing_is_seeded_and_an_empty_prompt_starts_by_itself(taught: Session) -> None:
    first = await written(taught, "Alice", seed=7, max_new_tokens=24)
    assert first
    assert first == await written(taught, "Alice", seed=7, max_new_tokens=24)
    assert first != await written(taught, "Alice", seed=8, max_new_tokens=24)
    for prompt in ("", " ", "\n\n"):
        assert await written(taught, prompt, max_new_tokens=8)


async def test_special_tokens_never_show(taught: Session) -> None:
    text = await written(taught, "<|im_end|>a<|endoftext|>", seed=5, temperature=5, max_new_tokens=200)
    assert "<|" not in text
    assert "<unk>" not in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**32}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"max_new_tokens": 0}, "tokens"),
    ],
)
def test_sampling_options_are_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        sampling(options)
    assert sampling({"seed": 2**32 - 1, "temperature": 0}).temperature == 0


async def test_an_adapter_learns_and_the_base_keeps_its_bytes(taught: Session) -> None:
    assert taught.current is not None
    before = hashlib.sha256(await taught.current.model.export_weights_async()).hexdigest()
    result = await taught.personalize(WELLS, " Wells ", {"steps": 8})
    assert result["loss_after"] < result["loss_before"]
    assert result["name"] == taught.active_adapter == "Wells"
    assert hashlib.sha256(await taught.current.model.export_weights_async()).hexdigest() == before

    options = {"seed": 3, "max_new_tokens": 20}
    base = await written(taught, "The time", adapter=None, **options)
    voice = await written(taught, "The time", adapter="Wells", **options)
    assert base != voice
    assert await written(taught, "The time", **options) == voice  # the active one
    sides: dict[str, str] = {"base": "", "adapter": ""}
    async for side, piece in taught.compare("The time", options):
        sides[side] += piece
    assert sides == {"base": base, "adapter": voice}
    taught.set_adapter(None)
    assert await written(taught, "The time", **options) == base
    with pytest.raises(InvalidArgumentError, match="no adapter called “Verne”"):
        taught.set_adapter("Verne")


async def test_stop_keeps_what_was_learned() -> None:
    session = await Session.open("numpy")

    def stop_at_tenth(report: dict[str, Any]) -> None:  # the very first steps may make the loss worse
        if report["phase"] == "train" and report["step"] >= 10:
            session.stop()

    result = await session.train(ALICE, {"steps": 500}, stop_at_tenth)
    assert result["stopped"]
    assert 10 <= result["steps"] <= 100
    assert result["loss_after"] < result["loss_before"]
    assert session.current is not None


async def test_stop_before_the_first_step_leaves_the_model_as_it_was(taught: Session) -> None:
    held = taught.current
    result = await taught.train(WELLS, {"steps": 500}, lambda report: taught.stop())
    assert result["stopped"]
    assert result["steps"] == 0
    assert taught.current is held
    assert await written(taught, "Alice", max_new_tokens=3)


async def test_stop_ends_writing_and_so_does_leaving_the_loop(taught: Session) -> None:
    pieces = []
    async for piece in taught.stream("Alice", {"max_new_tokens": 1000}):
        pieces.append(piece)
        taught.stop()
    assert len(pieces) <= 2
    stream = taught.stream("Alice", {"max_new_tokens": 1000})
    await anext(stream)
    assert taught.busy
    await stream.aclose()
    assert not taught.busy


async def test_a_second_job_is_refused_by_the_name_of_the_first(taught: Session) -> None:
    stream = taught.stream("Alice", {"max_new_tokens": 100})
    await anext(stream)
    with pytest.raises(EvermindError, match="Writing is still running"):
        await taught.train(ALICE, {"steps": 1})
    await stream.aclose()


async def test_without_a_model_every_use_says_what_to_do() -> None:
    session = await Session.open("numpy")
    with pytest.raises(EvermindError, match="Teach one a text first"):
        await anext(session.stream("x"))
    with pytest.raises(EvermindError, match="Teach one a text first"):
        await session.personalize(WELLS, "Wells")
    with pytest.raises(EvermindError, match="Teach one a text first"):
        await Library(session, MemoryStore()).save("Alice")


async def test_the_backend_falls_back_with_a_reason_unless_it_was_asked_for() -> None:
    session = await Session.open()
    assert session.describe()["backend"] == "numpy"
    assert "webgpu" in session.describe()["fallback_reason"]
    with pytest.raises(WebGPUUnavailableError):
        await Session.open("webgpu")


async def test_a_lost_device_costs_only_the_run_in_flight(taught: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    assert taught.current is not None
    model, expected = taught.current.model, await written(taught, "Alice", max_new_tokens=12)

    async def lost(*_: Any, on_step: Any, **__: Any) -> Any:
        on_step(SimpleNamespace(step=3, total_steps=5, loss=6.0, grad_norm=1.0, skipped=False, tokens=100, seconds=1.0))
        raise DeviceLostError("the GPU device was lost (unknown: hung); request a new backend")

    with monkeypatch.context() as patch:
        patch.setattr("evermind_web.training.EvermindLMTrainer.fit_async", lost)
        with pytest.raises(DeviceLostError, match=r"GPU lost at step 3 \(unknown: hung\).*Try again"):
            await taught.train(WELLS, {"steps": 5})
    assert taught.current.model is not model
    assert await written(taught, "Alice", max_new_tokens=12) == expected


def test_recipes_fit_the_text() -> None:
    assert merges_for("x" * 100_000) == 252
    assert merges_for("x" * 1000) == 50
    assert (steps_for("quick", None), steps_for("quick", 7)) == (40, 7)
    for length, steps in (("brief", None), ("quick", 0), ("quick", 1.5)):
        with pytest.raises(InvalidArgumentError):
            steps_for(length, steps)  # type: ignore[arg-type]


# ---- the worker's entry ---------------------------------------------------------------------------------------


class Call:
    """Calls `Face.handle` as the worker does."""

    def __init__(self, face: Face) -> None:
        self.face = face
        self.events: list[dict[str, Any]] = []
        self.next_id = 1

    async def __call__(self, method: str, *buffers: bytes, **arguments: Any) -> Any:
        text, self.payload = await self.face.handle(
            self.next_id, method, json.dumps(arguments), buffers, lambda event: self.events.append(json.loads(event))
        )
        self.next_id += 1
        return json.loads(text)


@pytest.fixture
async def call(tmp_path: Path) -> Call:
    return Call(await Face.open(json.dumps({"backend": "numpy", "store": str(tmp_path / "store")})))


async def test_the_face_speaks_json_and_bytes(call: Call) -> None:
    assert json.loads(call.face.info())["backend"] == "numpy"
    trained = await call("train", ALICE.encode(), options={"steps": 2, "name": "alice.txt"})
    assert trained["value"]["steps"] == 2
    assert trained["value"]["session"]["model"]["saved"] is False
    call.events.clear()
    assert await call("generate", prompt="Alice", options={"max_new_tokens": 5, "seed": None}) == {"value": None}
    assert "".join(e["text"] for e in call.events)
    await call("save", name="Alice")
    assert [i["name"] for i in (await call("list"))["value"]] == ["Alice"]
    exported = await call("export", name="Alice")
    assert exported["value"]["filename"] == "Alice.model.zip"
    imported = await call("import", call.payload, filename="Alice.model.zip")
    assert imported["value"]["name"] == "Alice 2"


async def test_errors_come_back_as_class_and_sentence(call: Call) -> None:
    answer = await call("train", text="  ", options={})
    assert answer == {
        "error": {
            "name": "InvalidArgumentError",
            "message": "There is no text yet. Paste some, drop a .txt or .md file, or take the sample.",
        }
    }
    assert (await call("load", name="Nobody"))["error"]["name"] == "RecordNotFoundError"
    # What is no text, or no share, is called that, not by what Python makes of it.
    for method, arguments, words in (
        ("generate", {}, "prompt is missing"),
        ("generate", {"prompt": 5}, "must be a string, got int"),
        ("compare", {"prompt": None}, "must be a string, got NoneType"),
        ("token_shares", {"text": ["a"]}, "must be a string, got list"),
        ("save", {}, "name is missing"),
        ("train", {"text": None}, "must be a string, got NoneType"),
    ):
        error = (await call(method, **arguments))["error"]
        assert (error["name"], words in error["message"]) == ("InvalidArgumentError", True), error
    with pytest.raises(AttributeError, match="no method shout"):
        await call("shout")


async def test_messages_call_settings_as_the_page_does(call: Call) -> None:
    await call("train", text=ALICE[:2000], options={"steps": 1})
    for option, words in (("max_new_tokens", "number of tokens"), ("top_p", "Top p must"), ("min_p", "Min p must")):
        answer = await call("generate", prompt="x", options={option: -1})
        assert words in answer["error"]["message"]
    answer = await call("generate", prompt="x", options={"repetition_penalty": 0})
    assert answer["error"]["message"] == "Repetition must be above 0, got 0"
    assert {*LABELS, "seed"} == SAMPLING


@pytest.mark.parametrize(("wish", "words"), [("cuda", "no backend called “cuda”"), ("webgpu", "needs a browser")])
async def test_a_backend_that_cannot_be_had_ends_on_numpy(wish: str, words: str, tmp_path: Path) -> None:
    info = json.loads((await Face.open(json.dumps({"backend": wish, "store": str(tmp_path)}))).info())
    assert info["backend"] == "numpy"
    assert words in info["fallback_reason"]


async def test_stop_reaches_the_call_it_names_and_no_other(call: Call) -> None:
    call.face.stop(1)  # before its turn has come
    answer = await call("train", text=ALICE, options={"steps": 500})
    assert (answer["value"]["stopped"], answer["value"]["steps"]) == (True, 0)

    running = asyncio.ensure_future(call("train", text=ALICE, options={"steps": 500}))
    while not any(e.get("phase") == "train" for e in call.events):
        await asyncio.sleep(0)
        call.face.stop(99)
    call.face.stop(2)
    answer = await running
    assert answer["value"]["stopped"]
    assert answer["value"]["steps"] >= 1


def test_a_short_text_is_learned_more_carefully_on_a_well_read_base() -> None:
    assert recipes.persona(6_900_000, 1_700).lr == recipes.SHORT_TEXT_RATE
    assert recipes.persona(6_900_000, 60_000).lr == recipes.Recipe().lr
    assert recipes.persona(6_900_000, 1_700, "quick").lr == recipes.Recipe().lr  # too few steps to do harm
    assert recipes.persona(200_000, 1_700).lr == recipes.ONE_TEXT_RATE
    assert recipes.persona(200_000, 1_700, "long").patience == 0
    small = recipes.Recipe().adapter(Arch(300, 4, 1, 3, 2, 2, 1))
    assert (small.r, small.rank_pattern) == (2, {"token_embedding": 2})
