"""What users of other tokenizers have reported, one test per report."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from evermind_web.errors import FormatError, InvalidArgumentError
from evermind_web.tokenizer import BPETokenizer
from evermind_web.tokenizer.byte_alphabet import BYTE_TO_SYMBOL
from evermind_web.tokenizer.definition import fresh_vocab
from tests.tokenizer.texts import PROSE, TRICKY


@pytest.fixture(scope="module")
def tokenizer() -> BPETokenizer:
    made = BPETokenizer()
    made.train([PROSE, *TRICKY, "👍👍👍"], num_merges=200)
    return made


def byte_ids(data: bytes) -> list[int]:
    return [fresh_vocab()[BYTE_TO_SYMBOL[byte]] for byte in data]


def test_tk1_lone_surrogates() -> None:
    plain = BPETokenizer()
    plain.train("")
    assert plain.encode("\ud83d") == byte_ids(b"\xef\xbf\xbd")
    assert plain.encode("a\udc4db\ud83d") == byte_ids(b"a\xef\xbf\xbdb\xef\xbf\xbd")
    assert plain.encode("\udc4d\ud83d") == byte_ids(b"\xef\xbf\xbd" * 2)
    assert plain.encode("\ud83d\udc4d") == plain.encode("👍") == byte_ids("👍".encode())


def test_tk1_surrogates_in_training_text(tokenizer: BPETokenizer) -> None:
    trained = BPETokenizer()
    trained.train(["\ud83d\udc4d\ud83d\udc4d\ud83d\udc4d \ud83d"], num_merges=10)
    same = BPETokenizer()
    same.train(["👍👍👍 \ufffd"], num_merges=10)
    assert trained.merges == same.merges
    assert tokenizer.encode("x\ud83d\udc4d") == tokenizer.encode("x👍")


def test_tk3_special_text_is_ordinary_text(tokenizer: BPETokenizer) -> None:
    text = "a<|endoftext|>b <|im_start|>user<unk>"
    ids = tokenizer.encode(text)
    assert not tokenizer.special_ids & set(ids)
    assert tokenizer.decode(ids) == text

    allowed = tokenizer.encode(text, allow_special=True)
    assert [i for i in allowed if i in tokenizer.special_ids] == [3, 1, 0]
    assert tokenizer.decode(allowed) == text


def test_tk3_special_text_in_training_text() -> None:
    trained = BPETokenizer()
    trained.train("<|endoftext|>" * 50, num_merges=100)
    assert list(trained.vocab).count("<|endoftext|>") == 1
    assert trained.special_ids == {0, 1, 2, 3}
    ids = trained.encode("<|endoftext|>")
    assert not trained.special_ids & set(ids)
    assert trained.decode(ids) == "<|endoftext|>"


def test_tk3_special_tokens_of_an_imported_vocabulary() -> None:
    # "<s>" is one word for this file's pre-tokenizer and in its vocabulary: still no control token.
    vocab = fresh_vocab() | {"<s>": 260}
    spec = {
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "ignore_merges": True},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        "added_tokens": [{"id": 260, "content": "<s>", "special": True}],
    }
    imported = BPETokenizer()
    imported.load_huggingface(spec | {"model": spec["model"]}, bos="<s>")
    assert imported.bos_id == 260
    assert imported.encode("<s>") == byte_ids(b"<s>")
    assert imported.encode("<s>", allow_special=True) == [260]


def test_tk5_unseen_bytes_survive() -> None:
    trained = BPETokenizer()
    trained.train("aaaa")
    for text in ("é\x00🙂", *TRICKY):
        assert trained.decode(trained.encode(text)) == text
    with pytest.raises(InvalidArgumentError, match="260"):
        trained.train("aaaa", vocab_size=200)


def test_tk5_import_lists_missing_bytes() -> None:
    vocab = {token: i for token, i in fresh_vocab().items() if token not in ("z", "Ġ", "é")}
    tokenizer = BPETokenizer()
    with pytest.raises(FormatError, match=r"3 of the 256 bytes .*: 20, 7A, E9;"):
        tokenizer.load(vocab, [])
    assert tokenizer.vocab_size == 0


def best_seconds(call: Callable[[], object]) -> float:
    """Processor time, so that other work on the machine does not count."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def letters(count: int) -> str:
    return "".join(random.Random(5).choices("abcdefghijklmnopqrstuvwxyz", k=count))


RUNS: dict[str, Callable[[int], str]] = {
    "one letter": lambda n: "a" * n,
    "letters": letters,
    "blanks": lambda n: " " * n,
    "ideograms": lambda n: "字" * n,
}
NEAR_LINEAR = 30  # for ten times the text: linear takes 10 times as long, quadratic 100 times


@pytest.mark.parametrize("run", RUNS)
def test_tk6_long_runs_encode_in_near_linear_time(run: str) -> None:
    tokenizer = BPETokenizer()
    tokenizer.train([PROSE, "a" * 500, "字" * 500, " " * 500], num_merges=150)
    short, long = RUNS[run](5_000), RUNS[run](50_000)
    assert tokenizer.decode(tokenizer.encode(long)) == long
    seconds_short = max(best_seconds(lambda: tokenizer.encode(short)), 1e-3)
    assert best_seconds(lambda: tokenizer.encode(long)) < NEAR_LINEAR * seconds_short


@pytest.mark.parametrize("run", ["one letter", "letters"])
def test_tk6_long_runs_train_in_near_linear_time(run: str) -> None:
    short, long = RUNS[run](4_000), RUNS[run](40_000)
    seconds_short = max(best_seconds(lambda: BPETokenizer().train(short, num_merges=50)), 1e-3)
    assert best_seconds(lambda: BPETokenizer().train(long, num_merges=50)) < NEAR_LINEAR * seconds_short


def test_tk7_empty_and_blank_text(tokenizer: BPETokenizer) -> None:
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == ""
    for blank in (" ", "\n\n", "\t", "\ufeff"):
        assert tokenizer.encode(blank)
        assert tokenizer.decode(tokenizer.encode(blank)) == blank
    for nothing in ([""], [], ""):
        empty = BPETokenizer()
        empty.train(nothing)
        assert empty.vocab_size == 260
        assert empty.merges == []
        assert empty.encode("") == []


def test_using_an_empty_tokenizer_says_what_to_do() -> None:
    for use in (lambda t: t.encode("a"), lambda t: t.decode([1]), lambda t: t.to_str(), lambda t: t.stream_decoder()):
        with pytest.raises(InvalidArgumentError, match="call train"):
            use(BPETokenizer())
    with pytest.raises(InvalidArgumentError, match="decode it first"):
        BPETokenizer().encode(b"abc")  # type: ignore[arg-type]


@pytest.mark.parametrize(("max_len", "side"), [(-1, "right"), (1.5, "right"), (2, "middle")])
def test_bad_padding(max_len: int, side: str) -> None:
    with pytest.raises(InvalidArgumentError):
        BPETokenizer().pad_or_truncate([1], max_len, side)
