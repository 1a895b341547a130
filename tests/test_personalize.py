"""The measurement of personalising: what it scores, what it may look at, and that it keeps only what helps."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import personalize
from bench.personalize import Options, bits_per_byte, cut_bytes, parts_of, run
from evermind_web import BPETokenizer, EvermindLM
from evermind_web.environment import run_blocking
from evermind_web.ops import IGNORE
from evermind_web.session.recipes import SHORT_TEXT_RATE, Recipe, persona
from evermind_web.session.texts import SCORED_WINDOW, scored_windows

ALICE = (Path(__file__).parent / "data" / "alice.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def base() -> tuple[EvermindLM, BPETokenizer]:
    tokenizer = BPETokenizer()
    tokenizer.train(ALICE[:8000], vocab_size=300)
    return EvermindLM(tokenizer.vocab_size, 16, 2, 3, 16, 2, 1, seed=1, backend="numpy"), tokenizer


def test_every_token_is_scored_once_with_all_that_the_model_can_see(base: tuple[EvermindLM, BPETokenizer]) -> None:
    model, tokenizer = base
    text = ALICE[:6000]
    ids = tokenizer.encode(text)
    assert len(ids) > 2 * SCORED_WINDOW
    windows = list(scored_windows(ids, 4))
    assert sum(int(np.count_nonzero(w.targets != IGNORE)) for w in windows) == len(ids) - 1
    nats = model.evaluate([ids]) * (len(ids) - 1)  # the whole text at once
    bits = run_blocking(bits_per_byte(model, tokenizer, text))
    assert bits == pytest.approx(
        nats / math.log(2) / (len(text.encode()) - len(tokenizer.decode(ids[:1]).encode())), 1e-5
    )


def test_the_parts_of_a_text_do_not_overlap() -> None:
    text = "".join(np.random.default_rng(0).choice(list("abcdefgh"), 400_000))
    for name in ("shakespeare", "alice"):
        for small in (False, True):
            parts = parts_of(name, text, small)
            assert parts.train + parts.slice == text[: parts.size]
            assert len(parts.slice) == parts.size // (5 if small else 10)
            assert text.endswith(parts.held_out)
            assert parts.size == (5000 if small else 200_000 if name == "shakespeare" else 320_000)
            assert len(parts.held_out) == (50_000 if name == "shakespeare" else 80_000)
    assert cut_bytes("aä", 0, 2) == "a"


def options(**changes: object) -> Options:
    """One quick row a method."""
    quick = {"max_epochs": 2, "window": 32, "lr": 0.02, "r": 2, "rank_pattern": {}}
    chosen = {
        "texts": ["alice"],
        "whole": False,
        "test_only_bytes": 500,
        "recipes": dict.fromkeys(personalize.RECIPES, quick),
    }
    return Options.of(json.loads(json.dumps(chosen | changes)))


def measured(base: tuple[EvermindLM, BPETokenizer], chosen: Options) -> list[dict[str, Any]]:
    model, tokenizer = base
    texts = {"alice": ALICE[:20_000], "dorian-gray": ALICE[-3000:]}
    result = asyncio.run(run(model.export_weights(), tokenizer.to_str(), texts, chosen, say=lambda line: None))
    assert all(math.isfinite(row["after"]) for row in json.loads(json.dumps(result))["rows"])
    assert personalize.markdown(result["rows"]).count("\n") == len(result["rows"]) + 1
    rows: list[dict[str, Any]] = result["rows"]
    return rows


def test_a_row_for_each_method_and_the_base_stays(base: tuple[EvermindLM, BPETokenizer]) -> None:
    rows = measured(base, options())
    assert [row["method"] for row in rows] == ["page", "embedding", "all-linear", "full"]
    for row in rows:
        assert row["kept"]
        assert row["after"] < row["before"]
        assert row["base_unchanged"]
        assert row["test_only_before"] == row["test_only_off"]
        assert row["change_percent"] == pytest.approx(100 * (row["after"] / row["before"] - 1))
    assert rows[1]["adapter_bytes"] < rows[2]["adapter_bytes"] < rows[3]["adapter_bytes"]


def test_the_page_learns_by_the_recipe_that_is_measured(base: tuple[EvermindLM, BPETokenizer]) -> None:
    (row,) = measured(base, options(methods=["page"]))
    recipe = {**row["recipe"], "lr": 0.002, "patience": 3}
    assert personalize.RECIPES["all-linear"] == Recipe(**recipe)
    assert (Recipe().targets, Recipe().r, Recipe().rank_pattern) == (("all-linear",), 3, {"token_embedding": 8})
    assert persona(6_900_000, 1_700) == replace(Recipe(), lr=SHORT_TEXT_RATE)
    assert persona(6_900_000, 60_000) == Recipe()


def test_what_does_not_help_the_slice_is_not_kept(base: tuple[EvermindLM, BPETokenizer]) -> None:
    ruin = {"embedding": {"lr": 30.0, "max_epochs": 2, "window": 32}}
    (row,) = measured(base, options(methods=["embedding"], recipes=ruin))
    assert row["slice_after"] > row["slice_before"]
    assert not row["kept"]
    assert row["after"] == row["before"]


def test_the_grid_leaves_the_held_out_part_alone(
    base: tuple[EvermindLM, BPETokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(personalize.GRID, "embedding", [{"lr": 0.01}, {"lr": 0.02}])
    lines: list[str] = []
    seen: list[str] = []
    score = personalize.bits_per_byte

    async def spy(model: EvermindLM, tokenizer: BPETokenizer, text: str) -> float:
        seen.append(text)
        return await score(model, tokenizer, text)

    monkeypatch.setattr(personalize, "bits_per_byte", spy)
    model, tokenizer = base
    texts = {"alice": ALICE[:20_000], "dorian-gray": ALICE[-3000:]}
    chosen = options(methods=["embedding"], grid=True)
    result = asyncio.run(run(model.export_weights(), tokenizer.to_str(), texts, chosen, say=lines.append))
    assert len(result["rows"]) == len(lines) == 2
    parts = parts_of("alice", texts["alice"], small=True)
    assert parts.slice in seen
    assert set(seen) <= {parts.slice, parts_of("alice", texts["alice"]).slice}


def test_options_are_checked_and_epochs_follow_the_size_of_the_text() -> None:
    with pytest.raises(ValueError, match="no such option: rounds"):
        Options.of({"rounds": 3})
    recipe = Recipe(steps=100, accum_steps=8, max_epochs=30)
    assert [recipe.epochs(n) for n in (8, 80, 800, 80_000)] == [30, 10, 2, 2]
