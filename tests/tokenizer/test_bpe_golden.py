"""BPETokenizer against the values of the reference engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evermind_web.tokenizer import BPETokenizer
from evermind_web.tokenizer.byte_alphabet import BYTE_ORDER, BYTE_TO_SYMBOL, to_symbols
from evermind_web.tokenizer.pretokenize import EVERMIND_PRE_TOKENIZER, build_splitter, repair_surrogates
from tests.golden_data import GoldenCase, load_case, load_cases

TRAINED = [case for case in load_cases("bpe") if case.name.startswith("bpe_train")]
IMPORTED = [case for case in load_cases("bpe") if case.name.startswith("bpe_hf")]
SPACED_IDS = 1000  # where byte symbols that an imported vocabulary lacks are put


def trained(case: GoldenCase) -> BPETokenizer:
    options = case.config["options"]
    tokenizer = BPETokenizer()
    tokenizer.train(case.file("corpus"), options.get("numMerges", 200), options.get("minPairFreq", 2))
    return tokenizer


def same_text(got: str, want: str) -> bool:
    return got in (want, "\ufeff" + want)  # the reference drops a leading byte order mark, we keep it


def test_fresh_vocabulary() -> None:
    tokenizer = BPETokenizer()
    tokenizer.train("", num_merges=0)
    case = load_case("bpe", "bpe_bytes")
    assert dict(tokenizer.vocab) == dict(case.file("vocab"))
    assert tokenizer.vocab_size == case["vocab_size"] == 260
    assert [tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id] == case["ids"]
    assert tokenizer.unk_id == 0


@pytest.mark.parametrize("case", TRAINED, ids=repr)
def test_training(case: GoldenCase) -> None:
    tokenizer = trained(case)
    assert tokenizer.merges == case.file("merges")
    vocab = dict(case.file("vocab"))
    # The reference loses the tokens that are spelled like members of a JavaScript object; we do not.
    lost = len(set(tokenizer.vocab) - set(vocab))
    assert lost == 0 or case.name == "bpe_train_proto"
    for row in case.file("encoded"):
        ids = tokenizer.encode(row["text"])
        if not lost:
            assert ids == row["ids"]
        assert same_text(tokenizer.decode(ids), row["decoded"])


def test_pretokens() -> None:
    split = build_splitter(EVERMIND_PRE_TOKENIZER)
    for row in load_case("bpe", "bpe_pretokens").file("rows"):
        words = split(repair_surrogates(row["text"]))
        assert [to_symbols(word.encode()) for word in words] == row["words"]


def test_encode_options() -> None:
    case = load_case("bpe", "bpe_encode_options")
    source = load_case("bpe", case.config["tokenizer"])
    tokenizer = trained(source)
    for row in case["table"]:
        options = row["options"]
        ids = tokenizer.encode(row["text"], add_bos=options.get("addBos", False), add_eos=options.get("addEos", False))
        assert ids == row["ids"]
    assert [len(tokenizer.encode(text)) for text in source.file("corpus")] == case["corpus_token_counts"]


def test_decode() -> None:
    case = load_case("bpe", "bpe_decode")
    tokenizer = trained(load_case("bpe", case.config["tokenizer"]))
    for row in case["table"]:
        assert same_text(tokenizer.decode(row["ids"]), row["text"])
    assert tokenizer.decode([1, 36, 2], skip_special_tokens=True) == "A"


def test_pad_or_truncate() -> None:
    case = load_case("bpe", "bpe_pad")
    assert BPETokenizer().pad_or_truncate([1], 3) == case["fresh_tokenizer"]
    tokenizer = BPETokenizer()
    tokenizer.train("")
    for row in case["table"]:
        assert tokenizer.pad_or_truncate(*row["args"]) == row["out"]


def with_all_bytes(model: dict[str, Any]) -> None:
    for position, byte in enumerate(BYTE_ORDER):
        model["vocab"].setdefault(BYTE_TO_SYMBOL[byte], SPACED_IDS + position)


@pytest.mark.filterwarnings("ignore:tokenizer.*how text is cut")
@pytest.mark.parametrize("case", IMPORTED, ids=repr)
def test_huggingface_import(case: GoldenCase) -> None:
    spec = json.loads(json.dumps(case.config["spec"]))
    specials = case.config.get("specials", {})
    tokenizer = BPETokenizer()
    with pytest.raises(ValueError, match=r"bytes have no token|expected a string and an integer|share the id"):
        tokenizer.load_huggingface(spec, **specials)  # none of these vocabularies could encode every text
    if case.name in ("bpe_hf_string_ids", "bpe_hf_dup_ids"):
        return
    with_all_bytes(spec.get("model", spec))
    tokenizer.load_huggingface(spec, **specials)
    assert [tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id] == [
        case["ids"][k] for k in ("bosId", "eosId", "padId")
    ]
    for row in case["table"]:
        assert [i for i in tokenizer.encode(row["text"]) if i < SPACED_IDS] == row["ids"]
        assert same_text(tokenizer.decode(row["ids"]), row["decoded"])


def test_load() -> None:
    case = load_case("bpe", "bpe_load")
    model = json.loads(json.dumps(case.config))
    with_all_bytes(model)
    tokenizer = BPETokenizer()
    with pytest.raises(ValueError, match="entry 2"):
        tokenizer.load(model["vocab"], model["merges"])  # '#not a comment' is no merge
    lines = ["#version: 0.2", *(m for m in model["merges"] if not m.startswith("#")), ""]  # as merges.txt has them
    tokenizer.load(model["vocab"], lines)
    for row in case["table"]:
        assert [i for i in tokenizer.encode(row["text"]) if i < SPACED_IDS] == row["ids"]
