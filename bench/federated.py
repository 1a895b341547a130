"""Federated averaging of adapters, simulated: many people's texts stay with them, only adapters travel.

    python -m bench.federated --base base.evl0 --tokenizer tokenizer.json --text shakespeare.txt -o federated.json

One base that everybody has. Each client owns a few scenes (5–20 KB). In a round the server sends the common adapter to
a few clients; each trains it for a few steps on its own text and sends a message back: the adapter's new values and the
number of windows it learned from. The server averages and never sees anything else: its functions take bytes of
safetensors files with two matrices and a count (`tests/test_federated.py` reads every message).

How adapters are averaged (`--method`):

    factors  B and A are averaged one by one. Not quite the mean of the deltas (mean(B) mean(A) ≠ mean(B A)), but what
             any FedAvg server does with two arrays, and as good as the exact mean in the published table; the default.
    delta    the server averages the deltas exactly and cuts the mean back to the rank (SVD).
    b-only   A is the same random matrix for all and is never trained, so the mean of B is exactly that of the deltas.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.svg import Chart, document
from evermind_web import (
    BPETokenizer,
    EvermindLM,
    EvermindLMLoRA,
    Example,
    pack_windows,
    read_metadata,
    safetensors_to_tensors,
    tensors_to_safetensors,
)
from evermind_web.batch import check_item, token_weights
from evermind_web.environment import run_blocking
from evermind_web.formats.safetensors_io import NamedTensor

F32 = NDArray[np.float32]
METHODS = ("factors", "delta", "b-only")
WINDOW = 64


# ── what travels ─────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Update:
    """An adapter B (V,R), A (R,D), and how many windows it was trained on. All that ever leaves a client."""

    B: F32
    A: F32
    examples: int

    def to_bytes(self) -> bytes:
        """A safetensors file."""
        tensors = [NamedTensor("B", self.B.shape, self.B), NamedTensor("A", self.A.shape, self.A)]
        return tensors_to_safetensors(tensors, metadata={"examples": str(self.examples)})

    @classmethod
    def from_bytes(cls, message: bytes) -> Update:
        """Read a message; anything but two matrices and a count is refused."""
        tensors, metadata = {t.name: t.data for t in safetensors_to_tensors(message)}, read_metadata(message)
        if set(tensors) != {"A", "B"} or set(metadata) != {"examples"}:
            raise ValueError(f"a message holds A, B and examples, got {sorted(tensors)} and {sorted(metadata)}")
        return cls(tensors["B"], tensors["A"], int(metadata["examples"]))


# ── the server ───────────────────────────────────────────────────────────────
def average(updates: Sequence[Update], method: str) -> tuple[F32, F32]:
    """FedAvg: B and A of the common adapter, every client weighted by its examples."""
    weights = np.array([u.examples for u in updates], np.float64)
    weights /= weights.sum()
    if method == "delta":
        return truncated(
            np.concatenate([w * u.B for w, u in zip(weights, updates, strict=True)], axis=1),
            np.concatenate([u.A for u in updates], axis=0),
            updates[0].A.shape[0],
        )
    B, A = (sum(w * getattr(u, name) for w, u in zip(weights, updates, strict=True)) for name in "BA")
    return np.asarray(B, np.float32), np.asarray(A, np.float32)


def truncated(left: NDArray[Any], right: NDArray[Any], rank: int) -> tuple[F32, F32]:
    """The best B (V,rank), A (rank,D) for left (V,n) · right (n,D), without making that product."""
    q_left, r_left = np.linalg.qr(left)
    q_right, r_right = np.linalg.qr(right.T)
    u, s, vt = np.linalg.svd(r_left @ r_right.T)
    root = np.sqrt(s[:rank])
    B = q_left @ (u[:, :rank] * root)
    A = (root[:, None] * vt[:rank]) @ q_right.T
    return B.astype(np.float32), A.astype(np.float32)


@dataclass
class Server:
    """Keeps the common adapter. What it receives are messages."""

    B: F32
    A: F32
    method: str = "factors"
    received_bytes: int = 0

    def broadcast(self) -> bytes:
        """The common adapter for the clients of a round."""
        return Update(self.B, self.A, 0).to_bytes()

    def receive(self, messages: Sequence[bytes]) -> None:
        """One round's answers."""
        self.received_bytes += sum(len(m) for m in messages)
        self.B, self.A = average([Update.from_bytes(m) for m in messages], self.method)


# ── a client ─────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Training:
    """What a client does with its text in one round. lr falls linearly over the rounds, to `last_lr` × lr."""

    lr: float = 0.005
    last_lr: float = 0.1
    epochs: int = 1
    accum_steps: int = 4

    def in_round(self, number: int, rounds: int) -> Training:
        """The same with the learning rate of a round (from 1)."""
        done = (number - 1) / max(1, rounds - 1)
        return replace(self, lr=self.lr * (1 + (self.last_lr - 1) * done))


@dataclass
class Client:
    """Somebody with a text; its last fifth is held out. `lora` is this machine's scratch for an adapter."""

    text: str
    tokenizer: BPETokenizer
    lora: EvermindLMLoRA
    train: list[Example] = field(init=False)
    held_out: list[Example] = field(init=False)
    held_out_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        cut = len(self.text) * 4 // 5
        self.train = pack_windows(self.tokenizer.encode(self.text[:cut]), WINDOW)
        self.held_out = pack_windows(self.tokenizer.encode(self.text[cut:]), 4 * WINDOW)
        self.held_out_bytes = len(self.text[cut:].encode("utf-8"))

    def load(self, B: F32, A: F32) -> None:
        """Put an adapter on this machine's model."""
        self.lora.adapter.B[...], self.lora.adapter.A[...] = B, A

    def update(self, broadcast: bytes, training: Training, method: str, seed: int) -> bytes:
        """Train the common adapter on the own text; the answer to the server."""
        common = Update.from_bytes(broadcast)
        self.load(common.B, common.A)
        self.fit(training, method, seed)
        return Update(self.lora.adapter.B, self.lora.adapter.A, len(self.train)).to_bytes()

    def fit(self, training: Training, method: str, seed: int) -> None:
        """Some passes over the own windows, in an order of their own."""
        order = np.random.default_rng(seed).permutation(len(self.train))
        self.lora.fit(
            [self.train[i] for i in order], lr=training.lr, epochs=training.epochs, accum_steps=training.accum_steps,
            max_grad_norm=1.0, shard=(0, 2) if method == "b-only" else None,  # B is tensor 0, A is tensor 1
        )  # fmt: skip

    def bits(self) -> float:
        """Bits of the held-out text with the adapter that is loaded."""
        items = [check_item(w, self.lora.config.vocab_size) for w in self.held_out]
        total = sum(item.scored for item in items)
        return run_blocking(self.lora.evaluate_items(items, token_weights(items))) * total / math.log(2)


# ── texts ────────────────────────────────────────────────────────────────────
def client_texts(text: str, count: int, low: int = 5000, high: int = 20_000, seed: int = 1) -> list[str]:
    """`count` pieces of about low…high characters, cut one after another between speeches or paragraphs.

    Each is from one scene or a few that follow one another: its people and words are its own, so no two are alike.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.uniform(low, high, count)
    lengths *= min(1.0, 0.98 * len(text) / lengths.sum())
    if lengths.min() < low / 2:
        raise ValueError(f"{len(text)} characters are too few for {count} clients; take a longer text")
    pieces, at = [], 0
    for length in lengths.astype(int).tolist():
        border = text.find("\n\n", at + length)
        end = border + 2 if 0 <= border < at + length + low else at + length
        pieces.append(text[at:end])
        at = end
    return pieces


# ── the simulation ───────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Plan:
    """rounds of `sample` clients each; rank of the adapter. local: passes of a client that is left to itself."""

    method: str = "factors"
    rounds: int = 20
    sample: int = 10
    rank: int = 8
    seed: int = 1
    local: tuple[int, ...] = (2,)
    training: Training = field(default_factory=Training)


def score(clients: Sequence[Client], each: Sequence[tuple[F32, F32]]) -> list[float]:
    """Bits per byte of every client's held-out text with the adapter that it is given."""
    out = []
    for client, (B, A) in zip(clients, each, strict=True):
        client.load(B, A)
        out.append(client.bits() / client.held_out_bytes)
    return out


def simulate(clients: Sequence[Client], plan: Plan, say: Any = print) -> dict[str, Any]:
    """Rounds of federated averaging, and what the same clients reach alone. Bits per byte, means over all clients."""
    start = clients[0].lora.adapter
    fresh = np.zeros_like(start.B), start.A.copy()
    server, rng = Server(*fresh, plan.method), np.random.default_rng(plan.seed)
    everyone = range(len(clients))
    base = score(clients, [fresh for _ in everyone])
    curve, sent, started = [(0, mean(base))], 0, time.perf_counter()
    for number in range(1, plan.rounds + 1):
        broadcast = server.broadcast()
        chosen = rng.choice(len(clients), plan.sample, replace=False).tolist()
        training = plan.training.in_round(number, plan.rounds)
        sent += len(broadcast) * len(chosen)
        server.receive([
            clients[i].update(broadcast, training, plan.method, plan.seed * 10_000 + number * 100 + i)
            for i in chosen
        ])  # fmt: skip
        if number % 5 == 0 or number == plan.rounds:
            curve.append((number, mean(score(clients, [(server.B, server.A) for _ in everyone]))))
            say(f"{plan.method}: round {number}: {curve[-1][1]:.4f} bits per byte (base {curve[0][1]:.4f})")
    together = score(clients, [(server.B, server.A) for _ in everyone])
    seconds = time.perf_counter() - started
    return {
        "method": plan.method, "clients": len(clients), "rounds": plan.rounds, "sample": plan.sample,
        "rank": plan.rank, "curve": curve, "base": mean(base), "federated": mean(together),
        "clients_better_than_base": sum(a < b for a, b in zip(together, base, strict=True)),
        "seconds": seconds, "sent_bytes": sent, "received_bytes": server.received_bytes,
        "message_bytes": len(server.broadcast()), "each_base": base, "each_federated": together,
        "server": (server.B, server.A),
    }  # fmt: skip


def alone(clients: Sequence[Client], plan: Plan, start: tuple[F32, F32], epochs: int) -> list[float]:
    """Bits per byte of every client that trains `epochs` passes on nothing but its own text."""
    training = replace(plan.training, epochs=epochs)
    out = []
    for i, client in enumerate(clients):
        client.load(*start)
        client.fit(training, plan.method, plan.seed * 10_000 + i)
        out.append(client.bits() / client.held_out_bytes)
    return out


def mean(values: Sequence[float]) -> float:
    """Over the clients, each counted once."""
    return float(np.mean(values))


def run(base: bytes, tokenizer: BPETokenizer, texts: Sequence[str], plan: Plan, say: Any = print) -> dict[str, Any]:
    """The simulation, and what clients reach alone, from the base and from the common adapter."""
    model = EvermindLM.from_checkpoint(base, backend="numpy")
    lora = EvermindLMLoRA(model, plan.rank)
    clients = [Client(text, tokenizer, lora) for text in texts]
    fresh = np.zeros_like(lora.adapter.B), lora.adapter.A.copy()
    result = simulate(clients, plan, say)
    common = result.pop("server")
    for name, start in (("alone", fresh), ("federated_then_alone", common)):
        result[name] = {str(epochs): mean(alone(clients, plan, start, epochs)) for epochs in plan.local}
        say(f"{plan.method}: {name.replace('_', ' ')}: {result[name]}")
    lora.dispose()
    return result


def svg(results: Sequence[dict[str, Any]]) -> str:
    """The curves, as a small picture."""
    values = [v for r in results for _, v in r["curve"]]
    rounds, margin = max(n for r in results for n, _ in r["curve"]), 0.05 * (max(values) - min(values))
    chart = Chart(
        "Held-out bits per byte",
        f"rounds of {results[0]['sample']} of {results[0]['clients']} clients",
        {r["method"]: r["curve"] for r in results},
        ticks=[rounds * i / 4 for i in range(5)],
        low=min(values) - margin,
        high=max(values) + margin,
        width=560,
        height=260,
        digits=4,
    )
    return document("Held-out bits per byte against rounds", [chart])


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """The published table."""
    local = list(results[0]["alone"])
    titles = [
        "Averaged", "Base", "Federated", "Clients better", *(f"Alone, {n} passes" for n in local),
        *(f"Federated, then {n} passes alone" for n in local), "A message", "Seconds",
    ]  # fmt: skip
    rows = [f"| {' | '.join(titles)} |", "| --- " * len(titles) + "|"]
    for r in results:
        private = [r[k].get(n) for k in ("alone", "federated_then_alone") for n in local]
        cells = [
            r["method"], f"{r['base']:.3f}", f"{r['federated']:.3f}",
            f"{r['clients_better_than_base']} of {r['clients']}", *("" if v is None else f"{v:.3f}" for v in private),
            f"{r['message_bytes'] / 1000:.1f} KB", f"{r['seconds']:.0f}",
        ]  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    """See the module text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, help="EVL0 checkpoint that everybody has")
    parser.add_argument("--tokenizer", type=Path, required=True, help="its tokenizer.json")
    parser.add_argument("--text", type=Path, required=True, help="cut into the clients' texts")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sample", type=int, default=10, help="clients of a round")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--epochs", type=int, default=1, help="a client's passes over its text in a round")
    parser.add_argument("--method", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument(
        "--local", type=int, nargs="*", default=[2], help="passes of clients left to themselves, for the first method"
    )
    parser.add_argument("-o", "--output", type=Path, help="JSON with everything")
    parser.add_argument("--svg", type=Path, help="the curves")
    arguments = parser.parse_args()
    texts = client_texts(arguments.text.read_text(encoding="utf-8"), arguments.clients)
    tokenizer = BPETokenizer.from_file(str(arguments.tokenizer))
    training = Training(arguments.lr, epochs=arguments.epochs)
    sizes = arguments.rounds, arguments.sample, arguments.rank, 1
    results: list[dict[str, Any]] = []
    for method in arguments.method:
        plan = Plan(method, *sizes, () if results else tuple(arguments.local), training)
        results.append(run(arguments.base.read_bytes(), tokenizer, texts, plan))
    if arguments.output:
        arguments.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if arguments.svg:
        arguments.svg.write_text(svg(results), encoding="utf-8")
    print(markdown(results))


if __name__ == "__main__":
    main()
