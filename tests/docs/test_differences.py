"""Right values that differ from the reference's and that no other test holds; docs/differences.md names them all."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from evermind_web import BPETokenizer, EvermindLM, EvermindLMTrainer, EvermindModelPackage, SharedExpertMoE, limbic
from evermind_web.errors import InvalidArgumentError

PAGE = Path(__file__).parents[2] / "docs" / "differences.md"


def test_every_row_of_the_page_names_a_test() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| [^-|]", line)]
    rows = [row for row in rows if not row.startswith("| What")]
    assert len(rows) > 30
    for row in rows:
        assert re.search(r"`tests/[\w/]+\.py::\w+`", row), row


def test_the_loss_scale_reaches_each_sequence_of_a_window_once() -> None:
    sequences = [[1, 2, 3], [4, 5, 6, 7], [8, 1, 4]]
    after = []
    for mixed in (False, {"init_scale": 64.0}):
        model = EvermindLM(11, 8, 1, hidden_dim=6, num_experts=2, top_k=1, seed=3)
        EvermindLMTrainer(model, lr=0.01, accum_steps=3, mixed_precision=mixed).fit(sequences)  # type: ignore[arg-type]
        after.append(np.concatenate([p.data.ravel() for p in model.parameters()]))
    # Scaled again for each later sequence, the first gradient would weigh 64² times the last.
    # Half precision may turn a tiny gradient round, so a few weights are one step of 0.01 apart, never more.
    assert np.mean(np.abs(after[0] - after[1]) > 1e-3) < 0.02


def test_tokens_spelled_like_members_of_a_javascript_object_have_ids() -> None:
    tokenizer = BPETokenizer()
    tokenizer.train("constructor " * 50, num_merges=40)
    assert "constructor" in tokenizer.vocab
    assert tokenizer.decode(tokenizer.encode("constructor")) == "constructor"
    assert len(tokenizer.encode("constructor")) == 1


def test_a_leading_byte_order_mark_survives() -> None:
    tokenizer = BPETokenizer()
    tokenizer.train("")
    assert tokenizer.decode(tokenizer.encode("\ufefftext")) == "\ufefftext"


def test_vectors_of_a_wrong_length_are_refused_not_padded() -> None:
    moe = SharedExpertMoE(4, 3, 2, 1)
    for wrong in (np.ones(3), np.ones(5)):
        with pytest.raises(InvalidArgumentError, match="4 numbers"):
            moe.forward(wrong)
    model = limbic.LimbicModel(3, 4, 8)
    with pytest.raises(InvalidArgumentError, match="expected 3 numbers"):
        model.forward(np.ones(2), model.init_hidden(), limbic.neutral_state())


def test_limbic_records_with_unknown_or_unreal_entries_are_refused() -> None:
    for record in ({"mood": 0.5}, {"valence": float("nan")}, {"valence": True}, {"valence": "high"}):
        with pytest.raises(InvalidArgumentError):
            limbic.record_to_state(record)  # type: ignore[arg-type]
    for traits in ({"charm": 50.0}, {"openness": float("nan")}):
        with pytest.raises(InvalidArgumentError):
            limbic.personality_setpoint(traits)


def test_the_seed_stays_out_of_a_package() -> None:
    package = EvermindModelPackage.from_model(SharedExpertMoE(4, 3, 2, 1, seed=9), "m", "1", {})
    assert set(package.manifest["config"]) == {"modelDim", "hiddenDim", "numExperts", "topK"}


def test_an_expert_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="expert must be in 0…1"):
        SharedExpertMoE(4, 3, 2, 1).export_expert(2)
