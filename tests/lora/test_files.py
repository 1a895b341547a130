"""Adapters as files: the reference's blob and PEFT's pair, both directions, and everything that is refused."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from evermind_web.backend.base import Backend
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.errors import ConfigMismatchError, FormatError, InvalidArgumentError
from evermind_web.lora import EvermindLMLoRA, LoRAAdapter, LoraConfig, LoraModel
from evermind_web.lora.peft_io import CONFIG_FILE, WEIGHTS_FILE
from evermind_web.model import EvermindLM
from tests.lora.common import EVERYTHING, TEXTS, adapted, base_model

EMB = LoraConfig(r=8, lora_alpha=16)
PREFIX = "base_model.model."


def edited(files: dict[str, bytes], **settings: object) -> dict[str, bytes]:
    """The files with other settings; None removes one."""
    values = {k: v for k, v in (json.loads(files[CONFIG_FILE]) | settings).items() if v is not None}
    return {**files, CONFIG_FILE: json.dumps(values).encode()}


def with_tensors(files: dict[str, bytes], **changes: np.ndarray | None) -> dict[str, bytes]:
    """The files with tensors replaced, added or (None) removed."""
    tensors = load_safetensors(files[WEIGHTS_FILE]) | {PREFIX + name: value for name, value in changes.items()}
    kept = {name: np.ascontiguousarray(value) for name, value in tensors.items() if value is not None}
    return {**files, WEIGHTS_FILE: save_safetensors(kept)}


@pytest.mark.parametrize("rslora", [False, True])
def test_tr15_save_and_reload_gives_the_same_bits(backend: Backend, rslora: bool) -> None:
    config = LoraConfig(**{**vars(EVERYTHING), "use_rslora": rslora, "lora_dropout": 0.25})
    model = adapted(backend, config)
    before, files = model.forward(TEXTS[-1]), model.save_adapter("a")
    other = LoraModel(base_model(backend))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the files name their base
        other.load_adapter("again", files)
    assert np.array_equal(other.forward(TEXTS[-1]), before)
    for name, part in model.adapter("a").parts.items():
        again = other.adapter("again").parts[name]
        assert (again.scale, again.rank, again.alpha) == (part.scale, part.rank, part.alpha)
    assert other.adapter("again").config.lora_dropout == 0.25
    assert (
        load_safetensors(other.save_adapter("again")[WEIGHTS_FILE]).keys()
        == load_safetensors(files[WEIGHTS_FILE]).keys()
    )
    model.dispose()
    other.dispose()


def test_tr15_alpha_16_of_rank_8_is_scale_2_whatever_the_defaults() -> None:
    model = adapted(NumpyBackend(), EMB)
    files = model.save_adapter("a")
    assert json.loads(files[CONFIG_FILE])["lora_alpha"] == 16
    other = LoraModel(base_model(NumpyBackend()))
    other.load_adapter("a", files)
    assert other.adapter("a").parts["token_embedding.weight"].scale == 2.0
    assert np.array_equal(model.forward(TEXTS[0]), other.forward(TEXTS[0]))


def test_lora_blob_in_both_directions(backend: Backend) -> None:
    model = adapted(backend, EMB)
    blob, base = model.save_lora_blob("a"), base_model(backend)
    single = EvermindLMLoRA.load_adapter(base, blob, base_fingerprint=base.fingerprint())
    assert np.array_equal(single.forward(TEXTS[0]), model.forward(TEXTS[0]))
    other = LoraModel(base)
    with pytest.warns(UserWarning, match="does not say which base"):
        other.load_adapter("b", single.serialize_adapter())
    assert np.array_equal(single.forward(TEXTS[0]), other.forward(TEXTS[0]))
    other.add_adapter("many", EVERYTHING)
    with pytest.raises(InvalidArgumentError, match="a LORA file holds the embedding only"):
        other.save_lora_blob("many")
    for thing in (single, other, model):
        thing.dispose()


def test_keys_are_those_of_peft_and_mean_the_same() -> None:
    """delta of a matrix is scale · B A, of an embedding scale · (B A)ᵀ, computed here from the file alone."""
    model = adapted(NumpyBackend())
    files = model.save_adapter("a")
    settings, tensors = json.loads(files[CONFIG_FILE]), load_safetensors(files[WEIGHTS_FILE])
    assert (settings["peft_type"], settings["r"], settings["lora_alpha"]) == ("LORA", 4, 6)
    assert settings["base_fingerprint"] == base_model(NumpyBackend()).fingerprint()
    assert len(tensors) == 2 * len(settings["target_modules"]) == 2 * len(model.adapter("a").parts)
    for name, part in model.adapter("a").parts.items():
        module = name.removesuffix(".weight")
        assert module in settings["target_modules"]
        scale = settings["alpha_pattern"].get(module, 6) / settings["rank_pattern"].get(module, 4)
        if "embedding" in name:
            a, b = (tensors[f"{PREFIX}{module}.lora_embedding_{x}"] for x in "AB")
            delta = scale * (b @ a).T
        else:
            a, b = (tensors[f"{PREFIX}{module}.lora_{x}.weight"] for x in "AB")
            delta = scale * (b @ a)
        assert np.allclose(delta, part.delta(), rtol=1e-5, atol=1e-6), name
        assert part.delta().any()


def test_a_file_as_peft_itself_writes_it(cpu: Backend) -> None:
    """Suffix targets, no base fingerprint, PEFT's many other keys."""
    rng = np.random.default_rng(1)
    tensors = {}
    for layer in range(2):
        tensors[f"{PREFIX}layers.{layer}.moe.shared.w1.lora_A.weight"] = rng.standard_normal((2, 12)).astype("f4")
        tensors[f"{PREFIX}layers.{layer}.moe.shared.w1.lora_B.weight"] = rng.standard_normal((20, 2)).astype("f4")
    settings = {
        "peft_type": "LORA", "task_type": None, "auto_mapping": None, "base_model_name_or_path": "x", "bias": "none",
        "r": 2, "lora_alpha": 4, "lora_dropout": 0.0, "target_modules": ["shared.w1"], "use_rslora": False,
        "use_dora": False, "modules_to_save": None, "fan_in_fan_out": False, "rank_pattern": {}, "alpha_pattern": {},
    }  # fmt: skip
    files = {CONFIG_FILE: json.dumps(settings).encode(), WEIGHTS_FILE: save_safetensors(tensors)}
    model = LoraModel(base_model(cpu))
    with pytest.warns(UserWarning, match="does not say which base"):
        model.load_adapter("peft", files)
    delta = model.adapter("peft").parts["layers.1.moe.shared.w1"].delta()
    a, b = (tensors[f"{PREFIX}layers.1.moe.shared.w1.lora_{x}.weight"] for x in "AB")
    assert np.allclose(delta, 2 * (b @ a), rtol=1e-5, atol=1e-6)


def test_tr13_another_base_is_refused(backend: Backend) -> None:
    model = adapted(backend, EMB)
    files, blob, fingerprint = model.save_adapter("a"), model.save_lora_blob("a"), model.base.model.fingerprint()
    wide = EvermindLM(37, 24, 2, 3, 20, 3, 2, backend=backend)
    other = LoraModel(wide)
    for data in (files, blob):
        with pytest.raises(ConfigMismatchError, match=r"token_embedding\S*: adapter \(37, 12\), base \(37, 24\)"):
            other.load_adapter("a", data, base_fingerprint=fingerprint)
    retrained = EvermindLM(37, 12, 2, 3, 20, 3, 2, seed=5, backend=backend)
    other = LoraModel(retrained)
    for data, given in ((files, None), (blob, fingerprint)):
        with pytest.raises(ConfigMismatchError, match=rf"trained on base {fingerprint[:12]}…, this base is"):
            other.load_adapter("a", data, base_fingerprint=given)
        assert other.adapter_names == []
    other.load_adapter("a", files, force=True)
    assert other.adapter_names == ["a"]
    with pytest.raises(ConfigMismatchError, match="trained on base"):
        EvermindLMLoRA.load_adapter(retrained, blob, base_fingerprint=fingerprint)
    EvermindLMLoRA.load_adapter(retrained, blob, base_fingerprint=fingerprint, force=True).dispose()


def test_tr13_the_fingerprint_of_a_packed_base_is_that_of_its_checkpoint(cpu: Backend) -> None:
    base = base_model(cpu)
    packed = LoraModel.from_checkpoint(base.export_weights(), cpu, "int8-row")
    packed.load_adapter("a", adapted(cpu, EMB).save_adapter("a"))
    assert json.loads(packed.save_adapter("a")[CONFIG_FILE])["base_fingerprint"] == base.fingerprint()


def test_tr14_a_rank_that_no_adapter_can_have_is_refused_at_load(cpu: Backend) -> None:
    files = adapted(cpu, LoraConfig(r=3, target_modules=["conv"])).save_adapter("a")
    with pytest.raises(InvalidArgumentError, match=r"layers.0.conv: rank 4 exceeds min\(in 3, out 12\)"):
        LoraModel(base_model(cpu)).load_adapter("a", edited(files, r=4))
    with pytest.raises(FormatError, match=r"rank 3 in adapter_model\.safetensors, 2 in adapter_config\.json"):
        LoraModel(base_model(cpu)).load_adapter("a", edited(files, r=2))
    with pytest.raises(FormatError, match="rank must be a whole number from 1 on, got 0"):
        LoraModel(base_model(cpu)).load_adapter("a", edited(files, r=0))


def test_tr19_an_adapter_of_the_tied_head(cpu: Backend) -> None:
    """The same as the embedding's is left out; another one is refused with both names."""
    files = adapted(cpu, EMB).save_adapter("a")
    tensors = load_safetensors(files[WEIGHTS_FILE])
    emb_a, emb_b = (tensors[f"{PREFIX}token_embedding.lora_embedding_{x}"] for x in "AB")
    same = {"lm_head.lora_A.weight": emb_b.T, "lm_head.lora_B.weight": emb_a.T}
    model = LoraModel(base_model(cpu))
    model.load_adapter("a", with_tensors(files, **same))
    assert model.save_adapter("a")[WEIGHTS_FILE] == files[WEIGHTS_FILE]
    other = same | {"lm_head.lora_B.weight": 2 * emb_a.T}
    with pytest.raises(FormatError, match=r"lm_head.lora_B.weight and .*token_embedding.lora_embedding_A differ"):
        model.load_adapter("b", with_tensors(files, **other))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: {CONFIG_FILE: f[CONFIG_FILE]}, "missing: adapter_model.safetensors"),
        (lambda f: {**f, CONFIG_FILE: b"{"}, "no valid JSON"),
        (lambda f: edited(f, peft_type="IA3"), "expected an object with peft_type LORA, got 'IA3'"),
        (lambda f: edited(f, bias="all"), "bias = 'all' is not supported"),
        (lambda f: edited(f, use_dora=True), "use_dora = True is not supported"),
        (lambda f: edited(f, layer_replication=[[0, 1]]), "layer_replication = .* is not supported"),
        (lambda f: edited(f, use_rslora="yes"), "use_rslora must be true or false"),
        (lambda f: edited(f, base_fingerprint=5), "base_fingerprint must be a text"),
        (lambda f: edited(f, target_modules=3), "target_modules must be a list of names"),
        (lambda f: edited(f, target_modules=["token_embedding", "router"], rank_pattern={"router": 2}), "has no"),
        (lambda f: with_tensors(f, **{"x.lora_A.weight": np.zeros((1, 1), "f4")}), "target_modules lacks: .*x.lora"),
        (lambda f: with_tensors(f, **{"token_embedding.lora_embedding_A": None}), "has no .*lora_embedding_A"),
        (lambda f: {**f, WEIGHTS_FILE: f[WEIGHTS_FILE][:-4]}, "truncated|expected"),
        (lambda f: {**f, WEIGHTS_FILE: b"\x80\x04\x95 pickle"}, "looks like"),
    ],
)  # fmt: skip
def test_files_that_are_refused(cpu: Backend, change: object, message: str) -> None:
    model = adapted(cpu, EMB)
    files = change(model.save_adapter("a"))  # type: ignore[operator]
    with pytest.raises(FormatError, match=message):
        model.load_adapter("b", files)
    assert model.adapter_names == ["a"]


def test_ck6_fp16_files_count_what_became_zero_and_refuse_what_overflows(cpu: Backend) -> None:
    model = adapted(cpu, EMB)
    part = model.adapter("a").parts["token_embedding.weight"]
    part.A[0, :4] = 1e-8, 3e-8, 1e-6, 6.1e-5
    with pytest.warns(UserWarning, match=r"1 of \d+ adapter values became 0 in fp16"):
        files = model.save_adapter("a", fp16=True)
    half = load_safetensors(files[WEIGHTS_FILE])[f"{PREFIX}token_embedding.lora_embedding_B"][:4, 0]
    assert half.astype(np.float64).tolist() == [0, 5.960464477539063e-08, 1.0132789611816406e-06, 6.097555160522461e-05]
    other = LoraModel(base_model(cpu))
    other.load_adapter("a", files)
    part.A[0, 0] = 65520
    with pytest.raises(InvalidArgumentError, match=r"token_embedding.lora_embedding_B does not fit fp16"):
        model.save_adapter("a", fp16=True)


def test_an_adapter_made_by_hand_survives(cpu: Backend) -> None:
    part = LoRAAdapter(37, 12, 4, 2.0, use_rslora=True)
    part.B[...] = 1
    again = LoRAAdapter.deserialize(part.serialize())  # the file knows alpha/rank only: the scale is kept
    assert again.scale == pytest.approx(part.scale, rel=1e-7)
