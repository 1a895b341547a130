"""Measuring a language model: perplexity, bits per token and byte, accuracy, speed, and two models side by side.

Scores are sums over predictions in float64, from float32 logits: position t predicts token t + 1.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from evermind_web.backend.base import Backend
from evermind_web.batch import flat_ids
from evermind_web.checks import check_value, checked, whole_number
from evermind_web.environment import run_blocking
from evermind_web.errors import InvalidArgumentError
from evermind_web.model import EvermindLM
from evermind_web.rng import SeededRng
from evermind_web.tokenizer import BPETokenizer
from evermind_web.training import EvermindLMTrainer

Logits = npt.NDArray[np.floating[Any]]
Clock = Callable[[], float]  # milliseconds

TIE = 0.005  # perplexities closer than this, as a ratio, are a tie
HELD_OUT_RANGE = (0.05, 0.9)
SAMPLE_TOKENS = 8
JS_SPACE = "\\t\\n\\v\\f\\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"  # as the reference splits
SENTENCE_GAP = re.compile(f"(?<=\\.)[{JS_SPACE}]+")
SPACE_AROUND = re.compile(f"^[{JS_SPACE}]+|[{JS_SPACE}]+$")


@runtime_checkable
class Encoder(Protocol):
    """What turns text into token ids."""

    def encode(self, text: str) -> list[int]: ...


@runtime_checkable
class Forward(Protocol):
    """A model, or anything with its forward(tokens) → logits (T, V)."""

    def forward(self, tokens: Any) -> Any: ...


@runtime_checkable
class ForwardAsync(Protocol):
    """A model, or anything with its forward_async(tokens) → logits (T, V)."""

    async def forward_async(self, tokens: Any) -> Any: ...


# ── single numbers ───────────────────────────────────────────────────────────
def perplexity(cross_entropy: float) -> float:
    """e to the mean cross-entropy in nats; infinite where a float cannot hold it."""
    _check_loss(cross_entropy, "perplexity")
    try:
        return math.exp(cross_entropy)
    except OverflowError:
        return math.inf


def bits_per_token(cross_entropy: float) -> float:
    """Mean cross-entropy in bits, from nats."""
    _check_loss(cross_entropy, "bits_per_token")
    return cross_entropy / math.log(2)


def _check_loss(value: float, owner: str) -> None:
    if not isinstance(value, (float, np.floating)):  # NaN stays NaN
        check_value("cross_entropy", value, float, owner)


@checked
def top_k_indices(logits: npt.ArrayLike, k: int) -> list[int]:
    """Indices of the k largest logits, largest first, equal ones in order; NaN and −∞ are never picked.

    k above the number of logits takes all. InvalidArgumentError if k is not a whole number ≥ 1.
    """
    values = np.asarray(logits, np.float32).ravel()
    whole_number("k", k)
    ranked = np.where(np.isnan(values), -np.inf, values)
    order = np.argsort(-ranked, kind="stable")[:k]
    return [int(i) for i in order if ranked[i] > -np.inf]


@checked
def cross_entropy_loss(logits: npt.ArrayLike, target: int) -> float:
    """−ln softmax(logits)[target], float64 arithmetic on float32 logits (V,)."""
    values = np.asarray(logits, np.float32).ravel().astype(np.float64)
    _check_target(target, values.size)
    return float(_losses(values[None], np.array([target]))[0])


@checked
def cross_entropy_grad(logits: npt.ArrayLike, target: int) -> npt.NDArray[np.float32]:
    """Gradient of `cross_entropy_loss` by the logits, float32 (V,): softmax minus one at the target."""
    values = np.asarray(logits, np.float32).ravel().astype(np.float64)
    _check_target(target, values.size)
    exponentials = np.exp(values - values.max()).astype(np.float32)
    grad: npt.NDArray[np.float32] = (exponentials / exponentials.sum(dtype=np.float64)).astype(np.float32)
    grad[target] -= 1
    return grad


# ── one model ────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class BenchReport:
    """Scores over all predicted tokens. cross_entropy in nats; elapsed_ms and tokens_per_second only where measured.

    bits_per_byte: where the tokens' lengths in bytes are known; comparable between tokenizers, unlike the others.
    """

    sequences: int
    tokens: int
    cross_entropy: float
    perplexity: float
    bits_per_token: float
    top1_accuracy: float
    top_k_accuracy: float
    top_k: int
    elapsed_ms: float | None = None
    tokens_per_second: float | None = None
    bits_per_byte: float | None = None


class _Score:
    """Sums over predictions."""

    def __init__(self, top_k: int, byte_lengths: npt.NDArray[np.int64] | None) -> None:
        whole_number("top_k", top_k)
        self.top_k, self.byte_lengths = top_k, byte_lengths
        self.sequences = self.tokens = self.first = self.among = self.num_bytes = 0
        self.loss = self.elapsed_ms = 0.0

    def add(self, tokens: Sequence[int], logits: Logits, elapsed_ms: float) -> None:
        """One sequence (T,), its logits (T, V) and their time; targets outside the vocabulary are not scored."""
        targets = np.asarray(tokens[1:], np.int64)
        scored = (targets >= 0) & (targets < logits.shape[1])
        targets, rows = targets[scored], np.asarray(logits, np.float32)[:-1][scored].astype(np.float64)
        self.sequences += 1
        self.elapsed_ms += elapsed_ms
        self.tokens += targets.size
        self.loss += float(_losses(rows, targets).sum())
        ranks = _ranks(rows, targets)
        self.first += int((ranks == 0).sum())
        self.among += int((ranks < self.top_k).sum())
        if self.byte_lengths is not None:
            self.num_bytes += int(self.byte_lengths[targets].sum())

    def report(self, timed: bool) -> BenchReport:
        n, elapsed_ms = self.tokens, self.elapsed_ms
        ce = self.loss / n if n else 0.0
        per_byte = bits_per_token(self.loss) / self.num_bytes if self.num_bytes else None
        speed = n / elapsed_ms * 1000 if elapsed_ms > 0 else 0.0
        first, among = (self.first / n, self.among / n) if n else (0.0, 0.0)
        return BenchReport(
            self.sequences, n, ce, perplexity(ce), bits_per_token(ce), first, among, self.top_k,
            elapsed_ms if timed else None, speed if timed else None, per_byte,
        )  # fmt: skip


def _usable(sequences: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    return (ids.tolist() for ids in map(flat_ids, sequences) if len(ids) >= 2)


def _timer(measure: bool, now: Clock | None) -> Clock:
    return (now or _clock) if measure else float  # float() is 0.0


def _clock() -> float:
    return time.perf_counter() * 1000


@checked
def benchmark_model(
    model: Forward,
    sequences: Sequence[Sequence[int]],
    top_k: int = 5,
    measure_latency: bool = True,
    now: Clock | None = None,
    byte_lengths: npt.NDArray[np.int64] | None = None,
) -> BenchReport:
    """Score a model on sequences of token ids.

    Sequences under two tokens are skipped. now: a clock in milliseconds. byte_lengths: bytes of each token id, for
    bits_per_byte (see `token_byte_lengths`). Nothing to score gives cross-entropy 0.
    """
    score, tick = _Score(top_k, byte_lengths), _timer(measure_latency, now)
    for tokens in _usable(sequences):
        start = tick()
        score.add(tokens, model.forward(tokens), tick() - start)
    return score.report(measure_latency)


@checked
async def benchmark_model_async(
    model: ForwardAsync,
    sequences: Sequence[Sequence[int]],
    top_k: int = 5,
    measure_latency: bool = True,
    now: Clock | None = None,
    byte_lengths: npt.NDArray[np.int64] | None = None,
) -> BenchReport:
    """`benchmark_model` for a model whose device must be waited for."""
    score, tick = _Score(top_k, byte_lengths), _timer(measure_latency, now)
    for tokens in _usable(sequences):
        start = tick()
        score.add(tokens, await model.forward_async(tokens), tick() - start)
    return score.report(measure_latency)


def benchmark_text(model: Forward, codec: Encoder, corpus: str, **options: Any) -> BenchReport:
    """`benchmark_model` on the sentences of a text; a BPETokenizer also gives bits_per_byte."""
    return benchmark_model(model, corpus_to_sequences(corpus, codec), byte_lengths=token_byte_lengths(codec), **options)


async def benchmark_text_async(model: ForwardAsync, codec: Encoder, corpus: str, **options: Any) -> BenchReport:
    """`benchmark_text` for a model whose device must be waited for."""
    sequences = corpus_to_sequences(corpus, codec)
    return await benchmark_model_async(model, sequences, byte_lengths=token_byte_lengths(codec), **options)


@checked
def corpus_to_sequences(corpus: str, codec: Encoder) -> list[list[int]]:
    """Token ids of each sentence (ended by a full stop and white space) that has two tokens or more."""
    sentences = (SPACE_AROUND.sub("", part) for part in SENTENCE_GAP.split(corpus))
    return [ids for ids in (list(codec.encode(sentence)) for sentence in sentences) if len(ids) >= 2]


@checked
def token_byte_lengths(codec: Encoder) -> npt.NDArray[np.int64] | None:
    """Bytes that each token id stands for, int64 (V,); None if codec is no byte-level tokenizer.

    In a byte-level vocabulary every character stands for one byte; special tokens stand for their own text.
    """
    if not isinstance(codec, BPETokenizer) or not codec.vocab:
        return None
    special = codec.special_ids
    lengths = np.zeros(max(codec.vocab.values()) + 1, np.int64)
    for token, index in codec.vocab.items():
        lengths[index] = len(token.encode("utf-8")) if index in special else len(token)
    return lengths


# ── two models ───────────────────────────────────────────────────────────────
@runtime_checkable
class Scored(Protocol):
    """What a comparison needs of a report."""

    @property
    def perplexity(self) -> float: ...

    @property
    def top1_accuracy(self) -> float: ...


@dataclass(frozen=True)
class Comparison:
    """Candidate against baseline: differences are candidate − baseline, the ratio is candidate / baseline."""

    candidate: Any
    baseline: Any
    perplexity_delta: float
    perplexity_ratio: float
    top1_delta: float
    winner: str  # "candidate", "baseline" or "tie"
    summary: str


@checked
def compare_reports(candidate: Scored, baseline: Scored) -> Comparison:
    """Who has the lower perplexity; within half a percent it is a tie. NaN never wins."""
    new, old = candidate.perplexity, baseline.perplexity
    delta, ratio = new - old, new / old if old > 0 else math.inf
    pair, percent = f"({new:.2f} vs {old:.2f})", (1 - ratio) * 100
    if abs(ratio - 1) <= TIE:
        winner, summary = "tie", f"Tie: perplexity {new:.2f} vs {old:.2f}"
    elif delta < 0:
        winner, summary = "candidate", f"Candidate wins: {percent:.1f}% lower perplexity {pair}"
    else:
        winner, summary = "baseline", f"Baseline wins: candidate {-percent:.1f}% higher perplexity {pair}"
    top1 = candidate.top1_accuracy - baseline.top1_accuracy
    return Comparison(candidate, baseline, delta, ratio, top1, winner, summary)


def compare_models(
    candidate: Forward, baseline: Forward, sequences: Sequence[Sequence[int]], **options: Any
) -> Comparison:
    """`benchmark_model` on both, then `compare_reports`."""
    return compare_reports(*(benchmark_model(model, sequences, **options) for model in (candidate, baseline)))


async def compare_models_async(
    candidate: ForwardAsync, baseline: ForwardAsync, sequences: Sequence[Sequence[int]], **options: Any
) -> Comparison:
    """`compare_models` for models whose device must be waited for."""
    first = await benchmark_model_async(candidate, sequences, **options)
    return compare_reports(first, await benchmark_model_async(baseline, sequences, **options))


# ── from a text to a report ──────────────────────────────────────────────────
@dataclass(frozen=True)
class TrainReport(BenchReport):
    """A report on held-out sentences, with how the training went and a greedy sample."""

    train_sequences: int = 0
    eval_sequences: int = 0
    initial_train_loss: float = 0.0
    final_train_loss: float = 0.0
    vocab_size: int = 0
    sample: str = ""


def split_held_out(
    sequences: Sequence[list[int]], held_out_ratio: float, seed: int
) -> tuple[list[list[int]], list[list[int]]]:
    """(training, held out): shuffled by seed, the first share held out, at least one sequence on each side."""
    shuffled, rng = list(sequences), SeededRng(seed)
    for i in range(len(shuffled) - 1, 0, -1):  # Fisher-Yates
        j = int(rng.next() * (i + 1))
        shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
    low, high = HELD_OUT_RANGE
    share = len(shuffled) * min(max(held_out_ratio, low), high)
    count = min(max(math.floor(share + 0.5), 1), len(shuffled) - 1)
    return shuffled[count:], shuffled[:count]


@checked
async def train_and_benchmark_async(
    corpus: str,
    num_merges: int = 100,
    d_model: int = 32,
    num_layers: int = 2,
    hidden_dim: int = 48,
    epochs: int = 30,
    lr: float = 0.03,
    seed: int = 7,
    held_out_ratio: float = 0.25,
    top_k: int = 5,
    prompt: str = "The",
    backend: str | Backend | None = None,
) -> TrainReport:
    """Train tokenizer and model on part of a text's sentences, score the rest, and continue the prompt.

    InvalidArgumentError if the text has fewer than two sentences of two tokens.
    """
    tokenizer = BPETokenizer()
    tokenizer.train(corpus, num_merges=num_merges)
    sequences = corpus_to_sequences(corpus, tokenizer)
    if len(sequences) < 2:
        raise InvalidArgumentError(
            f"the corpus has {len(sequences)} usable sentences, at least 2 are needed; end sentences with a full stop"
        )
    train, held_out = split_held_out(sequences, held_out_ratio, seed)
    model = EvermindLM(tokenizer.vocab_size, d_model, num_layers, hidden_dim=hidden_dim, seed=seed, backend=backend)
    try:
        losses = await EvermindLMTrainer(model, lr=lr, epochs=epochs).fit_async(train)
        report = await benchmark_model_async(model, held_out, top_k, byte_lengths=token_byte_lengths(tokenizer))
        ids = await model.generate_async(tokenizer.encode(prompt), max_new_tokens=SAMPLE_TOKENS)
    finally:
        model.dispose()
    return TrainReport(
        **vars(report),
        train_sequences=len(train),
        eval_sequences=len(held_out),
        initial_train_loss=losses[0],
        final_train_loss=losses[-1],
        vocab_size=tokenizer.vocab_size,
        sample=tokenizer.decode(ids),
    )


def train_and_benchmark(corpus: str, **options: Any) -> TrainReport:
    """Blocking twin of `train_and_benchmark_async`."""
    return run_blocking(train_and_benchmark_async(corpus, **options))


# ── arithmetic ───────────────────────────────────────────────────────────────
def _losses(rows: npt.NDArray[np.float64], targets: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Cross-entropy of each row (N, V) at its target, float64 (N,)."""
    largest = rows.max(axis=1, initial=-np.inf)
    sums = np.log(np.exp(rows - largest[:, None]).sum(axis=1))
    picked = rows[np.arange(len(targets)), targets]
    return np.asarray(sums + largest - picked, np.float64)


def _ranks(rows: npt.NDArray[np.float64], targets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many logits come before the target's: larger ones, equal ones with a lower index; V if it is NaN or −∞."""
    own = rows[np.arange(len(targets)), targets][:, None]
    earlier = np.arange(rows.shape[1])[None, :] < targets[:, None]
    ranks = ((rows > own) | ((rows == own) & earlier)).sum(axis=1)
    return np.where(own[:, 0] > -np.inf, ranks, rows.shape[1])


def _check_target(target: int, size: int) -> None:
    if not 0 <= target < size:
        raise InvalidArgumentError(f"target {target} is outside the {size} logits")
