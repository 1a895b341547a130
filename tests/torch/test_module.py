"""The module against the NumPy backend: logits, gradients, ties, files, autocast, compile."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from evermind_web import EvermindLM
from evermind_web.torch import EvermindModule
from evermind_web.torch.dispatch import make_plan
from tests.cases import MODEL_CASES, ModelCase


def pair(case: ModelCase) -> tuple[EvermindLM, EvermindModule]:
    """The same model twice, with the case's weights."""
    lm = EvermindLM(*case.arch)
    lm.load_packed(case.table().pack(case.weights()))
    return lm, EvermindModule.from_evl0(lm.export_weights())


@pytest.mark.parametrize("case", MODEL_CASES, ids=str)
def test_logits_and_gradients_are_those_of_numpy(case: ModelCase) -> None:
    lm, module = pair(case)
    total = torch.zeros(())
    for ids in case.sequences():
        logits = module(torch.tensor(ids))
        expected = lm.forward(ids)
        np.testing.assert_allclose(logits.detach(), expected, atol=1e-4 * max(1.0, float(np.abs(expected).max())))
        total = total + F.cross_entropy(logits[:-1], torch.tensor(ids[1:]))
        lm.loss_and_backward(ids)
    total.backward()
    for (name, parameter), gradient in zip(module.named_parameters(), lm.gradients(), strict=True):
        assert name == gradient.name
        assert parameter.grad is not None
        np.testing.assert_allclose(
            parameter.grad, gradient.data, atol=1e-4 * max(1.0, float(np.abs(gradient.data).max())), err_msg=name
        )


def test_a_batch_is_its_rows_one_by_one() -> None:
    _, module = pair(MODEL_CASES[5])
    tokens = torch.randint(0, 301, (3, 17), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(module(tokens), torch.stack([module(row) for row in tokens]), rtol=1e-4, atol=1e-4)


def test_checkpoints_round_trip_byte_for_byte() -> None:
    lm, _ = pair(MODEL_CASES[2])
    for fp16 in (False, True):
        data = lm.export_weights(fp16)
        assert EvermindModule.from_evl0(data).to_evl0(fp16) == data
    fresh = MODEL_CASES[3].arch
    assert EvermindModule(*fresh, seed=7).to_evl0() == EvermindLM(*fresh, seed=7).export_weights()


@pytest.mark.parametrize(("rows", "num_experts", "top_k"), [(1, 4, 2), (40, 7, 1), (600, 4, 2), (3000, 3, 3)])
def test_plan_gives_every_pair_a_place_in_a_tile_of_its_expert(rows: int, num_experts: int, top_k: int) -> None:
    scores = torch.rand(rows, num_experts, generator=torch.Generator().manual_seed(rows))
    scores[:, -1] -= 0.9  # one is all but idle
    experts = scores.argsort(1, descending=True)[:, :top_k]
    plan = make_plan(experts, num_experts)
    tile = len(plan.source) // len(plan.expert)
    assert len(set(plan.slot.tolist())) == rows * top_k
    assert torch.equal(plan.expert[plan.slot // tile], experts.flatten())
    assert torch.equal(plan.source[plan.slot], torch.arange(rows).repeat_interleave(top_k))
    assert torch.equal(plan.counts, torch.bincount(experts.flatten(), minlength=num_experts))
    assert len(plan.source) - rows * top_k < (num_experts + 1) * tile  # what is computed beside the pairs


def test_an_idle_expert_is_never_touched() -> None:
    """Experts that no row chooses hold NaN here: one multiplication with them would show."""
    module = EvermindModule(37, 12, 2, 3, 16, 6, 2, seed=3)
    tokens = torch.randint(0, 37, (2, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for layer in module.layers:
            layer.moe.router.weight[:] = layer.moe.router.weight[0]  # all tie: the two of lowest index always win
            for expert in layer.moe.experts[2:]:
                for parameter in expert.parameters():
                    parameter.fill_(float("nan"))
    logits = module(tokens)
    assert logits.isfinite().all()
    logits.square().sum().backward()
    used = [p.grad for n, p in module.named_parameters() if not any(f"experts.{e}." in n for e in range(2, 6))]
    assert all(g is not None and g.isfinite().all() for g in used)


def test_autocast_stays_close() -> None:
    _, module = pair(MODEL_CASES[5])
    tokens = torch.randint(0, 301, (2, 33), generator=torch.Generator().manual_seed(1))
    exact = module(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        rough = module(tokens)
        F.cross_entropy(rough.flatten(0, 1).float(), tokens.flatten()).backward()
    assert rough.dtype == torch.bfloat16
    error = float(((rough - exact).norm() / exact.norm()).detach())
    assert 0 < error < 0.03
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


@pytest.mark.filterwarnings("default")  # the compiler itself looks at what PyTorch warns of
def test_compiled_layers_give_the_same_numbers_without_a_graph_break() -> None:
    _, plain = pair(MODEL_CASES[2])
    _, compiled = pair(MODEL_CASES[2])
    compiled.compile_layers(fullgraph=True)
    tokens = torch.randint(0, 37, (4, 19), generator=torch.Generator().manual_seed(1))
    losses = [F.cross_entropy(m(tokens).flatten(0, 1), tokens.flatten()) for m in (plain, compiled)]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-5)
    for loss in losses:
        loss.backward()
    for (name, a), b in zip(plain.named_parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-4, msg=name)
