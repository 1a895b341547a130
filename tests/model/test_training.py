"""The training loop: windows, batches, progress, Stop, and what happens when numbers blow up."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from evermind_web import batch, pace
from evermind_web.backend.base import Array, Backend
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.errors import InvalidArgumentError, NonFiniteError
from evermind_web.model import EvermindLM
from evermind_web.training import EvermindLMTrainer, Example, StepInfo
from tests.cases import MODEL_CASES, ModelCase, model_case
from tests.counting import CountingBackend
from tests.parity import damage, make_model

RAGGED = model_case("ragged")


def packed(model: EvermindLM) -> bytes:
    """All weights as bytes."""
    return b"".join(p.data.tobytes() for p in model.parameters())


def gradients(model: EvermindLM) -> Array:
    """All gradients in one vector."""
    return np.concatenate([g.data.ravel() for g in model.gradients()])


# ---- batches ----


@pytest.mark.parametrize("lengths", [(17, 17, 17), (17, 2, 40)], ids=["equal", "ragged"])
def test_a_window_as_one_batch_is_the_mean_of_its_sequences(lengths: tuple[int, ...], backend: Backend) -> None:
    case = ModelCase("window", RAGGED.arch, lengths, seed=3)
    model = make_model(backend, case)
    model.zero_grad()
    losses = [model.loss_and_backward(tokens) for tokens in case.sequences()]
    one_by_one = gradients(model).copy() / len(lengths)
    model.zero_grad()
    backend.zero(model.loss)
    model.accumulate(case.batch(backend.row_multiple))
    (loss,) = asyncio.run(backend.read(model.loss))
    assert float(loss[0]) == pytest.approx(np.mean(losses), rel=1e-6)
    assert gradients(model) == pytest.approx(one_by_one, rel=0, abs=2e-6 * float(np.abs(one_by_one).max()))
    model.dispose()


def test_a_trainer_that_is_disposed_leaves_the_model_as_it_was_before() -> None:
    """But for its gradients: neither moments nor the buffers of passes stay, which took most of the memory."""
    backend = CountingBackend(NumpyBackend())
    model = make_model(backend, RAGGED)
    model.zero_grad()
    assert model.grads
    held, sequences = set(backend.live), RAGGED.sequences()
    trainer = EvermindLMTrainer(model, accum_steps=2, eval_every=1)
    trainer.fit(sequences, validation=sequences[:1])
    trainer.dispose()
    assert backend.live == held
    assert np.isfinite(model.evaluate(sequences))
    model.dispose()
    assert not backend.live


def three_steps(model: EvermindLM, sequences: list[Any], **options: Any) -> bytes:
    """Weights after three steps of all sequences."""
    settings = {"lr": 0.02, "epochs": 3, "accum_steps": len(sequences)} | options
    trainer = EvermindLMTrainer(model, **settings)
    trainer.fit(sequences)
    trainer.dispose()
    return packed(model)


def close(a: bytes, b: bytes) -> bool:
    """Whether weights agree to a hundredth of a step."""
    return float(np.abs(np.frombuffer(a, "<f4") - np.frombuffer(b, "<f4")).max()) < 2e-4


def test_large_windows_are_cut_into_batches_with_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    sequences = RAGGED.sequences()
    whole = three_steps(make_model(NumpyBackend(np.float64), RAGGED), sequences)
    counting = CountingBackend(NumpyBackend())
    model = make_model(counting, RAGGED)
    monkeypatch.setattr(batch, "MAX_ROWS", 41)
    three_steps(model, sequences)
    assert counting.counts["embed_fwd"] == 3 * 2  # 17 + 2 rows, then 40
    want = np.frombuffer(whole, "<f8")
    assert np.frombuffer(packed(model), "<f4") == pytest.approx(want, rel=0, abs=2e-4)


@pytest.mark.parametrize("case", MODEL_CASES, ids=str)
def test_rows_that_fill_up_a_batch_change_nothing(case: ModelCase) -> None:
    plain = three_steps(make_model(NumpyBackend(), case), case.sequences())
    padded = three_steps(make_model(CountingBackend(NumpyBackend(), row_multiple=64), case), case.sequences())
    assert close(plain, padded)


def test_tr2_a_masked_sequence_is_as_if_absent(backend: Backend) -> None:
    sequences = RAGGED.sequences()
    masked = Example([1, 2, 3, 4], [-100] * 4)
    without = three_steps(make_model(backend, RAGGED), sequences)
    for extra in ([], [5]):
        assert three_steps(make_model(backend, RAGGED), [*sequences, extra], accum_steps=4) == without
    assert close(three_steps(make_model(backend, RAGGED), [*sequences, masked], accum_steps=4), without)


def test_tr2_nothing_to_learn_from_is_said(cpu: Backend) -> None:
    model = make_model(cpu, RAGGED)
    before = packed(model)
    with pytest.raises(InvalidArgumentError, match="every target is masked"):
        EvermindLMTrainer(model).fit([Example([1, 2, 3], [-100] * 3)])
    assert packed(model) == before


@pytest.mark.parametrize("tokens", [[], [1]])
def test_tr1_too_little_data_is_said(cpu: Backend, tokens: list[int]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"need at least 2 tokens, got {len(tokens)}"):
        EvermindLMTrainer(make_model(cpu, RAGGED)).fit([tokens])


def test_tr1_two_tokens_are_enough(backend: Backend) -> None:
    model = make_model(backend, RAGGED)
    losses = EvermindLMTrainer(model, epochs=2).fit([[1, 2]])
    assert losses[1] < losses[0]
    model.dispose()


# ---- progress, Stop, order ----


def test_progress_counts_steps_epochs_and_tokens(backend: Backend) -> None:
    seen: list[StepInfo] = []
    model, sequences = make_model(backend, RAGGED), RAGGED.sequences()
    trainer = EvermindLMTrainer(model, epochs=2, accum_steps=2)
    losses = trainer.fit([*sequences, [4]], on_step=seen.append)
    assert [(s.step, s.total_steps, s.epoch, s.epochs) for s in seen] == [
        (1, 4, 1, 2),
        (2, 4, 1, 2),
        (3, 4, 2, 2),
        (4, 4, 2, 2),
    ]
    assert [s.tokens for s in seen] == [17, 56, 73, 112]
    assert all(type(s.tokens) is int for s in seen)  # PY7
    assert [s.seconds for s in seen] == sorted(s.seconds for s in seen)
    assert losses == pytest.approx([(2 * seen[i].loss + seen[i + 1].loss) / 3 for i in (0, 2)])
    assert all(s.grad_norm > 0 and not s.skipped and s.loss_scale == 1 for s in seen)
    trainer.dispose()
    model.dispose()


def test_the_reported_norm_is_that_of_the_gradient(backend: Backend) -> None:
    seen: list[StepInfo] = []
    model = make_model(backend, RAGGED)
    model.zero_grad()
    model.loss_and_backward(RAGGED.sequences()[0])
    norm = float(np.linalg.norm(gradients(model).astype(np.float64)))
    EvermindLMTrainer(model).fit(RAGGED.sequences()[:1], on_step=seen.append)
    assert seen[0].grad_norm == pytest.approx(norm, rel=1e-5)
    model.dispose()


def test_stop_ends_the_fit_and_keeps_what_was_learned(backend: Backend) -> None:
    model, seen = make_model(backend, RAGGED), list[StepInfo]()
    before = packed(model)
    trainer = EvermindLMTrainer(model, epochs=1000)

    def on_step(info: StepInfo) -> None:
        seen.append(info)
        trainer.stop()

    history = trainer.fit(RAGGED.sequences(), on_step=on_step)
    assert len(seen) <= backend.steps_per_read
    assert len(history) <= 3
    assert packed(model) != before
    trainer.stop()  # nothing is running: no error
    trainer.dispose()
    model.dispose()


def test_moments_live_on_over_fits(cpu: Backend) -> None:
    sequences = RAGGED.sequences()
    once, twice = make_model(cpu, RAGGED), make_model(cpu, RAGGED)
    EvermindLMTrainer(once, epochs=4).fit(sequences)
    trainer = EvermindLMTrainer(twice, epochs=2)
    trainer.fit(sequences)
    trainer.fit(sequences)
    assert packed(once) == packed(twice)


def test_the_same_run_gives_the_same_bits(backend: Backend) -> None:
    first, second = (three_steps(make_model(backend, RAGGED), RAGGED.sequences()) for _ in range(2))
    assert first == second


def test_tr9_recomputing_layers_changes_no_bit(backend: Backend) -> None:
    options = {"dropout": 0.1, "router_noise": 0.1, "seed": 5} if backend.name == "numpy" else {}
    kept = three_steps(make_model(backend, RAGGED), RAGGED.sequences(), **options)
    assert three_steps(make_model(backend, RAGGED), RAGGED.sequences(), checkpoint=True, **options) == kept


def test_losses_are_read_several_steps_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "AHEAD_S", 1e9)  # whatever the speed of this machine
    counting = CountingBackend(NumpyBackend(), steps_per_read=8)
    model = make_model(counting, RAGGED)
    seen: list[StepInfo] = []
    EvermindLMTrainer(model, epochs=20).fit(RAGGED.sequences()[:1], on_step=seen.append)
    assert len(seen) == 20
    assert counting.counts["read"] == 6  # 1 + 1 + 2 + 4 + 8 + 4 steps
    assert counting.counts["flush"] == 20


def test_dispose_gives_all_memory_back() -> None:
    counting = CountingBackend(NumpyBackend(), row_multiple=64)
    model = make_model(counting, RAGGED)
    trainer = EvermindLMTrainer(model)
    trainer.fit(RAGGED.sequences())
    model.loss_and_backward_checkpointed([1, 2, 3])
    model.generate([1], max_new_tokens=2)
    model.forward([1, 2])
    model.evaluate([[1, 2, 3]])
    trainer.dispose()
    model.dispose()
    model.dispose()
    assert counting.live == set()


# ---- numbers that blow up ----


def test_py8_a_huge_learning_rate_is_noticed_at_the_same_step_everywhere(backend: Backend) -> None:
    model = make_model(backend, RAGGED)
    with np.errstate(all="raise"), pytest.raises(NonFiniteError, match="loss is not finite at step 2"):
        EvermindLMTrainer(model, lr=1e30, epochs=5).fit(RAGGED.sequences()[:1])
    model.dispose()


def test_a_step_that_is_not_finite_changes_no_weight(backend: Backend) -> None:
    model = make_model(backend, RAGGED)
    damage(model, RAGGED.sequences()[0][0], np.nan)
    before = packed(model)
    with pytest.raises(NonFiniteError, match="loss is not finite at step 1"):
        EvermindLMTrainer(model).fit(RAGGED.sequences()[:1])
    assert packed(model) == before
    model.dispose()


def test_tr5_the_loss_scale_has_a_floor_and_training_ends(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(backend, RAGGED)
    before, accumulate = packed(model), model.accumulate
    spike = np.zeros(model.flat.size, np.float32)
    spike[0] = np.inf

    def overflowing(*args: Any, **options: Any) -> None:
        accumulate(*args, **options)
        model.flat_grads.write(spike)

    monkeypatch.setattr(model, "accumulate", overflowing)
    seen: list[StepInfo] = []
    trainer = EvermindLMTrainer(model, epochs=40, mixed_precision={"init_scale": 65536})
    with pytest.raises(NonFiniteError, match=r"gradients not finite for \d+ steps"):
        trainer.fit(RAGGED.sequences()[:1], on_step=seen.append)
    assert [s.loss_scale for s in seen] == [2.0**n for n in range(16, 0, -1)]  # the next one, at the floor, ends it
    assert all(s.skipped for s in seen)
    assert trainer.loss_scaler.scale == 1
    assert packed(model) == before
    trainer.dispose()
    model.dispose()


def test_tr7_gains_and_biases_are_not_decayed(cpu: Backend) -> None:
    """Idle experts have no gradient: their matrices only shrink, their biases stay."""
    case = model_case("idle-experts")
    model = make_model(cpu, case)
    before = {p.name: p.data.copy() for p in model.parameters()}
    EvermindLMTrainer(model, lr=1e-3, weight_decay=0.1).fit(case.sequences())
    after = {p.name: p.data for p in model.parameters()}
    idle = [name for name, g in ((g.name, g.data) for g in model.gradients()) if ".experts." in name and not g.any()]
    assert any(name.endswith("w1") for name in idle)
    for name in idle:
        shrunk = np.float32(1 - 1e-4) if name.endswith(("w1", "w2")) else np.float32(1)
        assert after[name] == pytest.approx(before[name] * shrunk, rel=1e-6)


@pytest.mark.parametrize(
    "options",
    [{"epochs": 0}, {"accum_steps": 0}, {"lr": -1}, {"lr": float("nan")}, {"beta1": 1}, {"shard": (2, 2)}, {"eps": -1}],
)
def test_bad_options_are_refused_before_training(cpu: Backend, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        EvermindLMTrainer(make_model(cpu, RAGGED), **options)


def test_an_id_outside_the_vocabulary_is_refused_before_training(cpu: Backend) -> None:
    model = make_model(cpu, RAGGED)
    before = packed(model)
    with pytest.raises(InvalidArgumentError, match=r"token id 37 outside vocab 0\.\.36"):
        EvermindLMTrainer(model).fit([[1, 2, 3], [4, 37]])
    assert packed(model) == before
