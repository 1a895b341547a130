"""The mood of a session in CPython on NumPy: what feedback and traits do to it, and what it does to the writing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evermind_web.errors import InvalidArgumentError
from evermind_web.limbic.state import LIMBIC_DIM_NAMES, TRAITS
from evermind_web.session import Face
from evermind_web.session.mood import EXPERIENCES, Mood
from evermind_web.session.recipes import sampling
from tests.test_personas import TEXT


async def test_feedback_moves_the_mood_as_it_was_taught_to() -> None:
    plain = sampling({"temperature": 1.0})
    for name, wanted in EXPERIENCES.items():
        mood = await Mood.learned()
        before = dict(mood.describe(plain)["state"])
        assert list(before) == list(LIMBIC_DIM_NAMES)
        await mood.feel(name)
        after = dict(mood.describe(plain)["state"])
        for dimension, change in wanted.items():
            assert (after[dimension] - before[dimension]) * change > 0 or after[dimension] in (0.0, 1.0), dimension
    with pytest.raises(InvalidArgumentError, match="praise"):
        await mood.feel("nonsense")


async def test_traits_move_the_setpoint_and_rest_goes_back_to_it() -> None:
    mood = await Mood.learned()
    plain = sampling({"temperature": 1.0})
    calm = mood.describe(plain)["sampling"]["temperature"]
    mood.set_traits({"openness": 100, "risk_tolerance": 100})
    assert mood.describe(plain)["sampling"]["temperature"] > calm
    assert dict(mood.describe(plain)["traits"]).keys() == set(TRAITS)
    await mood.feel("blame")
    for _ in range(20):
        await mood.feel("rest")
    shown = mood.describe(plain)
    assert [v for _, v in shown["state"]] == pytest.approx([v for _, v in shown["setpoint"]], abs=1e-2)


async def test_the_face_turns_the_mood_on_and_off(tmp_path: Path) -> None:
    face = await Face.open(json.dumps({"backend": "numpy", "store": str(tmp_path)}))
    await face.session.train(TEXT, {"steps": 2})

    async def call(method: str, **arguments: Any) -> Any:
        return json.loads((await face.handle(1, method, json.dumps(arguments), [], lambda _: None))[0])["value"]

    options = {"temperature": 1.0, "max_new_tokens": 24}
    plain = "".join([p async for p in face.session.stream("The", options)])
    await call("mood", on=True, traits={"openness": 100, "risk_tolerance": 100, "emotionality": 100})
    assert "".join([p async for p in face.session.stream("The", options)]) != plain
    assert await call("mood", on=False) is None
    assert "".join([p async for p in face.session.stream("The", options)]) == plain
