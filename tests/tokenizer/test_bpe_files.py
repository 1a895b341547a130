"""tokenizer.json files: written and read back, assumptions said, everything unsupported refused by name."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from evermind_web.errors import FormatError
from evermind_web.tokenizer import BPETokenizer, pretokenize
from evermind_web.tokenizer.definition import fresh_vocab
from tests.tokenizer.texts import CORPUS, PROSE


@pytest.fixture(scope="module")
def tokenizer() -> BPETokenizer:
    made = BPETokenizer()
    made.train(CORPUS, num_merges=100)
    return made


def spec_of(tokenizer: BPETokenizer) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(tokenizer.to_str())
    return spec


def test_file_round_trip(tokenizer: BPETokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    loaded = BPETokenizer.from_file(path)
    assert dict(loaded.vocab) == dict(tokenizer.vocab)
    assert loaded.merges == tokenizer.merges
    assert loaded.to_str() == tokenizer.to_str()
    assert loaded.notes == ()
    assert [loaded.encode(text) for text in CORPUS] == [tokenizer.encode(text) for text in CORPUS]
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # an editor's byte order mark
    assert BPETokenizer.from_file(path).merges == tokenizer.merges


def test_file_says_how_text_is_cut(tokenizer: BPETokenizer) -> None:
    spec = spec_of(tokenizer)
    split, byte_level = spec["pre_tokenizer"]["pretokenizers"]
    assert (split["type"], split["behavior"], split["invert"]) == ("Split", "Isolated", False)
    assert (byte_level["type"], byte_level["use_regex"], byte_level["add_prefix_space"]) == ("ByteLevel", False, False)
    assert spec["decoder"]["type"] == "ByteLevel"
    assert spec["model"]["ignore_merges"] is True
    assert [(t["id"], t["content"], t["special"]) for t in spec["added_tokens"]] == [
        (0, "<unk>", True),
        (1, "<|im_start|>", True),
        (2, "<|im_end|>", True),
        (3, "<|endoftext|>", True),
    ]


def test_files_of_the_reference_are_read_with_the_real_pattern(tokenizer: BPETokenizer) -> None:
    spec = spec_of(tokenizer)
    del spec["model"]["ignore_merges"]
    spec["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    loaded = BPETokenizer()
    with pytest.warns(UserWarning, match="reference engine"):
        loaded.load_huggingface(spec)
    assert "reference engine" in loaded.notes[0]
    assert [loaded.encode(text) for text in CORPUS] == [tokenizer.encode(text) for text in CORPUS]
    assert BPETokenizer.from_str(loaded.to_str()).notes == ()


def test_files_without_a_pre_tokenizer_are_read_with_our_pattern(tokenizer: BPETokenizer) -> None:
    spec = spec_of(tokenizer)
    spec["pre_tokenizer"] = None
    loaded = BPETokenizer()
    with pytest.warns(UserWarning, match="does not say"):
        loaded.load_huggingface(spec)
    assert [loaded.encode(text) for text in CORPUS] == [tokenizer.encode(text) for text in CORPUS]


def test_roles_survive_a_save(tokenizer: BPETokenizer) -> None:
    spec = spec_of(tokenizer)
    spec["model"]["vocab"]["</s>"] = 400
    loaded = BPETokenizer()
    loaded.load_huggingface(spec, eos="</s>", pad="<unk>")
    again = BPETokenizer.from_str(loaded.to_str())
    assert (again.bos_id, again.eos_id, again.pad_id) == (loaded.bos_id, loaded.eos_id, loaded.pad_id) == (1, 400, 0)
    assert again.vocab_size == 401
    assert again.encode("a</s>", allow_special=True)[-1] == 400


def test_an_end_token_that_is_ordinary_text_stays_text(tokenizer: BPETokenizer) -> None:
    loaded = BPETokenizer()
    loaded.load_huggingface(spec_of(tokenizer), eos="Ċ")
    assert loaded.eos_id == tokenizer.vocab["Ċ"]
    assert loaded.eos_id not in loaded.special_ids
    assert loaded.decode(loaded.encode(PROSE), skip_special_tokens=True) == PROSE


def test_loading_is_all_or_nothing(tokenizer: BPETokenizer) -> None:
    victim = BPETokenizer.from_str(tokenizer.to_str())
    for bad in ({}, {"model": {"type": "Unigram"}}, {"vocab": {"a": 0}, "merges": []}):
        with pytest.raises(FormatError):
            victim.load_huggingface(bad)
    assert victim.encode(PROSE) == tokenizer.encode(PROSE)


def changed(path: str, value: Any) -> Any:
    def change(spec: dict[str, Any]) -> None:
        target = spec
        *parents, last = path.split(".")
        for key in parents:
            target = target[key]
        target[last] = value

    return change


def split(pattern: Any, behavior: str = "Isolated", invert: bool = False) -> dict[str, Any]:
    step = {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
    return {"type": "Sequence", "pretokenizers": [step, {"type": "ByteLevel", "use_regex": False}]}


REFUSED = [
    ("model.type", "Unigram", "'Unigram'"),
    ("model.type", "WordPiece", "'WordPiece'"),
    ("model.vocab", [], "vocab"),
    ("model.vocab", "x", "vocab"),
    ("model.merges", "a b", "merges"),
    ("model.merges", ["a b c"], "entry 0"),
    ("model.merges", [["a"]], "entry 0"),
    ("model.merges", [5], "entry 0"),
    ("model", 5, "'model'"),
    ("model.end_of_word_suffix", "</w>", "end_of_word_suffix"),
    ("normalizer", {"type": "Lowercase"}, "'Lowercase'"),
    ("normalizer", {"type": "Sequence", "normalizers": [{"type": "Prepend"}]}, "'Prepend'"),
    ("pre_tokenizer", {"type": "Metaspace"}, "Metaspace has no ByteLevel"),
    (
        "pre_tokenizer",
        {"type": "Sequence", "pretokenizers": [{"type": "Punctuation"}, {"type": "ByteLevel"}]},
        "'Punctuation'",
    ),
    ("pre_tokenizer", split({"Regex": r"\w+|\W+"}), "engines"),
    ("pre_tokenizer", split({"Regex": r"\p{N}{1,3}+"}), "engines"),
    ("pre_tokenizer", split({"Regex": r"(unclosed"}), "compiled"),
    ("pre_tokenizer", split("plain"), "Split"),
    ("pre_tokenizer", split({"Regex": "a"}, "MergedWithNext"), "MergedWithNext"),
    ("pre_tokenizer", split({"Regex": "a"}, "Removed"), "Removed"),
    ("pre_tokenizer", "ByteLevel", "pre-tokenizer"),
    ("added_tokens", 5, "added tokens"),
    ("normalizer", "Sequence", "'Sequence'"),
    ("normalizer", {"type": "Sequence", "normalizers": 5}, "normalizers"),
    ("pre_tokenizer", {"type": "Sequence", "pretokenizers": "x"}, "pretokenizers"),
    ("evermind_special_tokens", {"bos": ["x"]}, "evermind_special_tokens"),
    ("added_tokens", [{"content": "x"}], "added token"),
    ("added_tokens", [{"id": 5, "content": "x"}], "another token"),
    ("added_tokens", [{"id": 999, "content": "a"}], "another token"),
]


@pytest.mark.parametrize(
    ("path", "value", "message"), REFUSED, ids=[f"{path}-{i}" for i, (path, _, _) in enumerate(REFUSED)]
)
def test_unsupported_files_are_refused_by_name(tokenizer: BPETokenizer, path: str, value: Any, message: str) -> None:
    spec = copy.deepcopy(spec_of(tokenizer))
    changed(path, value)(spec)
    with pytest.raises(FormatError, match=message):
        BPETokenizer.from_str(json.dumps(spec))


@pytest.mark.parametrize(
    "text", ["", "<!DOCTYPE html>", "[]", "5", '{"a": 1}', '{"model": {"vocab": {}}}', "[" * 100_000]
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match=r"tokenizer\.json"):
        BPETokenizer.from_str(text)


def test_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"\x30\x4c\x56\x45\xff\xfe")
    with pytest.raises(FormatError, match="not UTF-8"):
        BPETokenizer.from_file(path)


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        ({"a": 1, "b": 1}, "share the id 1"),
        ({"a": "3"}, "'3'"),
        ({"a": 4.5}, "4.5"),
        ({"a": -1}, "-1"),
        ({"a": True}, "True"),
    ],
)
def test_ids_must_be_distinct_integers(vocab: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        BPETokenizer().load(fresh_vocab() | {"Zz": 300} | vocab if len(vocab) == 2 else vocab, [])


def test_a_merge_without_a_token_is_written_as_its_bytes() -> None:
    loaded = BPETokenizer()
    loaded.load(fresh_vocab(), ["a b", "ab c"])
    plain = BPETokenizer()
    plain.train("")
    assert loaded.encode("abc ab") == plain.encode("abc ab")
    assert "merges=2" in repr(loaded)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(?:(?:a{1,99}){1,99}){1,99}b", "(?R)?a"])
def test_a_pattern_that_would_search_for_ever_is_given_up(
    pattern: str, tokenizer: BPETokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretokenize, "_SECONDS", 0.05)
    spec = spec_of(tokenizer)
    spec["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": pattern}
    loaded = BPETokenizer.from_str(json.dumps(spec))
    with pytest.raises(FormatError, match="does not get through a text of 2000 characters"):
        loaded.encode("a" * 2000)
