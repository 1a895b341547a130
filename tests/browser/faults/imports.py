"""Broken files through the page's own way in: `evermind.mjs`, its worker, Python and IndexedDB, without a reload.

Each file ends as an import or as one of the package's errors, within a second. A refused file has changed no record;
after an accepted one the store is put back as it was. What breaks a promise comes back as a sentence with the file.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from playwright.async_api import Page

import evermind_web as ew
from evermind_web import errors
from evermind_web.formats import lora_blob, stored_zip
from evermind_web.lora import LoraConfig, peft_io
from evermind_web.session import container
from evermind_web.session.arrivals import content_name
from evermind_web.store import MemoryStore, SaveItem, export_all
from tests.faults import mutation, parsers
from tests.faults.mutation import Mutator, blind, words

KNOWN = sorted(name for name in vars(errors) if name.endswith("Error"))
File = tuple[str, bytes]

# A file is slow only if it is slow three times: the machine may have had other work.
ATTACK = """async ({ known, attempts }) => {
    const { load, EvermindError } = await import("/evermind.mjs");
    const { createStudio } = await import("/studio.mjs");
    const { openStore } = await import("/store.mjs");
    const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const fuzz = (globalThis.fuzz ??= await (async () => {
        const em = await load({ backend: "numpy", store: "imports" });
        return { em, studio: createStudio(em), store: await openStore({ name: "imports" }) };
    })());
    const rows = async () => JSON.stringify(await fuzz.store.list());
    const ways = {
        import: (files) => fuzz.em.importFile(...files),
        restore: ([file]) => fuzz.studio.restore(file),
        text: ([file]) => fuzz.em.readText(file),
    };
    const reset = async () => {
        for (const { name } of await fuzz.store.list()) await fuzz.store.delete(name);
        const items = await Promise.all(fuzz.kept.map(async ({ record, data }) => ({ ...record, data })));
        await fuzz.store.saveMany(items);
        fuzz.before = await rows();
    };
    const patience = () => new Promise((_, reject) => setTimeout(() => reject(new Error("no answer in 20 s")), 20_000));
    const attempt = async ({ way, files }) => {
        const started = performance.now();
        let refused = "";
        try {
            await Promise.race([ways[way](files.map(([name, data]) => new File([bytes(data)], name))), patience()]);
        } catch (error) {
            const ours = error instanceof EvermindError && known.includes(error.name) && error.message;
            refused = ours ? error.name : `BROKEN ${error.name}: ${error.message}`;
        }
        const seconds = (performance.now() - started) / 1000;
        const changed = (await rows()) !== fuzz.before;
        if (refused && changed) refused = `BROKEN: refused (${refused}), and the records changed`;
        if (changed) await reset();
        return { refused, seconds };
    };
    if (!fuzz.kept) {
        fuzz.kept = [];
        fuzz.before = await rows();
        const first = attempts.shift();
        const { name } = await fuzz.em.importFile(...first.files.map(([name, data]) => new File([bytes(data)], name)));
        await fuzz.em.load(name);  // a bare adapter belongs to the model in memory
        for (const { name } of await fuzz.store.list()) fuzz.kept.push(await fuzz.store.load(name));
        await reset();
    } else attempts.shift();
    const found = [];
    for (const one of attempts) {
        let answer = await attempt(one);
        for (let again = 0; again < 2 && answer.seconds > 1; again++) {
            const { seconds } = await attempt(one);
            answer = { ...answer, seconds: Math.min(seconds, answer.seconds) };
        }
        if (answer.seconds > 1 && !answer.refused.startsWith("BROKEN")) answer.refused = "BROKEN: slow";
        found.push(answer);
    }
    await fuzz.store.load(fuzz.kept[0].record.name);  // and its CRC-32
    return found;
}"""


@dataclass(frozen=True)
class Kind:
    """What is imported: valid `seeds`, how to break one, and how it is handed to the page."""

    name: str
    seeds: Callable[[], list[bytes]]
    mutators: tuple[Mutator, ...]
    as_files: Callable[[bytes], list[File]]
    way: str = "import"


# ── valid files ──────────────────────────────────────────────────────────────
@cache
def _tokenizer() -> bytes:
    return parsers.tokenizer_text().encode()


@cache
def _model() -> ew.EvermindLM:
    vocab = ew.BPETokenizer.from_str(_tokenizer().decode()).vocab_size
    return ew.EvermindLM(vocab, d_model=6, num_layers=1, conv_kernel=2, hidden_dim=4, num_experts=2, top_k=1, seed=3)


@cache
def _checkpoint() -> bytes:
    return _model().export_weights()


@cache
def _peft() -> dict[str, bytes]:
    config = LoraConfig(r=2, target_modules=("token_embedding", "w1"))
    return peft_io.write_adapter(config, config.adapters(_model().table), _model().fingerprint())


def _lora() -> list[bytes]:
    config = _model().config
    rows, cols = config.vocab_size, config.d_model
    values = np.random.default_rng(1).normal(size=2 * (rows + cols)).astype("<f4")
    return [lora_blob.write_lora(rows, cols, 2, 4.0, values[: 2 * rows], values[2 * rows :])]


def _exports() -> list[bytes]:
    files = {container.MODEL: _checkpoint(), container.TOKENIZER: _tokenizer()}
    fingerprint = _model().fingerprint()
    base = container.Package("base", "m", files, fingerprint, {"training": {"steps": 1}})
    return [container.pack(base), container.pack(container.Package("adapter", "a", _peft(), fingerprint))]


def _backup() -> list[bytes]:
    async def filled() -> bytes:
        store = MemoryStore()
        items = [
            SaveItem("base", _checkpoint(), "base", _model().fingerprint()),
            SaveItem(content_name("text", b"text"), b"text", "text"),
        ]
        await store.save_many(items)
        return await export_all(store)

    return [asyncio.run(filled())]


def _texts() -> list[bytes]:
    chat = {"messages": [{"role": "user", "content": "Where?"}, {"role": "bot", "content": {"parts": ["There."]}}]}
    return [json.dumps(chat).encode(), b"<html><head><title>no</title></head><body><p>First.</p>Second.</body></html>"]


def _chat(data: bytes, random: random.Random) -> bytes:
    return mutation.json_text(data, random) if data.startswith(b"{") else mutation.blind(data, random)


def _inside(name: str, mutate: Mutator) -> Mutator:
    """One member of a zip is broken, and the zip is sound."""

    def change(data: bytes, random: random.Random) -> bytes:
        files = stored_zip.read(data, "a file")
        return stored_zip.write({**files, name: mutate(files[name], random)})

    return change


KINDS = (
    Kind("EVL0", lambda: [_checkpoint()], (blind, words(9), words(9, mutation.sealed)),
         lambda data: [("m.evl0", data), ("tokenizer.json", _tokenizer())]),
    Kind("tokenizer.json", lambda: [_tokenizer()], (mutation.json_blind, mutation.json_text),
         lambda data: [("m.evl0", _checkpoint()), ("tokenizer.json", data)]),
    Kind("LORA", _lora, (blind, words(5)), lambda data: [("a.lora", data)]),
    Kind("export file", _exports, (blind, mutation.zip_members), lambda data: [("m.zip", data)]),
    Kind("PEFT folder", lambda: [stored_zip.write(_peft())],
         (blind, _inside(peft_io.CONFIG_FILE, mutation.json_text), _inside(peft_io.CONFIG_FILE, mutation.json_blind),
          _inside(peft_io.WEIGHTS_FILE, mutation.safetensors_header), _inside(peft_io.WEIGHTS_FILE, blind)),
         lambda data: [("a.zip", data)]),
    Kind("backup", _backup, (blind, mutation.zip_members), lambda data: [("b.zip", data)], "restore"),
    Kind("text file", _texts, (blind, _chat), lambda data: [("t.json" if data[:1] == b"{" else "t.html", data)],
         "text"),
    Kind("another format", parsers.all_files, (blind, words(9)), lambda data: [("x.bin", data)]),
)  # fmt: skip


# ── running ──────────────────────────────────────────────────────────────────
def drawn(kind: Kind, count: int, seed: int) -> list[bytes]:
    """The valid files, then `count` broken ones."""
    source, seeds = random.Random(f"{kind.name} {seed}"), kind.seeds()
    return [*seeds, *(source.choice(kind.mutators)(source.choice(seeds), source) for _ in range(count))]


async def attack(page: Page, kind: Kind, count: int, seed: int) -> dict[str, Any]:
    """Import the valid files of a kind and `count` broken ones into `page`, an empty page of the site.

    Returns how many were `refused`, `accepted` and `valid`, the slowest in seconds, and `broken`: (what, the file).
    """
    files = await asyncio.to_thread(drawn, kind, count, seed)  # some make their valid files in a loop of their own
    first = {"way": "import", "files": _encoded([("m.evl0", _checkpoint()), ("tokenizer.json", _tokenizer())])}
    attempts = [{"way": kind.way, "files": _encoded(kind.as_files(data))} for data in files]
    found = await page.evaluate(ATTACK, {"known": KNOWN, "attempts": [first, *attempts]})
    broken = [(f"{kind.name}: {one['refused']}", data) for one, data in zip(found, files, strict=True)
              if one["refused"].startswith("BROKEN")]  # fmt: skip
    refused = sum(bool(one["refused"]) for one in found)
    slowest = max(one["seconds"] for one in found)
    accepted, valid = len(found) - refused, len(files) - count
    return {"refused": refused, "accepted": accepted, "valid": valid, "slowest_s": round(slowest, 3), "broken": broken}


def _encoded(files: list[File]) -> list[tuple[str, str]]:
    return [(name, base64.b64encode(data).decode()) for name, data in files]
