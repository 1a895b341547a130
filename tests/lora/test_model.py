"""Several adapters on one base: training, swapping, mixing, dropout; NumPy and WebGPU alike."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from evermind_web.backend.base import Backend
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.backend.webgpu_backend import WebGPUBackend
from evermind_web.errors import InvalidArgumentError
from evermind_web.lora import EvermindLMLoRA, LoraConfig, LoraModel
from evermind_web.model import EvermindLM
from evermind_web.training import EvermindLMTrainer
from tests.counting import CountingBackend
from tests.lora.common import CASE, EVERYTHING, TEXTS, adapted, apart, base_model, fill

EMB = LoraConfig(r=4, lora_alpha=8)


def test_the_adapted_model_is_the_merged_one(backend: Backend) -> None:
    """Every kind of target at once: logits and loss are those of a model whose weights are base + delta."""
    model = adapted(backend)
    plain = EvermindLM.from_checkpoint(model.merge(), NumpyBackend())
    base = base_model(NumpyBackend())
    logits = model.forward(TEXTS[-1])
    assert apart(logits, plain.forward(TEXTS[-1])) < 1e-5
    assert apart(logits, base.forward(TEXTS[-1])) > 0.1
    assert model.evaluate(TEXTS) == pytest.approx(plain.evaluate(TEXTS), rel=1e-5)
    assert model.generate(TEXTS[0], max_new_tokens=8) == plain.generate(TEXTS[0], max_new_tokens=8)
    assert list(model.stream(TEXTS[0], max_new_tokens=8)) == plain.generate(TEXTS[0], max_new_tokens=8)
    model.dispose()


@pytest.mark.parametrize(
    "config", [EMB, EVERYTHING, dataclasses.replace(EVERYTHING, lora_dropout=0.3)], ids=["emb", "all", "dropout"]
)
def test_training_agrees_between_backends(cpu: Backend, gpu: Backend, config: LoraConfig) -> None:
    runs = []
    for backend in (cpu, gpu):
        model = adapted(backend, config)
        losses: list[float] = []
        model.fit(TEXTS, epochs=3, accum_steps=3, lr=0.003, on_step=lambda s, losses=losses: losses.append(s.loss))
        runs.append((losses, {n: (p.B.copy(), p.A.copy()) for n, p in model.adapter("a").parts.items()}))
        model.dispose()
    (want, expected), (got, found) = runs
    assert got == pytest.approx(want, rel=1e-4)
    assert len(want) == 3
    assert want[-1] < want[0]
    for name, pair in expected.items():
        for a, b in zip(found[name], pair, strict=True):
            assert float(np.mean(np.abs(a - b) > 0.05 * 0.003)) <= 0.05, name


def test_the_embedding_alone_is_what_evermind_lm_lora_trains(backend: Backend) -> None:
    single, model = EvermindLMLoRA(base_model(backend), 4, 8.0), LoraModel(base_model(backend))
    model.add_adapter("a", EMB)
    assert model.fit(TEXTS, epochs=2) == single.fit(TEXTS, epochs=2)
    assert model.save_lora_blob("a") == single.serialize_adapter()
    model.dispose()
    single.dispose()


@pytest.mark.parametrize("quant", ["none", "int8-row"])
def test_fit_leaves_the_base_alone_bit_for_bit(backend: Backend, quant: str) -> None:
    base = base_model(backend)
    before = base.export_weights()
    model = LoraModel(base, quant)
    model.add_adapter("a", EVERYTHING)
    history = model.fit(TEXTS, epochs=4, accum_steps=3)
    assert history[-1] < history[0]
    assert base.export_weights() == before
    assert all(part.B.any() for part in model.adapter("a").parts.values())
    model.set_adapter(None)
    if quant == "none":
        assert model.evaluate(TEXTS) == base.evaluate(TEXTS)
    model.dispose()
    base.dispose()


def test_checkpointing_changes_no_bit(backend: Backend) -> None:
    found = []
    for checkpoint in (False, True):
        model = adapted(backend)
        model.fit(TEXTS, epochs=2, checkpoint=checkpoint)
        found.append(model.save_adapter("a"))
        model.dispose()
    assert found[0] == found[1]


def test_validation_keeps_the_best_and_sees_no_dropout(backend: Backend) -> None:
    model = adapted(backend, dataclasses.replace(EVERYTHING, lora_dropout=0.5))
    seen: list[float] = []
    before = model.evaluate(TEXTS[:1])
    model.fit(TEXTS[1:], epochs=3, lr=0.5, validation=TEXTS[:1], on_eval=lambda e: seen.append(e.loss))
    assert len(seen) == 3
    assert model.evaluate(TEXTS[:1]) == pytest.approx(min(seen), rel=1e-6)
    assert before not in seen
    model.dispose()


def test_dropout_is_drawn_from_seed_and_step_and_off_at_inference(backend: Backend) -> None:
    def trained(dropout: float, seed: int) -> dict[str, bytes]:
        model = adapted(backend, dataclasses.replace(EVERYTHING, lora_dropout=dropout))
        first = model.forward(TEXTS[-1])
        assert np.array_equal(first, model.forward(TEXTS[-1]))
        files = model.save_adapter("a")
        model.fit(TEXTS, seed=seed, lora_dropout=dropout)
        after = model.forward(TEXTS[-1])
        assert np.array_equal(after, model.forward(TEXTS[-1]))
        assert apart(after, EvermindLM.from_checkpoint(model.merge(), NumpyBackend()).forward(TEXTS[-1])) < 1e-5
        assert files != model.save_adapter("a")
        weights = {"w": model.save_adapter("a")["adapter_model.safetensors"]}
        model.dispose()
        return weights

    assert trained(0.3, 1) == trained(0.3, 1)
    assert len({str(trained(*settings)) for settings in ((0.0, 1), (0.3, 1), (0.3, 2))}) == 3


def test_balance_needs_the_routers(backend: Backend) -> None:
    def trained(config: LoraConfig, coef: float) -> dict[str, np.ndarray]:
        model = adapted(backend, config)
        try:
            model.fit(TEXTS, accum_steps=3, balance_coef=coef)
            return {name: part.B.copy() for name, part in model.adapter("a").parts.items()}
        finally:
            model.dispose()

    with pytest.raises(InvalidArgumentError, match='add "router" to target_modules'):
        trained(EMB, 0.1)
    router = LoraConfig(r=2, target_modules=["router"])
    plain, balanced = trained(router, 0.0), trained(router, 10.0)
    assert any(not np.allclose(plain[name], balanced[name], atol=1e-4) for name in plain)


def test_hot_swap_makes_no_pipeline(gpu: WebGPUBackend) -> None:
    model = adapted(gpu)
    model.add_adapter("b", EVERYTHING)
    fill(model, "b", seed=8)
    outputs = {}
    for name in ("a", "b", None):  # everything is compiled now
        model.set_adapter(name)
        outputs[name] = model.forward(TEXTS[-1])
    before, plans = gpu.stats(), len(gpu._plans)
    for name in ("b", "a", None, "a", "b"):
        model.set_adapter(name)
        assert np.array_equal(model.forward(TEXTS[-1]), outputs[name])
    after = gpu.stats()
    assert (after["pipelines"], len(gpu._plans)) == (before["pipelines"], plans)
    assert after["buffer_bytes"] <= before["buffer_bytes"] + 64 * 1024
    assert apart(outputs["a"], outputs["b"]) > 0.1
    assert apart(outputs["a"], outputs[None]) > 0.1
    model.dispose()


def test_weighted_mix_is_the_weighted_sum_of_the_deltas(backend: Backend) -> None:
    model = adapted(backend)
    model.add_adapter("b", LoraConfig(r=2, target_modules=["token_embedding", "experts.0.w1"]))
    fill(model, "b", seed=8)
    model.set_adapters({"a": 0.25, "b": -1.5})
    base = {p.name: p.data.copy() for p in base_model(NumpyBackend()).parameters()}
    for weight, name in ((0.25, "a"), (-1.5, "b")):
        for tensor, part in model.adapter(name).parts.items():
            base[tensor] = base[tensor] + np.float32(weight) * part.delta()
    plain = base_model(NumpyBackend())
    for tensor, values in base.items():
        plain.set_parameter(tensor, values)
    mixed = model.forward(TEXTS[-1])
    assert apart(mixed, plain.forward(TEXTS[-1])) < 1e-5
    assert apart(EvermindLM.from_checkpoint(model.merge()).forward(TEXTS[-1]), mixed) < 1e-5
    model.set_adapter("a")
    assert apart(mixed, model.forward(TEXTS[-1])) > 0.05
    model.set_adapters({"a": 1.0, "b": 0.0})
    mixed = model.forward(TEXTS[-1])
    model.set_adapter("a")
    assert apart(mixed, model.forward(TEXTS[-1])) < 1e-5
    model.dispose()


def test_names_and_weights_that_cannot_be(cpu: Backend) -> None:
    model = adapted(cpu)
    for action, message in (
        (lambda: model.add_adapter("a"), "empty or taken"),
        (lambda: model.set_adapter("b"), "no adapter is called 'b'; there are \\['a'\\]"),
        (lambda: model.set_adapters({"a": float("nan")}), "weights must be a dict .*: a number.*nan"),
        (lambda: model.set_adapters({"a": float("inf")}), "must be a finite number"),
        (lambda: model.delete_adapter("a"), "in use"),
        (model.unmerge_adapter, "nothing is merged"),
        (lambda: (model.set_adapters({"a": 0.5}), model.fit(TEXTS)), "one active adapter of weight 1"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            action()
    model.set_adapter(None)
    model.delete_adapter("a")
    assert model.adapter_names == []


@pytest.mark.parametrize("quant", ["none", "fp16", "int8", "int8-row"])
def test_everything_is_given_back(quant: str) -> None:
    backend = CountingBackend(NumpyBackend())
    base = base_model(backend)
    held = set(backend.live)
    model = LoraModel(base, quant)
    model.add_adapter("a", EVERYTHING)
    model.add_adapter("b", EMB)
    model.fit(TEXTS, lora_dropout=0.1)
    model.set_adapters({"a": 1.0, "b": 1.0})
    model.generate(TEXTS[0])
    model.set_adapter("b")
    model.generate(TEXTS[0])
    model.merge_adapter(requantize_base=True)
    model.unmerge_adapter()
    model.dispose()
    model.dispose()
    assert backend.live == held
    checkpoint = base.export_weights()
    alone = LoraModel.from_checkpoint(checkpoint, backend, quant)
    alone.generate(TEXTS[0])
    alone.dispose()
    single = EvermindLMLoRA(base, 2, base_quant=quant)
    single.fit(TEXTS)
    single.merge()
    single.generate(TEXTS[0])
    single.dispose()
    single.dispose()
    assert backend.live == held
    base.dispose()
    assert not backend.live


def test_frozen_tensors_cost_no_gradient() -> None:
    """No whole-embedding and no mixture gradient is computed, and none is allocated, for an embedding adapter."""
    backend = CountingBackend(NumpyBackend())
    base = base_model(backend)
    model = LoraModel(base)
    model.add_adapter("a", EMB)
    model.fit(TEXTS)
    assert backend.counts["lora_head_xent_bwd"] == len(TEXTS)
    for op in ("head_xent_bwd", "moe_bwd", "conv_bwd", "rmsnorm_bwd", "lora_fwd", "lora_bwd"):
        assert backend.counts[op] == 0, op
    assert base._flat_grads is None


def test_disabled_adapters_are_the_base_and_training_the_base_shows_through(cpu: Backend) -> None:
    base = base_model(cpu)
    model = LoraModel(base)
    model.add_adapter("a", EMB)
    fill(model, "a")
    model.set_adapter(None)
    assert np.array_equal(model.forward(TEXTS[0]), base.forward(TEXTS[0]))
    EvermindLMTrainer(base, lr=0.05).fit(TEXTS)
    assert np.array_equal(model.forward(TEXTS[0]), base.forward(TEXTS[0]))
    assert CASE.arch == model.config
