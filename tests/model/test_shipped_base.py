"""The base model in web/models/: its files are whole, belong together, predict and write what they did when shipped."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evermind_web import BPETokenizer, EvermindLM
from evermind_web.backend.base import Backend
from evermind_web.bench import token_byte_lengths
from evermind_web.errors import EvermindError

MODELS = Path(__file__).parents[2] / "web" / "models"
DATA = Path(__file__).parents[1] / "data"
MANIFEST: dict[str, Any] = json.loads((MODELS / "evermind-base.json").read_text(encoding="utf-8"))
MAX_BYTES = 18_000_000
PROMPT = "There was no answer. He"
# Greedy, in float32; the two best scores are never closer than 0.04, so rounding on another machine changes nothing.
CONTINUED = " was a\nsmall man, and a man of a man who had been in a very good\nman,"
# Bits per byte of 4,000 characters: measured when shipped, and what no change of arithmetic may reach.
EXCERPTS = {"alice.txt": (1.7815, 1.79), "time-machine.txt": (1.7366, 1.75)}


@pytest.fixture(scope="module")
def data() -> bytes:
    return (MODELS / MANIFEST["model"]["file"]).read_bytes()


@pytest.fixture(scope="module")
def tokenizer() -> BPETokenizer:
    return BPETokenizer.from_file(MODELS / MANIFEST["tokenizer"]["file"])


@pytest.fixture
def base(data: bytes, cpu: Backend) -> EvermindLM:
    return EvermindLM.from_checkpoint(data, backend=cpu)


def test_the_manifest_describes_the_files(base: EvermindLM, data: bytes) -> None:
    for part in ("model", "tokenizer"):
        content = (MODELS / MANIFEST[part]["file"]).read_bytes()
        assert len(content) == MANIFEST[part]["bytes"]
        assert hashlib.sha256(content).hexdigest() == MANIFEST[part]["sha256"]
    assert len(data) <= MAX_BYTES
    assert base.config._asdict() == MANIFEST["config"]
    assert base.num_parameters == MANIFEST["parameters"]
    assert base.fingerprint() == MANIFEST["fingerprint"]
    assert base.export_weights(fp16=True) == data
    assert (MODELS / MANIFEST["card"]).exists()


def test_a_flipped_bit_is_noticed(data: bytes) -> None:
    broken = bytearray(data)
    broken[len(data) // 2] ^= 1
    with pytest.raises(EvermindError):
        EvermindLM.from_checkpoint(bytes(broken))


def test_the_tokenizer_is_the_models(base: EvermindLM, tokenizer: BPETokenizer) -> None:
    assert base.check_codec(tokenizer) is tokenizer
    assert tokenizer.vocab_size == base.config.vocab_size
    text = "“Well,” said she — naïve as ever —\n\n‘it is 1897’"
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text


@pytest.mark.parametrize("name", EXCERPTS)
def test_it_predicts_books_it_never_saw(base: EvermindLM, tokenizer: BPETokenizer, name: str) -> None:
    measured, bound = EXCERPTS[name]
    ids = tokenizer.encode((DATA / name).read_text(encoding="utf-8")[2000:6000])
    lengths = token_byte_lengths(tokenizer)
    assert lengths is not None
    bits = base.evaluate([ids]) * (len(ids) - 1) / np.log(2) / int(lengths[np.array(ids[1:])].sum())
    assert bits == pytest.approx(measured, abs=2e-3)
    assert bits < bound


def test_it_writes_what_it_wrote_when_shipped(base: EvermindLM, tokenizer: BPETokenizer) -> None:
    prompt = tokenizer.encode(PROMPT, add_bos=False)
    written = base.generate(prompt, max_new_tokens=24)
    assert tokenizer.decode(written) == CONTINUED
    assert written == [315, 262, 202, 86, 80, 400, 460, 15, 280, 262, 460, 285, 262, 460, 495, 355, 470, 296, 262, 491,
                       653, 202, 742, 15]  # fmt: skip
