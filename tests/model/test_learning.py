"""The main job on real text, in CPython: the browser's run of it is tests/browser/test_training.py."""

from __future__ import annotations

import asyncio
from pathlib import Path

from evermind_web.backend.base import Backend
from tests.learning import learn, problems

DATA = Path(__file__).parent.parent / "data"


def test_a_book_is_learned_and_another_author_helps_himself(cpu: Backend) -> None:
    texts = [(DATA / name).read_text(encoding="utf-8") for name in ("alice.txt", "time-machine.txt")]
    learned = asyncio.run(learn(cpu, *texts))
    print(learned)
    assert problems(learned) == []
