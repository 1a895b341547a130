"""Adapters against the reference engine: maths, file, fit, bases of each storage, load and merge."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from evermind_web.backend.base import Backend
from evermind_web.lora import EvermindLMLoRA, LoRAAdapter, quantize_base
from tests.golden_data import GoldenCase, load_cases
from tests.golden_models import body, keywords, model_of
from tests.parity import weights_agree

CASES = load_cases("lora")
ADAPTERS = [case for case in CASES if case.name.startswith("lora_adapter")]
FITS = [case for case in CASES if case.name.startswith("lora_fit")]
BASES = [case for case in CASES if case.name.startswith("lora_quantize")]


def near(got: object, want: np.ndarray, rtol: float) -> None:
    """Within rtol of the largest value."""
    assert np.asarray(got).ravel() == pytest.approx(want.ravel(), rel=0, abs=1e-30 + rtol * float(np.abs(want).max()))


@pytest.mark.parametrize("case", ADAPTERS, ids=str)
def test_adapter(case: GoldenCase) -> None:
    adapter = LoRAAdapter(**keywords(case.config))
    assert (adapter.rank, adapter.alpha, adapter.scale) == (case["rank"], case["alpha"], pytest.approx(case["scale"]))
    assert adapter.num_params() == case["num_params"]
    assert adapter.A.tobytes() == case.raw("A0")
    assert not adapter.delta().any()
    assert adapter.serialize() == case.raw("serialized0")
    adapter.B[...] = case.file("B").reshape(adapter.B.shape)
    near(adapter.delta(), case.file("delta"), 1e-5)
    near(adapter.apply_to(case.file("base")), case.file("applied"), 1e-5)
    for g, gb, ga in (("gW1", "gB1", "gA1"), ("gW2", "gB12", "gA12")):
        adapter.accumulate_gradient(case.file(g))
        near(adapter.gradients()[0].data, case.file(gb), 2e-4)
        near(adapter.gradients()[1].data, case.file(ga), 2e-4)
    adapter.zero_grad()
    assert not any(g.data.any() for g in adapter.gradients())
    assert adapter.serialize() == case.raw("serialized")


@pytest.mark.parametrize("case", ADAPTERS, ids=str)
def test_adapter_file(case: GoldenCase) -> None:
    """TR15: alpha travels with the file, so that the scale after loading is the one before."""
    loaded = LoRAAdapter.deserialize(case.raw("serialized"))
    for name, value in case["deserialized"].items():
        assert getattr(loaded, name) == pytest.approx(value, rel=1e-12)
    near(loaded.delta(), case.file("delta"), 1e-5)
    assert loaded.serialize() == case.raw("serialized")


@pytest.mark.parametrize("case", BASES, ids=str)
def test_quantized_base(case: GoldenCase) -> None:
    mode = case.config["mode"]
    base = quantize_base(case.file("base"), mode)
    assert base.bytes == case["bytes"]
    near(base.view, case.file("view"), 1e-3 if mode == "fp16" else 1e-6)


@pytest.mark.parametrize("case", FITS, ids=str)
def test_fit_leaves_the_base_alone(case: GoldenCase, backend: Backend) -> None:
    setup, options = keywords(case["lora"]), keywords(case["options"])
    half = setup.get("base_quant") == "fp16"  # the reference truncates, this package rounds: one code of the base
    model = model_of(case, backend)
    lora = EvermindLMLoRA(model, **setup)
    near(lora.merged_emb(), case.file("merged_emb0"), 1e-3 if half else 1e-6)
    first, later = (1e-2, 1e-2) if half else (1e-4, 2e-3)
    second = case["second_fit"]
    fits = [
        (case["sequences"], options, case["history"], first, later),
        (second["sequences"], keywords(second["options"]), second["history"], 5 * later, later),
    ]
    for sequences, settings, want, start, rest in fits:
        history = lora.fit(sequences, **settings)
        assert history[:1] == pytest.approx(want[:1], rel=start)
        assert history[1:] == pytest.approx(want[1:], rel=rest)
    assert model.export_weights() == case.raw("checkpoint")
    got, adapter = lora.serialize_adapter(), case.raw("adapter")
    assert got[:20] == adapter[:20]
    step = options.get("lr", 0.01) * (10 if half else 1)
    assert weights_agree(str(case), body(got, 20), body(adapter, 20), step, share=0.05) == []
    for name, value in keywords(case["footprint"]).items():
        assert getattr(lora.footprint(), name) == value
    lora.dispose()
    model.dispose()


@pytest.mark.parametrize("case", FITS, ids=str)
def test_load_generate_and_merge(case: GoldenCase, backend: Backend) -> None:
    quant = case["lora"].get("baseQuant", "none")
    rtol = 1e-3 if quant == "fp16" else 2e-6
    model = model_of(case, backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the file does not name its base
        lora = EvermindLMLoRA.load_adapter(model, case.raw("adapter"), base_quant=quant)
    near(lora.merged_emb(), case.file("loaded_merged_emb"), rtol)
    if quant != "fp16":
        for run in case["runs"]:
            if run["prompt"]:
                assert lora.generate(run["prompt"], **keywords(run["options"])) == run["output"]
    before, merged = case.raw("checkpoint"), lora.merge()
    size = 36 + 4 * case.file("loaded_merged_emb").size
    assert merged[:36] == before[:36]
    assert merged[size:-8] == before[size:-8]
    near(body(merged[:size]), case.file("loaded_merged_emb"), rtol)
    if quant != "fp16":
        run = case["runs"][0]
        assert model.generate(run["prompt"], **keywords(run["options"])) == case["generate_after_merge"]
    near(lora.merged_emb(), case.file("loaded_merged_emb"), rtol)  # merging again does not apply it twice
    lora.dispose()
    model.dispose()
