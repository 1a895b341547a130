"""Federated averaging of adapters, on a tiny scale: it gains, the averages are right, and no text leaves a client."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import numpy as np
import pytest

from bench import federated
from bench.federated import Client, Plan, Server, Training, Update, average, client_texts, simulate
from evermind_web import BPETokenizer, EvermindLM, EvermindLMLoRA, EvermindLMTrainer, pack_windows
from evermind_web.formats.safetensors_io import read_metadata, safetensors_to_tensors

TEXTS = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def setting() -> tuple[bytes, BPETokenizer, list[str]]:
    """A base that learned a little of one book, and eight clients who share out another."""
    alice, wells = ((TEXTS / f"{n}.txt").read_text(encoding="utf-8") for n in ("alice", "time-machine"))
    tokenizer = BPETokenizer()
    tokenizer.train(wells[:12_000], vocab_size=300)
    model = EvermindLM(tokenizer.vocab_size, 16, 1, 3, 16, 2, 1, seed=1, backend="numpy")
    EvermindLMTrainer(model, lr=0.01, accum_steps=16, epochs=2).fit(pack_windows(tokenizer.encode(wells[:12_000]), 64))
    return model.export_weights(), tokenizer, client_texts(alice[:14_000], 8, 1000, 2500)


def clients_of(setting: tuple[bytes, BPETokenizer, list[str]], rank: int = 4) -> list[Client]:
    base, tokenizer, texts = setting
    lora = EvermindLMLoRA(EvermindLM.from_checkpoint(base, backend="numpy"), rank)
    return [Client(text, tokenizer, lora) for text in texts]


@pytest.mark.parametrize("method", federated.METHODS)
def test_clients_gain_on_text_that_nobody_trained_on(
    setting: tuple[bytes, BPETokenizer, list[str]], method: str
) -> None:
    plan = Plan(method, rounds=4, sample=5, rank=4, training=Training(lr=0.05))
    result = simulate(clients_of(setting), plan, say=lambda line: None)
    assert result["federated"] < 0.97 * result["base"]
    assert result["clients_better_than_base"] >= 7
    assert result["curve"][0] == (0, result["base"])
    # a client of those sizes learns less alone than all together
    clients = clients_of(setting)
    adapter = clients[0].lora.adapter
    lonely = federated.alone(clients, plan, (np.zeros_like(adapter.B), adapter.A.copy()), 1)
    assert result["federated"] < np.mean(lonely) < result["base"]


def test_no_text_leaves_a_client(
    setting: tuple[bytes, BPETokenizer, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every message of a whole simulation: two float matrices of one size and a count, whatever the text is."""
    messages: list[bytes] = []
    receive = Server.receive

    def record(self: Server, batch: list[bytes]) -> None:
        assert all(type(message) is bytes for message in batch)
        messages.extend(batch)
        receive(self, batch)

    monkeypatch.setattr(Server, "receive", record)
    clients = clients_of(setting)
    simulate(clients, Plan(rounds=2, sample=4, rank=4), say=lambda line: None)
    assert len(messages) == 8
    rows, width = clients[0].lora.adapter.rows, clients[0].lora.adapter.cols
    expected = [("B", (rows, 4), np.float32), ("A", (4, width), np.float32)]
    allowed = {str(len(client.train)) for client in clients}
    for message in messages:
        tensors, metadata = safetensors_to_tensors(message), read_metadata(message)
        assert [(t.name, t.shape, t.data.dtype) for t in tensors] == expected
        assert set(metadata) == {"examples"}
        assert metadata["examples"] in allowed
        assert len(message) < 4 * 4 * (rows + width) + 300  # nothing else is in it
        for text in setting[2]:
            pieces = {text[i : i + 12].encode() for i in range(0, len(text) - 12, 7)}
            assert not any(piece in message for piece in pieces)


def test_the_server_takes_messages_and_nothing_else() -> None:
    assert set(inspect.signature(Server.receive).parameters) == {"self", "messages"}
    assert set(inspect.signature(average).parameters) == {"updates", "method"}
    assert set(Server.__dataclass_fields__) == {"B", "A", "method", "received_bytes"}
    one = Update(np.ones((3, 1), np.float32), np.ones((1, 2), np.float32), 5)
    extra = federated.tensors_to_safetensors(
        [federated.NamedTensor("B", (3, 1), one.B), federated.NamedTensor("A", (1, 2), one.A)],
        metadata={"examples": "5", "text": "my diary"},
    )
    server = Server(one.B * 0, one.A)
    with pytest.raises(ValueError, match="A, B and examples"):
        server.receive([extra])
    assert not server.B.any()


def updates(rank: int = 2, shared: bool = False) -> list[Update]:
    """Three answers with 1, 3 and 6 examples; shared: with one A."""
    rng = np.random.default_rng(3)
    A = [rng.normal(size=(rank, 5)).astype(np.float32) for _ in range(3)]
    B = [rng.normal(size=(7, rank)).astype(np.float32) for _ in range(3)]
    return [Update(B[i], A[0 if shared else i], n) for i, n in enumerate((1, 3, 6))]


def mean_delta(given: list[Update]) -> np.ndarray:
    return np.asarray(sum(u.examples * (u.B @ u.A) for u in given) / sum(u.examples for u in given))


def test_with_one_a_for_all_the_mean_of_b_is_the_mean_of_the_deltas() -> None:
    given = updates(shared=True)
    B, A = average(given, "b-only")
    np.testing.assert_allclose(B @ A, mean_delta(given), rtol=1e-5)
    np.testing.assert_allclose(A, given[0].A, rtol=1e-6)


def test_averaging_factors_is_not_averaging_deltas() -> None:
    given = updates()
    B, A = average(given, "factors")
    np.testing.assert_allclose(B, (given[0].B + 3 * given[1].B + 6 * given[2].B) / 10, rtol=1e-5)
    assert np.abs(B @ A - mean_delta(given)).max() > 0.1


def test_the_mean_delta_is_cut_back_to_the_rank_in_the_best_way() -> None:
    given = updates()
    B, A = average(given, "delta")
    assert B.shape == (7, 2)
    assert A.shape == (2, 5)
    u, s, vt = np.linalg.svd(mean_delta(given))
    np.testing.assert_allclose(B @ A, (u[:, :2] * s[:2]) @ vt[:2], atol=1e-5)


def test_b_only_leaves_a_alone(setting: tuple[bytes, BPETokenizer, list[str]]) -> None:
    client = clients_of(setting)[0]
    A = client.lora.adapter.A.copy()
    server = Server(np.zeros_like(client.lora.adapter.B), A)
    answer = Update.from_bytes(client.update(server.broadcast(), Training(), "b-only", 1))
    assert np.array_equal(answer.A, A)
    assert answer.B.any()
    assert answer.examples == len(client.train)
    moved = Update.from_bytes(client.update(server.broadcast(), Training(), "factors", 1))
    assert not np.array_equal(moved.A, A)


def test_texts_of_clients_are_disjoint_and_of_the_wanted_size() -> None:
    text = (TEXTS / "alice.txt").read_text(encoding="utf-8")
    pieces = client_texts(text, 12, 5000, 15_000)
    assert text.startswith("".join(pieces))
    assert all(4000 < len(piece) < 21_000 for piece in pieces)
    with pytest.raises(ValueError, match="too few"):
        client_texts(text[:20_000], 10)


def test_the_learning_rate_falls_from_round_to_round() -> None:
    training = Training(lr=1.0, last_lr=0.1)
    assert [round(training.in_round(n, 4).lr, 3) for n in (1, 2, 3, 4)] == [1.0, 0.7, 0.4, 0.1]


def test_the_command(setting: tuple[bytes, BPETokenizer, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                     capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    base, tokenizer, texts = setting
    (tmp_path / "base.evl0").write_bytes(base)
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    (tmp_path / "text.txt").write_text("".join(texts), encoding="utf-8")
    at = {name: str(tmp_path / name) for name in ("base.evl0", "tokenizer.json", "text.txt", "out.json", "out.svg")}
    monkeypatch.setattr("sys.argv", [
        "federated.py", "--base", at["base.evl0"], "--tokenizer", at["tokenizer.json"], "--text", at["text.txt"],
        "--clients", "2", "--rounds", "1", "--sample", "1", "--rank", "2", "--local", "1", "-o", at["out.json"],
        "--svg", at["out.svg"],
    ])  # fmt: skip
    federated.main()
    results = json.loads(Path(at["out.json"]).read_text(encoding="utf-8"))
    assert [r["method"] for r in results] == list(federated.METHODS)
    assert Path(at["out.svg"]).read_text(encoding="utf-8").startswith("<svg")
    table = capsys.readouterr().out
    assert f"{results[0]['federated']:.3f}" in table
