"""EvermindModelPackage: what is inside is checked before a model is made."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from evermind_web import EvermindLM, EvermindModelPackage, SharedExpertMoE
from evermind_web.errors import ConfigMismatchError, FormatError
from evermind_web.formats.package import manifest_text, read_package, write_package
from tests.golden_data import load_case

CARD = {"description": "d", "base_model": "b"}


def blob(name: str) -> bytes:
    return load_case("package", f"package_{name}").raw("blob")


def tampered(name: str, change: Callable[[dict[str, Any]], Any]) -> EvermindModelPackage:
    parts = read_package(blob(name))
    change(parts.manifest)
    return EvermindModelPackage.from_blob(write_package(manifest_text(parts.manifest), parts.checkpoint, parts.codec))


@pytest.mark.parametrize("name", ["moe", "moe_fp16", "lm", "lm_fp16", "media"])
def test_reference_packages_are_sound_and_come_back_byte_for_byte(name: str) -> None:
    package = EvermindModelPackage.from_blob(blob(name))
    assert package.validate().ok
    assert package.validate().errors == []
    assert package.to_blob() == blob(name)


def test_a_packed_model_is_the_references_package() -> None:
    manifest = json.loads(load_case("package", "package_lm")["manifest_json"])
    lm = EvermindModelPackage.from_blob(blob("lm")).load_lm()
    made = EvermindModelPackage.from_lm(lm, manifest["name"], manifest["version"], manifest["card"])
    assert made.to_blob() == blob("lm")
    moe = EvermindModelPackage.from_blob(blob("moe")).load_model()
    assert moe.export_weights() == read_package(blob("moe")).checkpoint


def test_card_and_time_are_written() -> None:
    moe = SharedExpertMoE(3, 4, 2, 1)
    package = EvermindModelPackage.from_model(moe, "n", "1", CARD, created_at="2020-01-02T03:04:05Z")
    assert package.manifest["card"] == {"description": "d", "baseModel": "b"}
    assert package.manifest["createdAt"] == "2020-01-02T03:04:05Z"
    assert package.manifest["config"] == {"modelDim": 3, "hiddenDim": 4, "numExperts": 2, "topK": 1}
    again = EvermindModelPackage.from_blob(package.to_blob()).load_model()
    assert again.export_weights() == moe.export_weights()


TAMPERED: dict[str, tuple[str, Callable[[dict[str, Any]], Any], str]] = {
    "schema": ("moe", lambda m: m.update(schema="evermind.model/2"), "unknown schema: evermind.model/2"),
    "type": ("moe", lambda m: m.update(modelType="other"), "unsupported model type: other"),
    "top_k": ("moe", lambda m: m["config"].update(topK=99), "invalid config: top_k"),
    "vocabulary": ("lm", lambda m: m["config"].update(vocabSize=0), "invalid config: vocab_size"),
    "text": ("lm", lambda m: m["config"].update(vocabSize="23"), "invalid config: expected whole numbers"),
    "no config": ("lm", lambda m: m.pop("config"), "invalid config"),
    "checksum": ("lm", lambda m: m.update(checksum=1), "checksum mismatch: manifest 1, checkpoint"),
    "modality": ("lm", lambda m: m.update(modality="video"), "modality video needs a codec"),
    "codec": ("media", lambda m: m.update(codecChecksum=5), "codec checksum mismatch: manifest 5"),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_validate_names_the_problem_and_nothing_loads(what: str) -> None:
    name, change, message = TAMPERED[what]
    package = tampered(name, change)
    (error,) = package.validate().errors
    assert message in error
    for load in (package.load_lm, package.load_model):
        with pytest.raises(FormatError, match="model package: "):
            load()


def test_several_problems_are_all_listed() -> None:
    package = tampered("lm", lambda m: (m["config"].update(vocabSize=0), m.update(checksum=0)))
    assert [error.split(":")[0] for error in package.validate().errors] == ["invalid config", "checksum mismatch"]


def test_a_changed_checkpoint_and_another_type() -> None:
    data = blob("lm")
    damaged = EvermindModelPackage.from_blob(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(FormatError, match="checksum mismatch"):
        damaged.load_lm()
    with pytest.raises(FormatError, match=r"holds a evermind-lm; use load_lm\(\)"):
        EvermindModelPackage.from_blob(data).load_model()
    with pytest.raises(ConfigMismatchError, match="d_model 5 instead of 6"):
        tampered("lm", lambda m: m["config"].update(dModel=6)).load_lm()


def test_fp16_package_loads_the_rounded_weights() -> None:
    lm = EvermindLM(7, 4, 1, num_experts=2, hidden_dim=3)
    package = EvermindModelPackage.from_lm(lm, "n", "1", CARD, fp16=True)
    assert package.manifest["checkpointFp16"] is True
    rounded = EvermindModelPackage.from_blob(package.to_blob()).load_lm()
    assert rounded.export_weights(fp16=True) == lm.export_weights(fp16=True) != lm.export_weights()
