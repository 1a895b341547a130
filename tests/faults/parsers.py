"""Every parser of the package as a target: valid files, what to do with any bytes, how to break a file.

`check(data)` parses. It raises an EvermindError for what it refuses; for what it accepts it asserts that writing and
reading again gives the same. Loaders into something live (a model, a trainer, a store) also assert that a refused
file left it as it was.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import evermind_web as ew
from evermind_web.cli.contents import contents
from evermind_web.errors import EvermindError
from evermind_web.formats import delta, evl0, gguf, lmbc, lora_blob, moe0, onnx
from evermind_web.formats import safetensors_io as safetensors
from evermind_web.interop.package import EvermindModelPackage
from evermind_web.limbic import LimbicModel, LimbicSession
from evermind_web.lora import peft_io
from evermind_web.lora.config import LoraConfig
from evermind_web.params import ParamTable
from evermind_web.session import container
from evermind_web.store import MemoryStore, SaveItem, export_all, import_all
from evermind_web.training import EvermindLMTrainer
from tests.faults import mutation
from tests.faults.mutation import Mutator, blind, words

SHAPE: dict[str, Any] = {
    "vocab_size": 12, "d_model": 6, "num_layers": 1, "conv_kernel": 2, "hidden_dim": 4, "num_experts": 2, "top_k": 1,
}  # fmt: skip
SEQUENCES = [[1, 2, 3, 4, 5], [5, 4, 3]]


@dataclass(frozen=True)
class Parser:
    """A target: see the module text. `mutators` are drawn from evenly."""

    name: str
    seeds: Callable[[], list[bytes]]
    check: Callable[[bytes], None]
    mutators: tuple[Mutator, ...] = (blind,)


def same(a: Any, b: Any) -> bool:
    """Equal bits, but any NaN is as good as another: fp16 keeps no payload."""
    return bool(np.array_equal(a, b, equal_nan=True))


# ── live things that are loaded into ─────────────────────────────────────────
@cache
def model() -> ew.EvermindLM:
    return ew.EvermindLM(**SHAPE, seed=3)


@cache
def trainer() -> EvermindLMTrainer:
    trained = EvermindLMTrainer(ew.EvermindLM(**SHAPE, seed=4), mixed_precision=True, accum_steps=2)
    trained.fit(SEQUENCES)
    return trained


@cache
def tokenizer_text() -> str:
    tokenizer = ew.BPETokenizer()
    tokenizer.train("the cat sat on the mat, the end. " * 4, num_merges=12)
    return tokenizer.to_str()


# ── checkpoints ──────────────────────────────────────────────────────────────
@cache
def evl0_files() -> list[bytes]:
    full = model().export_weights()
    return [full, model().export_weights(fp16=True), full[:-8]]


def check_evl0(data: bytes) -> None:
    before = model().fingerprint()
    try:
        arch, flat = evl0.read_evl0(data)
        fp16 = data[4] == 2
        again = evl0.read_evl0(evl0.write_evl0(arch, flat, fp16))
        assert again[0] == arch
        assert same(again[1], flat)
        model().load_weights(data)
    except EvermindError:
        assert model().fingerprint() == before
        raise
    finally:
        model().load_weights(evl0_files()[0])


def moe0_files() -> list[bytes]:
    mixture = ew.SharedExpertMoE(model_dim=4, hidden_dim=3, num_experts=2, top_k=1, seed=1)
    return [mixture.export_weights(), mixture.export_weights(fp16=True)]


def check_moe0(data: bytes) -> None:
    dims, flat = moe0.read_moe0(data)
    again = moe0.read_moe0(moe0.write_moe0(dims, flat, data[4] == 2))
    assert again[0] == dims
    assert same(again[1], flat)


def lmbc_files() -> list[bytes]:
    limbic = LimbicModel(input_dim=4, hidden_dim=3, seed=1)
    return [limbic.export_weights(), limbic.export_weights(fp16=True)]


def check_lmbc(data: bytes) -> None:
    dims, flat = lmbc.read_lmbc(data)
    again = lmbc.read_lmbc(lmbc.write_lmbc(dims, flat, data[4] == 2))
    assert again[0] == dims
    assert same(again[1], flat)


def lora_files() -> list[bytes]:
    random = np.random.default_rng(1)
    b, a = random.normal(size=(12, 2)).astype("<f4"), random.normal(size=(2, 6)).astype("<f4")
    return [lora_blob.write_lora(12, 6, 2, 4.0, b, a)]


def check_lora(data: bytes) -> None:
    blob = lora_blob.read_lora(data)
    assert lora_blob.write_lora(*blob) == data
    ew.EvermindLMLoRA.load_adapter(model(), data).dispose()


def evd0_files() -> list[bytes]:
    other = ew.EvermindLM(**SHAPE, seed=5)
    diff = other.export_delta(evl0_files()[0])
    return [diff, diff[:-8]]


def check_evd0(data: bytes) -> None:
    before = model().fingerprint()
    read = delta.deserialize_row_delta(data)
    assert delta.serialize_row_delta(read)[:-8] == (data[:-8] if data[-8:-4] == b"EVCR" else data)
    try:
        model().load_delta(evl0_files()[0], data)
    except EvermindError:
        assert model().fingerprint() == before
        raise
    finally:
        model().load_weights(evl0_files()[0])


# ── containers ───────────────────────────────────────────────────────────────
def package_files() -> list[bytes]:
    return [ew.EvermindModelPackage.from_lm(model(), "m", "1", {"description": "d"}).to_blob()]


def check_package(data: bytes) -> None:
    package = EvermindModelPackage.from_blob(data)
    assert package.to_blob() == data
    package.load_lm().dispose()


def safetensors_files() -> list[bytes]:
    arrays = [("a", (2, 3), np.arange(6, dtype="<f4").reshape(2, 3)), ("b", (0, 4), np.zeros((0, 4), "<f2"))]
    return [safetensors.write_arrays([*arrays, ("c", (), np.array(7, "<i8"))], {"k": "v"})]


def check_safetensors(data: bytes) -> None:
    tensors, metadata = safetensors.read_arrays(data)
    again = safetensors.read_arrays(safetensors.write_arrays(tensors, metadata))
    assert again[1] == metadata
    assert {t.name: (t.shape, t.data.tobytes()) for t in again[0]} == {
        t.name: (t.shape, t.data.tobytes()) for t in tensors
    }


@cache
def state_files() -> list[bytes]:
    return [trainer().save_state()]


def check_state(data: bytes) -> None:
    before = trainer().save_state()
    try:
        trainer().load_state(data)
        if data[:4] != evl0.MAGIC_BYTES:
            again = trainer().save_state()
            trainer().load_state(again)
            assert trainer().save_state() == again
    except EvermindError:
        assert trainer().save_state() == before, "a refused state has changed the trainer"
        raise
    finally:
        trainer().load_state(state_files()[0])


def tokenizer_files() -> list[bytes]:
    return [tokenizer_text().encode()]


def check_tokenizer(data: bytes) -> None:
    from evermind_web.session.model_set import read_tokenizer

    tokenizer = read_tokenizer(data)
    text = tokenizer.to_str()
    text.encode()
    again = ew.BPETokenizer.from_str(text)
    assert again.to_str() == text
    ids = tokenizer.encode("the cat é <|im_end|>")
    assert ids == again.encode("the cat é <|im_end|>")
    tokenizer.decode(ids)


@cache
def adapter_files() -> dict[str, bytes]:
    config = LoraConfig(r=2, target_modules=("token_embedding", "w1"))
    return peft_io.write_adapter(config, config.adapters(_table()), "f00d")


@cache
def _table() -> ParamTable:
    return model().table


def check_adapter(config: bytes, weights: bytes) -> None:
    settings, parts, fingerprint = peft_io.read_adapter(
        {peft_io.CONFIG_FILE: config, peft_io.WEIGHTS_FILE: weights}, _table()
    )
    again, same_parts, _ = peft_io.read_adapter(peft_io.write_adapter(settings, parts, fingerprint or ""), _table())
    assert {n: (p.rank, p.scale) for n, p in same_parts.items()} == {n: (p.rank, p.scale) for n, p in parts.items()}
    assert all(same(p.A, parts[n].A) and same(p.B, parts[n].B) for n, p in same_parts.items())
    assert again.lora_dropout == settings.lora_dropout


def backup_files() -> list[bytes]:
    return [asyncio.run(_filled())]


async def _filled() -> bytes:
    store = MemoryStore()
    created = "2020-01-01T00:00:00.000Z"
    await store.save_many(
        [
            SaveItem("base", b"0123456789" * 20, "base", "f00d", {"d": 6}, created=created),
            SaveItem("../名", b"{}", "tokenizer", created=created),
        ]
    )
    return await export_all(store)


def check_backup(data: bytes) -> None:
    asyncio.run(_import_backup(data))


async def _import_backup(data: bytes) -> None:
    store = MemoryStore()
    await store.save("there", b"before", "state")
    try:
        await import_all(store, data)
    except EvermindError:
        assert [(await store.load(r.name))[1] for r in await store.list()] == [b"before"], "a partial import"
        raise
    await store.delete("there")
    other = MemoryStore()
    await import_all(other, await export_all(store))
    for record in await store.list():
        assert (await other.load(record.name))[1] == (await store.load(record.name))[1]


def export_files() -> list[bytes]:
    base = container.Package(
        "base", "m", {container.MODEL: evl0_files()[0], container.TOKENIZER: tokenizer_files()[0]}, "f00d", {"a": 1}
    )
    return [
        container.pack(base),
        container.pack(container.Package("adapter", "l", {container.ADAPTER: lora_files()[0]})),
    ]


def check_export(data: bytes) -> None:
    package = container.unpack(data, "file.zip")
    if data.startswith(b"PK"):
        assert container.unpack(container.pack(package), "file.zip") == package


def limbic_files() -> list[bytes]:
    return [LimbicSession(_limbic()).to_json().encode()]


@cache
def _limbic() -> Any:
    return LimbicModel(input_dim=4, hidden_dim=3, seed=1)


def check_limbic(data: bytes) -> None:
    session = LimbicSession.from_json(_limbic(), data.decode("utf-8", "replace"))
    assert LimbicSession.from_json(_limbic(), session.to_json()).to_json() == session.to_json()


def graph_files() -> list[bytes]:
    tensors = model().parameters()
    named = [safetensors.NamedTensor(p.name, p.data.shape, p.data) for p in tensors]
    return [gguf.write_gguf(model().config, named), onnx.write_onnx(model().config, named)]


def check_contents(data: bytes) -> None:
    """`evermind inspect` on anything."""
    json.dumps(contents(data))


def all_files() -> list[bytes]:
    return [file for parser in PARSERS if parser.name != "inspect" for file in parser.seeds()]


PARSERS = (
    Parser("EVL0", evl0_files, check_evl0, (blind, words(9), words(9, mutation.sealed))),
    Parser("LORA", lora_files, check_lora, (blind, words(5))),
    Parser("EVD0", evd0_files, check_evd0, (blind, words(8), words(8, mutation.sealed))),
    Parser("MoE0", moe0_files, check_moe0, (blind, words(6))),
    Parser("LMBC", lmbc_files, check_lmbc, (blind, words(5))),
    Parser("EVM1 package", package_files, check_package, (blind, words(3), mutation.package_manifest)),
    Parser("safetensors", safetensors_files, check_safetensors, (blind, mutation.safetensors_header)),
    Parser("training state", state_files, check_state,
           (blind, mutation.safetensors_header, mutation.state_manifest, mutation.state_manifest)),
    Parser("tokenizer.json", tokenizer_files, check_tokenizer, (mutation.json_blind, mutation.json_text)),
    Parser("adapter_config.json", lambda: [adapter_files()[peft_io.CONFIG_FILE]],
           lambda data: check_adapter(data, adapter_files()[peft_io.WEIGHTS_FILE]),
           (mutation.json_blind, mutation.json_text)),
    Parser("adapter_model.safetensors", lambda: [adapter_files()[peft_io.WEIGHTS_FILE]],
           lambda data: check_adapter(adapter_files()[peft_io.CONFIG_FILE], data),
           (blind, mutation.safetensors_header)),
    Parser("backup", backup_files, check_backup, (blind, mutation.zip_members)),
    Parser("export file", export_files, check_export, (blind, mutation.zip_members)),
    Parser("limbic session", limbic_files, check_limbic, (mutation.json_blind, mutation.json_text)),
    Parser("GGUF and ONNX", graph_files, check_contents, (blind, words(60))),
    Parser("inspect", all_files, check_contents, (blind, words(9), words(9, mutation.sealed))),
)  # fmt: skip
