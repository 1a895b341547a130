"""Options of a training run: schedules, clipping, decay, masks, windows, noise, load balance, validation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evermind_web import EvermindLM, EvermindLMTrainer, Example, StepInfo, pack_windows
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.batch import check_item, item_batches
from evermind_web.errors import InvalidArgumentError, NonFiniteError
from evermind_web.network import Noise
from evermind_web.ops import IGNORE
from evermind_web.training import Snapshot, TrainingOptions

V = 23


def small(**options: object) -> EvermindLM:
    return EvermindLM(V, 12, 2, 3, 16, 4, 2, seed=5, backend="numpy", **options)  # type: ignore[arg-type]


def texts(count: int = 8, length: int = 9, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, V, length).tolist() for _ in range(count)]


def weights(model: EvermindLM) -> np.ndarray:
    return np.concatenate([p.data.ravel() for p in model.parameters()])


# ---- learning rate ----


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8, 0]),
        ("cosine", [0.5, 1, *((1 + math.cos(math.pi * i / 8)) / 2 for i in range(1, 9))]),
    ],
)
def test_schedules(kind: str, expected: list[float]) -> None:
    options = TrainingOptions(lr_scheduler_type=kind, warmup_steps=2)
    assert [options.lr_factor(step, 10) for step in range(1, 11)] == pytest.approx(expected, abs=1e-12)


def test_a_schedule_ends_at_its_floor() -> None:
    options = TrainingOptions(lr_scheduler_type="cosine", min_lr_ratio=0.1)
    assert options.lr_factor(10, 10) == pytest.approx(0.1)
    assert options.lr_factor(5, 10) == pytest.approx(0.1 + 0.9 * 0.5)


def test_the_schedule_reaches_the_weights() -> None:
    seen: list[StepInfo] = []
    EvermindLMTrainer(small(), lr=0.02, lr_scheduler_type="linear", warmup_steps=3).fit(texts(), seen.append)
    assert [s.lr for s in seen] == pytest.approx([0.02 * f for f in (1 / 3, 2 / 3, 1, 0.8, 0.6, 0.4, 0.2, 0)])
    still = small()
    before = weights(still).copy()
    EvermindLMTrainer(still, lr=0.02, lr_scheduler_type="linear").fit(texts(1))
    assert np.array_equal(weights(still), before)  # the only step is the last one, where the rate is 0


def test_the_schedule_of_a_second_fit_starts_anew() -> None:
    trainer, seen = EvermindLMTrainer(small(), lr_scheduler_type="linear"), list[StepInfo]()
    trainer.fit(texts(4), seen.append)
    trainer.fit(texts(4), seen.append)
    assert [s.lr for s in seen] == pytest.approx([0.01 * f for f in (0.75, 0.5, 0.25, 0)] * 2)
    assert trainer._optimizer().step == 8


# ---- gradient clipping and weight decay ----


def test_clipping_scales_all_gradients_by_one_factor() -> None:
    plain, clipped = small(), small()
    norms: list[float] = []
    options = {"lr": 0.01, "beta1": 0.0, "beta2": 0.0, "eps": 1.0}  # a step is then lr * g / (|g| + 1), smooth in g
    EvermindLMTrainer(plain, **options).fit(texts(1), lambda s: norms.append(s.grad_norm))
    EvermindLMTrainer(clipped, **options, max_grad_norm=norms[0] / 2).fit(texts(1), lambda s: norms.append(s.grad_norm))
    assert norms[1] == pytest.approx(norms[0])  # the norm that is reported is that before clipping
    start = weights(small())
    g, half = (((start - weights(m)) / 0.01).astype(np.float64) for m in (plain, clipped))
    g, half = g / (1 - np.abs(g)), half / (1 - np.abs(half))
    large = np.abs(g) > 1e-2  # below, what is left of a float32 weight after subtraction decides
    assert half[large] == pytest.approx(g[large] / 2, rel=1e-2)


def test_tr7_gains_and_biases_are_not_decayed() -> None:
    """Zero gradient, lr 1e-3, decay 0.1: a gain of 1 stays 1, a matrix weight of 1 becomes 0.9999."""
    model = small()
    for p in model.parameters():
        p.data[...] = 1
    trainer = EvermindLMTrainer(model, lr=1e-3, weight_decay=0.1)
    model.set_hyper(trainer.adamw.hyper(1))
    model.zero_grad()
    trainer._optimizer().queue(model.flat_grads, model.hyper)
    for p in model.parameters():
        expected = 0.9999 if p.data.ndim > 1 else 1.0
        assert p.data == pytest.approx(expected, abs=1e-7), p.name


def test_decay_by_name() -> None:
    trainer = EvermindLMTrainer(small(), decay=["w1", "token_embedding.weight"])
    assert trainer.decayed is not None
    assert "layers.1.moe.experts.3.w1" in trainer.decayed
    assert "token_embedding.weight" in trainer.decayed
    assert not any(name.endswith(("w2", "conv.weight")) for name in trainer.decayed)
    with pytest.raises(InvalidArgumentError, match="no tensor's name ends with 'w9'"):
        EvermindLMTrainer(small(), decay=["w9"])


# ---- masks, averaging, windows ----


def test_masked_positions_give_no_gradient() -> None:
    ids = texts(1)[0]
    targets = [*ids[1:], IGNORE]
    whole, masked, cut = small(), small(), small()
    assert whole.loss_and_backward(Example(ids, targets)) == pytest.approx(small().loss_and_backward(ids))
    targets[4:] = [IGNORE] * 5
    assert masked.loss_and_backward(Example(ids, targets)) == pytest.approx(cut.loss_and_backward(ids[:5]), rel=1e-6)
    for a, b in zip(masked.gradients(), cut.gradients(), strict=True):
        assert a.data == pytest.approx(b.data, abs=1e-7), a.name


def test_tr2_a_sequence_without_targets_counts_nothing() -> None:
    empty = Example([1, 2, 3], [IGNORE] * 3)
    model = small()
    model.zero_grad()
    assert model.loss_and_backward(empty) == 0.0
    assert not any(p.data.any() for p in model.gradients())
    with_empty, without = small(), small()
    a = EvermindLMTrainer(with_empty, accum_steps=4).fit([*texts(3), empty])
    b = EvermindLMTrainer(without, accum_steps=4).fit(texts(3))
    assert a == b
    assert np.array_equal(weights(with_empty), weights(without))
    with pytest.raises(InvalidArgumentError, match="every target is masked"):
        EvermindLMTrainer(small()).fit([empty])


def test_per_token_averaging_weighs_long_sequences_more() -> None:
    short, long = texts(1, 3)[0], texts(1, 21, seed=4)[0]
    model = small()
    means = [model.evaluate([s]) for s in (short, long)]
    by_sequence = EvermindLMTrainer(small(), accum_steps=2).fit([short, long])
    by_token = EvermindLMTrainer(small(), accum_steps=2, loss_reduction="token").fit([short, long])
    assert by_sequence[0] == pytest.approx(sum(means) / 2)
    assert by_token[0] == pytest.approx((2 * means[0] + 20 * means[1]) / 22)


@pytest.mark.parametrize("count", [0, 1])
def test_tr1_too_few_tokens_for_a_window(count: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"need at least 2 tokens, got {count}"):
        pack_windows(list(range(count)), 4)
    with pytest.raises(InvalidArgumentError, match=f"need at least 2 tokens, got {count}"):
        EvermindLMTrainer(small()).fit([list(range(count))])


@pytest.mark.parametrize(("count", "lengths"), [(2, [1]), (4, [3]), (5, [4]), (6, [4, 1]), (9, [4, 4])])
def test_tr1_windows_score_every_transition_once(count: int, lengths: list[int]) -> None:
    ids = list(range(count))
    windows = pack_windows(ids, 4)
    assert [len(w.tokens) for w in windows] == lengths
    pairs = [(int(a), int(b)) for w in windows for a, b in zip(w.tokens, w.targets, strict=True)]
    assert pairs == [(i, i + 1) for i in range(count - 1)]


def test_targets_are_checked() -> None:
    with pytest.raises(InvalidArgumentError, match="targets must be as long as tokens"):
        check_item(Example([1, 2], [1]), V)
    with pytest.raises(InvalidArgumentError, match=f"token id {V} outside vocab"):
        check_item(Example([1, 2], [V, IGNORE]), V)


# ---- noise and load balance ----


def run_once(model: EvermindLM, noise: Noise, checkpoint: bool = False) -> np.ndarray:
    items = [check_item(s, V) for s in texts(3)]
    model.zero_grad()
    for batch in item_batches(items, [0.1] * 3):
        model.accumulate(batch, checkpoint, noise=noise)
    return np.concatenate([g.data.ravel() for g in model.gradients()])


def test_tr9_a_recompute_draws_the_same_noise() -> None:
    noise = Noise(seed=3, step=7, dropout=0.1, router_noise=0.5)  # noise that changes which experts are chosen
    kept, recomputed = run_once(small(), noise), run_once(small(), noise, checkpoint=True)
    assert np.array_equal(kept, recomputed)
    other = run_once(small(), Noise(seed=3, step=8, dropout=0.1, router_noise=0.5))
    assert not np.array_equal(kept, other)


def test_router_noise_changes_the_choice_and_only_while_training() -> None:
    plain, noisy = run_once(small(), Noise(1, 1)), run_once(small(), Noise(1, 1, router_noise=0.5))
    assert not np.array_equal(plain, noisy)
    model = small()
    before = model.forward([1, 2, 3])
    EvermindLMTrainer(model, lr=0.0, router_noise=2.0).fit(texts())
    assert np.array_equal(model.forward([1, 2, 3]), before)


def test_dropout_is_off_outside_training() -> None:
    model = small()
    before = model.forward([1, 2, 3])
    EvermindLMTrainer(model, lr=0.0, dropout=0.5).fit(texts())
    assert np.array_equal(model.forward([1, 2, 3]), before)


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    from evermind_web.backend.reference.noise import dropout

    words = Noise(seed=1, step=1, dropout=0.25).words(1)[0]
    x = np.ones((200, 100), np.float32)
    dropout(words, x)
    assert set(np.unique(x)) == {np.float32(0), np.float32(4 / 3)}
    assert np.mean(x == 0) == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("noise", [Noise(2, 3, dropout=0.3), Noise(2, 3, balance_coef=0.5)])
def test_gradients_with_noise_by_finite_differences(noise: Noise) -> None:
    backend = NumpyBackend(np.float64)
    model = EvermindLM(V, 6, 2, 2, 8, 4, 2, seed=9, backend=backend)
    for p in model.parameters():
        p.data[...] += np.random.default_rng(len(p.name)).normal(0, 0.1, p.data.shape)
    items = [check_item(s, V) for s in texts(2, 7)]
    (batch,) = item_batches(items, [0.08] * 2)

    def objective() -> float:
        backend.zero(model.loss)
        model.zero_grad()
        model.accumulate(batch, noise=noise)
        return float(backend.array(model.loss)[0]) + balance_loss(model, noise, batch.rows)

    objective()
    gradients = {g.name: g.data.copy() for g in model.gradients()}
    rng, step = np.random.default_rng(1), 1e-6
    for p in model.parameters():
        largest = float(np.abs(gradients[p.name]).max())
        for at in rng.integers(0, p.data.size, 3):
            place = np.unravel_index(at, p.data.shape)
            value = p.data[place]
            p.data[place] = value + step
            up = objective()
            p.data[place] = value - step
            down = objective()
            p.data[place] = value
            assert (up - down) / (2 * step) == pytest.approx(
                gradients[p.name][place], abs=1e-6 * max(largest, 1e-3) + 1e-9
            ), p.name


def balance_loss(model: EvermindLM, noise: Noise, rows: int) -> float:
    """balance_coef * E * sum f * mean(P) of each layer, from what the forward pass left on the tape."""
    if not noise.balance_coef:
        return 0.0
    backend = model.backend
    assert isinstance(backend, NumpyBackend)
    total, experts = 0.0, model.config.num_experts
    for layer in model.tape(rows, False).layers:
        share = np.bincount(backend.array(layer.experts).ravel(), minlength=experts) / backend.array(layer.experts).size
        total += experts * float(share @ backend.array(layer.probs).mean(axis=0))
    return noise.balance_coef * total


def test_load_balance_evens_out_the_experts() -> None:
    def busiest(coef: float) -> float:
        model = small()
        EvermindLMTrainer(model, lr=0.02, epochs=30, accum_steps=8, balance_coef=coef).fit(texts())
        tape = model.tape(8 * 9, False)
        assert isinstance(model.backend, NumpyBackend)
        counts = [np.bincount(model.backend.array(t.experts).ravel(), minlength=4) for t in tape.layers]
        return max(float(c.max() / c.sum()) for c in counts)

    assert busiest(1.0) < 0.3 < busiest(0.0)


# ---- validation ----


def test_early_stopping_ends_with_the_best_weights() -> None:
    model, evaluations, held_out = small(), [], texts(4, seed=8)
    trainer = EvermindLMTrainer(model, lr=0.05, epochs=60, accum_steps=8, patience=3)
    history = trainer.fit(texts(), validation=held_out, on_eval=evaluations.append)
    best = min(evaluations, key=lambda e: e.loss)
    assert evaluations[-1].without_gain == 3
    assert len(history) == evaluations[-1].step < 60
    assert evaluations[-1].loss > best.loss
    assert model.evaluate(held_out) == pytest.approx(best.loss, rel=1e-6)


def test_early_stopping_goes_on_from_a_snapshot_with_the_best_of_before() -> None:
    held_out, snapshots = texts(4, seed=8), list[Snapshot]()

    def trainer() -> EvermindLMTrainer:
        return EvermindLMTrainer(small(), lr=0.05, epochs=60, accum_steps=8, patience=3)

    whole = trainer()
    history = whole.fit(texts(), validation=held_out, on_snapshot=snapshots.append, snapshot_seconds=0)
    assert snapshots[-1].best.without_gain == 3, "the last one is of the end"
    for snapshot in snapshots[-5:]:
        again = trainer()
        assert again.fit(texts(), validation=held_out, resume=snapshot) == history, f"from step {snapshot.step}"
        assert np.array_equal(weights(again.model), weights(whole.model))


def test_validation_that_scores_nothing_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="validation sequences have no target"):
        EvermindLMTrainer(small()).fit(texts(), validation=[[3]])


# ---- faults ----


def test_py8_a_learning_rate_that_is_too_large_stops_with_the_step() -> None:
    model = small()
    with np.errstate(over="raise"), pytest.raises(NonFiniteError, match="not finite at step 2"):
        EvermindLMTrainer(model, lr=1e30).fit(texts())
    kept = weights(model).copy()
    assert np.isfinite(kept).all()


def test_tr5_the_loss_scale_stops_at_its_floor() -> None:
    model = small()
    model.set_parameter("token_embedding.weight", np.full((V, 12), 1e18, np.float32))  # every gradient overflows fp16
    before = weights(model).copy()
    trainer = EvermindLMTrainer(model, mixed_precision={"init_scale": 65536.0})
    seen: list[StepInfo] = []
    with pytest.raises(NonFiniteError, match=r"not finite"):
        trainer.fit(texts(40), seen.append)
    assert np.array_equal(weights(model), before)
    assert trainer._optimizer().step == 0
    assert all(s.skipped for s in seen)


def test_tr5_scale_halves_to_one_and_the_schedule_waits() -> None:
    model = small()
    trainer = EvermindLMTrainer(model, mixed_precision={"init_scale": 65536.0}, warmup_steps=5)
    for p in model.parameters():
        if p.name.endswith("w2"):
            p.data[...] = 3e4  # finite loss, gradients above fp16's range at any scale
    seen: list[StepInfo] = []
    with pytest.raises(NonFiniteError, match="gradients not finite for 17 steps"):
        trainer.fit(texts(40), seen.append)
    assert [s.loss_scale for s in seen][:16] == [65536.0 / 2**i for i in range(16)]
    assert trainer.loss_scaler.scale == 1
    assert {s.lr for s in seen} == {0.01 / 5}


@pytest.mark.parametrize(
    ("option", "value"),
    [("dropout", 1.0), ("dropout", -0.1), ("warmup_steps", -1), ("lr_scheduler_type", "exponential"),
     ("loss_reduction", "sum"), ("max_grad_norm", math.nan), ("patience", 1.5), ("min_lr_ratio", 2)],
)  # fmt: skip
def test_bad_options_are_refused_by_name(option: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError, match=option):
        EvermindLMTrainer(small(), **{option: value})


def test_eps_of_zero_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="eps must be above 0"):
        EvermindLMTrainer(small(), eps=0)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="learning_rate"):
        EvermindLMTrainer(small(), learning_rate=0.1)
