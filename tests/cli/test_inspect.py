"""`inspect` and `convert`: every kind of file, whole and damaged."""

from __future__ import annotations

import io
import json
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evermind_web as ew
from evermind_web import limbic
from evermind_web.cli import main
from evermind_web.cli.contents import contents
from evermind_web.errors import FormatError
from evermind_web.session.container import ADAPTER, MODEL, TOKENIZER, Package, pack
from evermind_web.store import MemoryStore, SaveItem, export_all


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """One file of each kind, made by the public API."""
    model = ew.EvermindLM(9, 4, 1, hidden_dim=3, num_experts=2, top_k=1, seed=5)
    changed = ew.EvermindLM(9, 4, 1, hidden_dim=3, num_experts=2, top_k=1, seed=6)
    base = model.export_weights()
    trainer = ew.EvermindLMTrainer(changed)
    trainer.fit([[1, 2, 3, 4]])
    moe = ew.SharedExpertMoE(4, 3, 2, 1)
    tokenizer = ew.BPETokenizer()
    tokenizer.train("the cat and the hat and the bat", num_merges=5)
    adapter = ew.LoRAAdapter(9, 4, 2, alpha=4).serialize()
    mood = limbic.LimbicModel(3, 4, 8)
    return {
        "model.evl0": base,
        "half.evl0": model.export_weights(fp16=True),
        "adapter.lora": adapter,
        "delta.evd0": changed.export_delta(base),
        "mixture.moe0": moe.export_weights(),
        "mood.lmbc": mood.export_weights(),
        "mood.json": limbic.LimbicSession(mood).to_json().encode(),
        "package.evm1": ew.EvermindModelPackage.from_lm(model, "tiny", "1", {"license": "mit"}).to_blob(),
        "model.safetensors": ew.export_safetensors(model),
        "state.safetensors": trainer.save_state(),
        "model.gguf": ew.export_gguf(model, name="tiny"),
        "half.gguf": ew.export_gguf(model, fp16=True),
        "model.onnx": ew.export_onnx(model),
        "tokenizer.json": tokenizer.to_str().encode(),
        "exported.zip": pack(Package("base", "mine", {MODEL: base, TOKENIZER: tokenizer.to_str().encode()}, "ab")),
        "exported-adapter.zip": pack(Package("adapter", "me", {ADAPTER: adapter}, "ab")),
    }


CHECKS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "model.evl0": lambda c: c["config"]["vocab_size"] == 9 and c["stored_as"] == "float32" and "verified" in c["crc32"],
    "half.evl0": lambda c: c["stored_as"] == "fp16" and c["values"]["not_finite"] == 0,
    "adapter.lora": lambda c: (c["matrix"], c["rank"], c["scale"]) == ([9, 4], 2, 2.0),
    "delta.evd0": lambda c: c["rows"] > 0 and c["row_size"] in (1, 4) and "verified" in c["crc32"],
    "mixture.moe0": lambda c: c["config"] == {"model_dim": 4, "hidden_dim": 3, "num_experts": 2, "top_k": 1},
    "mood.lmbc": lambda c: c["config"]["hidden_dim"] == 4 and c["tensors"][0]["shape"] == [4, 3],
    "mood.json": lambda c: c["kind"] == "limbic session" and c["state"]["attention"] == pytest.approx(0.7),
    "package.evm1": lambda c: c["manifest"]["name"] == "tiny" and c["checkpoint"]["config"]["d_model"] == 4,
    "model.safetensors": lambda c: c["metadata"]["evermind.top_k"] == "1" and c["tensors"][0]["shape"] == [9, 4],
    "state.safetensors": lambda c: c["manifest"]["step"] == 1 and "training state" in c["kind"],
    "model.gguf": lambda c: c["metadata"]["general.name"] == "tiny" and c["tensors"][0]["shape"] == [9, 4],
    "half.gguf": lambda c: c["tensors"][0]["dtype"] == "F16",
    "model.onnx": lambda c: "ONNX" in c["kind"],
    "tokenizer.json": lambda c: c["vocab_size"] == 260 + c["merges"] and c["special_tokens"]["<|im_end|>"] == 2,
    "exported.zip": lambda c: c["name"] == "mine" and c["members"]["model.evl0"]["config"]["top_k"] == 1,
    "exported-adapter.zip": lambda c: c["base_fingerprint"] == "ab" and c["members"]["adapter.lora"]["rank"] == 2,
}


@pytest.mark.parametrize("name", CHECKS)
def test_each_kind_is_read(
    name: str, files: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"  # the name does not help
    path.write_bytes(files[name])
    assert main(["inspect", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bytes"] == len(files[name])
    assert CHECKS[name](found)
    assert main(["inspect", str(path)]) == 0
    assert capsys.readouterr().out.startswith(f"kind: {found['kind']}\n")


def test_every_kind_is_checked(files: dict[str, bytes]) -> None:
    assert set(CHECKS) == set(files)


@pytest.mark.parametrize("name", [name for name in CHECKS if name != "model.onnx"])
def test_a_cut_file_is_an_error_in_one_line(
    name: str, files: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    data = files[name]
    for keep in (4, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:keep])
        assert main(["inspect", str(path)]) == 1, keep
        assert len(capsys.readouterr().err.strip().splitlines()) == 1


GUARDED = ("model.evl0", "half.evl0", "delta.evd0", "package.evm1", "state.safetensors", "exported.zip")


@pytest.mark.parametrize("name", GUARDED)
def test_a_changed_weight_is_noticed_where_the_file_has_a_checksum(name: str, files: dict[str, bytes]) -> None:
    data = bytearray(files[name])
    at = data.index(b"\x00\x00\x80?") if b"\x00\x00\x80?" in data else len(data) - 20  # a gain of 1, or near the end
    data[at + 1] ^= 0x10
    with pytest.raises(FormatError):
        contents(bytes(data))


async def test_a_backup_lists_its_records() -> None:
    store = MemoryStore()
    await store.save_many([SaveItem("one", b"123", "base"), SaveItem("two", b"4", "adapter", "ff")])
    found = contents(await export_all(store))
    assert [(r["name"], r["kind"], r["bytes"]) for r in found["records"]] == [("one", "base", 3), ("two", "adapter", 1)]


def test_random_changes_never_crash(files: dict[str, bytes]) -> None:
    rng = np.random.default_rng(11)
    refused = 0
    for data in files.values():
        for _ in range(40):
            changed = bytearray(data)
            for at in rng.integers(0, min(len(data), 400), 3):
                changed[at] = int(rng.integers(0, 256))
            try:
                contents(bytes(changed))
            except ew.EvermindError:
                refused += 1
    assert refused > 300


@pytest.mark.parametrize("data", [b"", b"\x80\x04abc", b"<!doctype html><title>404", b"PK\x03\x04rest", b"[1, 2]"])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        contents(data)


def test_a_zip_bomb_is_refused_before_it_is_unpacked() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", b" " * 50_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="packed again by another program"):
            contents(packed.getvalue())
        assert tracemalloc.get_traced_memory()[1] < 2**20 + 4 * len(packed.getvalue())
    finally:
        tracemalloc.stop()


# ── convert ──────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("through", ["x.safetensors", "x.evm1", "folder"])
def test_a_model_comes_back_bit_for_bit(through: str, files: dict[str, bytes], tmp_path: Path) -> None:
    source, back = tmp_path / "model.evl0", tmp_path / "back.evl0"
    source.write_bytes(files["model.evl0"])
    (tmp_path / "tokenizer.json").write_bytes(_small_tokenizer())
    arguments = ["--to", "huggingface"] if through == "folder" else []
    if through == "folder":
        model = ew.EvermindLM(260, 4, 1, hidden_dim=3, num_experts=3, top_k=3)
        source.write_bytes(model.export_weights())
    assert main(["convert", str(source), str(tmp_path / through), *arguments]) == 0
    assert main(["convert", str(tmp_path / through), str(back)]) == 0
    assert back.read_bytes() == source.read_bytes()


def test_fp16_is_rounded_and_what_is_lost_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ew.EvermindLM(9, 4, 1, hidden_dim=3, num_experts=2, top_k=1)
    gains = np.array([1.0, 1e-9, 0.3, 2.0], np.float32)
    model.set_parameter("layers.0.norm_moe.weight", gains)
    (tmp_path / "m.evl0").write_bytes(model.export_weights())
    assert main(["convert", str(tmp_path / "m.evl0"), str(tmp_path / "h.evl0"), "--fp16"]) == 0
    assert capsys.readouterr().err.startswith("1 small weights became 0")
    half = ew.EvermindLM.from_checkpoint((tmp_path / "h.evl0").read_bytes())
    found = next(p.data for p in half.parameters() if p.name == "layers.0.norm_moe.weight")
    assert np.array_equal(found, gains.astype(np.float16).astype(np.float32))
    model.set_parameter("layers.0.norm_moe.weight", gains * 1e6)
    (tmp_path / "m.evl0").write_bytes(model.export_weights())
    assert main(["convert", str(tmp_path / "m.evl0"), str(tmp_path / "h.evl0"), "--fp16"]) == 1
    assert "layers.0.norm_moe.weight does not fit fp16" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["x.gguf", "x.onnx"])
def test_files_for_other_programs_are_those_of_the_library(
    target: str, files: dict[str, bytes], tmp_path: Path
) -> None:
    (tmp_path / "m.evl0").write_bytes(files["model.evl0"])
    assert main(["convert", str(tmp_path / "m.evl0"), str(tmp_path / target), "--name", "tiny"]) == 0
    assert (tmp_path / target).read_bytes() == files["model" + target[1:]]


def test_a_folder_needs_a_tokenizer(
    files: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.evl0").write_bytes(files["model.evl0"])
    assert main(["convert", str(tmp_path / "m.evl0"), str(tmp_path / "folder")]) == 1
    assert "needs the tokenizer" in capsys.readouterr().err
    assert not (tmp_path / "folder").exists()


def _small_tokenizer() -> bytes:
    tokenizer = ew.BPETokenizer()
    tokenizer.train("", num_merges=0)
    return tokenizer.to_str().encode()
