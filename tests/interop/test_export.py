"""Export and import of whole models, against the reference's files."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import tokenizers

from evermind_web import (
    EXPORT_FORMATS,
    BPETokenizer,
    EvermindLM,
    arch_of,
    config_json,
    evermind_tensor_spec,
    export_evermind,
    export_gguf,
    export_onnx,
    export_safetensors,
    generation_config_json,
    import_evermind,
    import_evermind_tensors,
    infer_arch_from_tensors,
    named_tensors,
    param_count,
    safetensors_to_tensors,
    tensors_to_safetensors,
)
from evermind_web.errors import EvermindError, FormatError, InvalidArgumentError
from evermind_web.formats.safetensors_io import NamedTensor, read_metadata
from evermind_web.interop.card import yaml_scalar
from tests.golden_data import load_case

MODELS = ("main", "second")


def golden_model(name: str) -> EvermindLM:
    return EvermindLM.from_checkpoint(load_case("export", f"export_{name}").raw("checkpoint"))


def small(**changes: int) -> EvermindLM:
    shape: dict[str, Any] = {"vocab_size": 11, "d_model": 4, "num_layers": 2, "hidden_dim": 6, "num_experts": 3}
    return EvermindLM(**{**shape, "top_k": 1, **changes})


@pytest.mark.parametrize("name", MODELS)
def test_names_shapes_and_counts(name: str) -> None:
    case, lm = load_case("export", f"export_{name}"), golden_model(name)
    want = [(t["name"], tuple(t["shape"])) for t in case["tensor_spec"]]
    assert [(t.name, t.data.shape) for t in named_tensors(lm)] == want
    assert [(t.name, t.shape) for t in evermind_tensor_spec(arch_of(lm))] == want
    assert param_count(lm) == case["param_count"] == sum(t.data.size for t in named_tensors(lm))


@pytest.mark.parametrize("name", MODELS)
def test_single_files_hold_the_reference_weights(name: str) -> None:
    case, lm = load_case("export", f"export_{name}"), golden_model(name)
    ours, theirs = (safetensors.numpy.load(d) for d in (export_safetensors(lm), case.raw("safetensors")))
    assert all(ours[key].tobytes() == array.tobytes() for key, array in theirs.items())
    assert ours.keys() == theirs.keys()
    assert export_gguf(lm) == case.raw("gguf")
    assert export_onnx(lm, "p", "7") == case.raw("onnx_named")


def test_metadata_is_ours_and_the_callers() -> None:
    lm = small(top_k=3)
    assert read_metadata(export_safetensors(lm))["evermind.top_k"] == "3"
    given = read_metadata(export_safetensors(lm, metadata={"producer": "me", "note": "hi"}))
    assert given == {"format": "pt", "producer": "me", "note": "hi"}


@pytest.mark.parametrize("name", MODELS)
def test_sidecar_files_are_the_reference_values(name: str) -> None:
    case, lm = load_case("export", f"export_{name}_hf"), golden_model(name)
    assert config_json(lm) == json.loads(case.raw("config.json"))
    assert generation_config_json() == json.loads(case.raw("generation_config.json"))
    registry = load_case("export", f"export_{name}_registry")
    assert {(f.id, f.ext) for f in EXPORT_FORMATS} == {(f["id"], f["ext"]) for f in registry["formats"]}


def test_a_hugging_face_repository_works_with_their_libraries(tmp_path: Path) -> None:
    tokenizer = BPETokenizer()
    tokenizer.train("the cat sat on the mat, the cat sat. " * 3, num_merges=20)
    lm = small(vocab_size=tokenizer.vocab_size)
    result = export_evermind(
        lm, "huggingface", tokenizer=tokenizer, name="Cat", author="A. N.", description="Démo", tags=["x: y"], fp16=True
    )
    for file in result.files:
        content = file.data.encode("utf-8") if isinstance(file.data, str) else file.data
        (tmp_path / file.path).write_bytes(content)
    names = "model.safetensors model.onnx model.gguf config.json generation_config.json tokenizer.json README.md"
    assert [f.path for f in result.files] == names.split()
    text = "the cat sat"
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert theirs.encode(text).ids == tokenizer.encode(text)
    weights = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    assert weights["token_embedding.weight"].dtype == np.float16
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    for part in ("license: mit\n", '  - "x: y"\n', "# Cat\n", "Démo", "A. N.", f"{lm.num_parameters:,}"):
        assert part in card


def test_values_that_fp16_loses_are_counted() -> None:
    lm = small()
    name = "layers.1.moe.experts.2.w2"
    array = np.full((4, 6), 1e-9, np.float32)
    array[0, 0] = 0.5
    lm.set_parameter(name, array)
    assert export_evermind(lm, "safetensors", fp16=True).lost_to_zero == 23
    assert export_evermind(lm, "safetensors").lost_to_zero == 0
    array[0, 0] = 1e5
    lm.set_parameter(name, array)
    for fmt in ("safetensors", "gguf"):
        with pytest.raises(InvalidArgumentError, match=r"layers\.1\.moe\.experts\.2\.w2 does not fit fp16"):
            export_evermind(lm, fmt, fp16=True)


def test_bad_export_calls() -> None:
    with pytest.raises(InvalidArgumentError, match="unknown format 'pt': expected one of huggingface, onnx"):
        export_evermind(small(), "pt")
    with pytest.raises(InvalidArgumentError, match="needs the tokenizer"):
        export_evermind(small(), "huggingface")


def test_yaml_scalars_cannot_break_the_front_matter() -> None:
    assert [yaml_scalar(t) for t in ("apache-2.0", "y z", "a: b", "x\ny", "- x", "")] == [
        "apache-2.0",
        "y z",
        '"a: b"',
        '"x\\ny"',
        '"- x"',
        '""',
    ]


# ── import ──
@pytest.mark.parametrize("name", MODELS)
def test_import_gives_the_references_checkpoints(name: str) -> None:
    case, source = load_case("export", f"import_{name}"), load_case("export", f"export_{name}")
    top_k = case.config["topK"]
    assert import_evermind(source.raw("safetensors"), top_k=top_k).export_weights() == case.raw("evl0")
    assert import_evermind(source.raw("safetensors_fp16"), top_k=top_k).export_weights() == case.raw("fp16_evl0")
    for wanted, key in ((None, "inferred"), (99, "inferred_topk_99")):
        arch = infer_arch_from_tensors(safetensors_to_tensors(source.raw("safetensors")), top_k=wanted)
        assert list(arch) == list(case[key].values())


def test_our_files_keep_top_k_and_foreign_ones_warn() -> None:
    lm = small(top_k=3)
    assert import_evermind(export_safetensors(lm)).export_weights() == lm.export_weights()
    foreign = export_safetensors(lm, metadata={})
    with pytest.warns(UserWarning, match="assuming top_k=2"):
        assert import_evermind(foreign).config.top_k == 2
    assert import_evermind(foreign, top_k=3).export_weights() == lm.export_weights()
    assert import_evermind(foreign, arch=lm.config).export_weights() == lm.export_weights()


def test_rename_maps_and_drops() -> None:
    lm = small()
    tensors: list[Any] = [t._replace(name=f"model.{t.name}") for t in named_tensors(lm)]
    extra = SimpleNamespace(name="rotary", shape=(1,), data=np.zeros(1, np.float32))

    def rename(name: str) -> str | None:
        return name.removeprefix("model.") if name.startswith("model.") else None

    got = import_evermind_tensors([*tensors, extra], top_k=1, rename=rename)
    assert got.export_weights() == lm.export_weights()
    with pytest.raises(FormatError, match="two tensors are named"):
        import_evermind_tensors([*tensors, *tensors], top_k=1, rename=rename)
    with pytest.warns(UserWarning, match="no place for 1 tensors, such as 'rotary'"):
        import_evermind_tensors([*named_tensors(lm), extra], top_k=1)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("token_embedding.weight", "there is no tensor 'token_embedding.weight'"),
        ("layers.0.conv.weight", "there is no tensor 'layers.0.conv.weight'"),
        ("layers.0.moe.shared.w1", "there is no tensor 'layers.0.moe.shared.w1'"),
        ("layers.1.norm_moe.weight", r"'layers.1.norm_moe.weight' \[4\] is missing"),
    ],
)
def test_import_names_what_is_missing(name: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        import_evermind_tensors([t for t in named_tensors(small()) if t.name != name], top_k=1)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("layers.999999999.conv.weight", "more than any device"),
        ("layers.4000.conv.weight", "'layers.2.conv.weight' .* is missing"),
        ("layers.0.moe.experts.9000000.w1", "'layers.0.moe.router.weight' has shape"),
        (f"layers.{'9' * 5000}.conv.weight", ""),
        (f"layers.0.moe.experts.{'9' * 5000}.w1", ""),
    ],
)
def test_numbers_in_names_that_no_file_can_hold_do_not_hang(name: str, message: str) -> None:
    tensors = [*named_tensors(small()), NamedTensor(name, (2,), np.zeros(2, np.float32))]
    if message:
        with pytest.raises(EvermindError, match=message):
            import_evermind_tensors(tensors, top_k=1)
    else:
        with pytest.warns(UserWarning, match="no place for 1 tensors"):
            import_evermind_tensors(tensors, top_k=1)


def test_digits_without_end_in_names_and_metadata_are_text() -> None:
    endless = "9" * 5000
    data = tensors_to_safetensors([*named_tensors(small()), NamedTensor(endless, (1,), np.zeros(1, "f4"))])
    assert endless in [t.name for t in safetensors_to_tensors(data)]
    data = tensors_to_safetensors(named_tensors(small()), metadata={"evermind.top_k": endless})
    with pytest.warns(UserWarning, match="assuming top_k"):
        assert import_evermind(data).config.num_experts == small().config.num_experts


def test_import_refuses_a_transposed_matrix_and_takes_unit_dimensions() -> None:
    lm = small()
    name = "layers.1.moe.shared.w1"
    flipped = [t._replace(shape=t.shape[::-1], data=t.data.T) if t.name == name else t for t in named_tensors(lm)]
    with pytest.raises(
        FormatError, match=r"'layers.1.moe.shared.w1' has shape \[4, 6\] and 24 values, expected \[6, 4\]"
    ):
        import_evermind_tensors(flipped, top_k=1)
    conv = [t._replace(shape=(4, 1, 3), data=t.data[:, None]) if ".conv.w" in t.name else t for t in named_tensors(lm)]
    assert import_evermind_tensors(conv, top_k=1).export_weights() == lm.export_weights()


def test_import_without_layers_or_with_top_k_zero() -> None:
    with pytest.raises(FormatError, match="without layers cannot be imported"):
        import_evermind(load_case("export", "export_nolayers").raw("safetensors"))
    with warnings.catch_warnings(), pytest.raises(InvalidArgumentError, match="top_k"):
        import_evermind_tensors(named_tensors(small()), top_k=0)
