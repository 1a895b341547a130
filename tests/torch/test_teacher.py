"""Teachers: causal, scored in chunks, saved and loaded; students learn from their mean and go on only with the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from evermind_web.errors import ConfigMismatchError, InvalidArgumentError
from evermind_web.formats.arch import Arch
from evermind_web.torch import runs
from evermind_web.torch.recipe import Recipe
from evermind_web.torch.scoring import bits_per_byte
from evermind_web.torch.teacher import Transformer, rotated, soft_targets
from evermind_web.torch.trainer import taught_loss, token_loss
from tests.torch.test_pretrain import SMALL, write_text

SHAPE = Arch(53, 64, 2, 3, 48, 3, 2)
TEACHER = SMALL | {"kind": "transformer", "d_model": 64, "hidden_dim": 64, "epochs": 2.0}
CPU = torch.device("cpu")


def tokens(rows: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, SHAPE.vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


def test_a_prediction_depends_on_what_came_before_only() -> None:
    teacher = Transformer(SHAPE, 16, seed=3)
    with torch.no_grad():
        for p in teacher.parameters():
            if p.ndim > 1:
                p.mul_(6)  # away from the first weights, where attention hardly matters
    ids = tokens(2, 16)
    changed = ids.clone()
    changed[:, 10:] = (changed[:, 10:] + 1) % SHAPE.vocab_size
    torch.testing.assert_close(teacher(changed)[:, :10], teacher(ids)[:, :10], rtol=1e-4, atol=1e-4)
    earlier = ids.clone()
    earlier[:, 2] = (earlier[:, 2] + 1) % SHAPE.vocab_size
    assert not torch.allclose(teacher(earlier)[:, 9], teacher(ids)[:, 9], atol=1e-2)


def test_rotation_keeps_lengths_and_tells_distances_only() -> None:
    teacher = Transformer(SHAPE, 16, seed=3)
    q, k = (torch.randn(1, 1, 1, 64, generator=torch.Generator().manual_seed(s)).expand(1, 1, 20, 64) for s in (1, 2))
    q, k = (rotated(x, teacher.cos[:20], teacher.sin[:20])[0, 0] for x in (q, k))
    torch.testing.assert_close(q.norm(dim=1), q[0].norm().expand(20))
    scores = q @ k.T
    torch.testing.assert_close(scores[5:, 5:], scores[:-5, :-5], rtol=1e-4, atol=1e-4)
    assert float((scores[9] - scores[9, 0]).abs()[1:9].min()) > 0.01  # another at each distance


def test_chunks_are_scored_after_their_context() -> None:
    teacher = Transformer(SHAPE, 16, seed=3).requires_grad_(False)
    ids, lengths = tokens(1, 41)[0].numpy(), np.full(SHAPE.vocab_size, 2)
    nats = 0.0
    for start in range(0, 40, 8):
        first = max(0, start - 8)
        piece = torch.from_numpy(ids[first : start + 9]).unsqueeze(0)
        scores = teacher(piece[:, :-1])[0, start - first :].log_softmax(-1)
        nats -= float(scores.gather(1, piece[0, start - first + 1 :, None]).sum())
    assert bits_per_byte(teacher, [ids], lengths) == pytest.approx(nats / np.log(2) / 80, rel=1e-5)


def test_a_file_holds_all_of_a_teacher(tmp_path: Path) -> None:
    teacher = Transformer(SHAPE, 16, seed=3, dropout=0.5)
    teacher.save(tmp_path / "teacher.pt")
    again = Transformer.load(tmp_path / "teacher.pt", CPU)
    assert torch.equal(again(tokens(2, 16)), teacher.eval()(tokens(2, 16)))
    assert not any(p.requires_grad for p in again.parameters())
    other = Transformer(SHAPE, 16, seed=4)
    other.load_packed(teacher.packed())
    assert torch.equal(other(tokens(2, 16)), again(tokens(2, 16)))


def test_soft_targets_are_the_mean_of_the_teachers() -> None:
    teachers = [Transformer(SHAPE, 16, seed=seed).eval().requires_grad_(False) for seed in (1, 2)]
    soft = soft_targets(teachers, tokens(2, 8))
    one, two = (soft_targets([teacher], tokens(2, 8)) for teacher in teachers)
    torch.testing.assert_close(soft, (one + two) / 2)
    torch.testing.assert_close(soft.sum(1), torch.ones(16))
    assert not torch.allclose(one, two)


def test_the_taught_loss_lies_between_truth_and_teacher() -> None:
    x, embedding = torch.randn(6, 4), torch.randn(5, 4)
    targets = torch.tensor([0, 1, 2, 3, 4, 0])
    truth = torch.nn.functional.one_hot(targets, 5).float()
    soft = torch.rand(6, 5).softmax(1)
    hard = token_loss(x, embedding, targets)
    torch.testing.assert_close(taught_loss(x, embedding, targets, soft, 0.0), hard)
    torch.testing.assert_close(taught_loss(x, embedding, targets, truth, 0.7), hard)
    all_soft = -(soft * (x @ embedding.T).log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(taught_loss(x, embedding, targets, soft, 0.25), 0.75 * hard + 0.25 * all_soft)


def test_a_student_learns_from_teachers_and_goes_on_only_with_the_same(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt", 400)
    data = tmp_path / "data"
    metrics = runs.run(Recipe(**TEACHER), [text], tmp_path / "teacher", data=data, device="cpu")
    first, last = metrics["evaluations"][0], metrics["evaluations"][-1]
    assert last["validation"] < first["validation"]
    assert not (tmp_path / "teacher/model.evl0").exists()
    path = tmp_path / "teacher/teacher.pt"
    student = Recipe(**SMALL | {"teaching": 1.0, "epochs": 2.0})  # the truth itself is never shown
    runs.run(student, [text], tmp_path / "student", teachers=[path], data=data, device="cpu")
    taught = runs.run(student, [text], tmp_path / "student", teachers=[path], data=data, device="cpu")  # went on: done
    assert taught["teachers"] == 1
    assert taught["scores"]["validation"]["bits_per_byte"] < 2.5
    with pytest.raises(ConfigMismatchError, match="teachers differ"):
        runs.run(student, [text], tmp_path / "student", data=data, device="cpu")


def test_impossible_teachers_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="multiple of 64"):
        Transformer(SHAPE._replace(d_model=65), 16, 1)
    with pytest.raises(InvalidArgumentError, match="kind"):
        Recipe(kind="lstm")
