"""Native WebGPU against NumPy: whole models and three training steps, on the one list of cases."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from evermind_web.backend.base import Backend
from tests.cases import MODEL_CASES, ModelCase, model_case
from tests.parity import Findings, compare_models, compare_training, weights_agree


@pytest.mark.parametrize("case", MODEL_CASES, ids=str)
def test_loss_logits_gradients_and_text(cpu: Backend, gpu: Backend, case: ModelCase) -> None:
    findings = asyncio.run(compare_models(cpu, gpu, [case]))
    assert findings.compared >= 3 + 3
    assert findings.problems == []


@pytest.mark.parametrize("case", MODEL_CASES, ids=str)
def test_three_training_steps(cpu: Backend, gpu: Backend, case: ModelCase) -> None:
    findings = asyncio.run(compare_training(cpu, gpu, [case]))
    assert findings.compared == 4
    assert findings.problems == []


@pytest.mark.parametrize("case", MODEL_CASES, ids=str)
def test_draws_of_a_case_are_alike_and_clear(case: ModelCase) -> None:
    assert case.weights().tobytes() == case.weights().tobytes()
    assert max(len(s) for s in case.sequences()) <= 40


def test_cases_cover_the_sizes_that_matter() -> None:
    arches = [case.arch for case in MODEL_CASES]
    lengths = {length for case in MODEL_CASES for length in case.lengths}
    assert {a.vocab_size for a in arches} == {37, 301}
    assert {a.d_model for a in arches} == {5, 12, 20, 64}
    assert {a.conv_kernel for a in arches} == {1, 2, 3, 5}
    assert {1, 3, 4, 7} <= {a.num_experts for a in arches}
    assert {1, 2} <= {a.top_k for a in arches}
    assert any(a.top_k == a.num_experts > 1 for a in arches)
    assert {2, 3, 17, 40} <= lengths
    assert any(min(case.lengths) < case.arch.conv_kernel for case in MODEL_CASES)


def test_the_comparison_sees_small_differences() -> None:
    want = np.array([1.0, -2.0, 0.0])
    for change, seen in ((1.9e-4, False), (2.1e-4, True)):
        findings = Findings()
        findings.close("x", want + np.array([0, 0, change]), want, 1e-4)
        assert bool(findings.problems) == seen
    for odd in (np.nan, np.inf):
        findings = Findings()
        findings.close("x", np.array([1.0, odd, 0.0]), want, 1e-4)
        assert findings.problems
    assert weights_agree("w", np.zeros(100), np.r_[np.zeros(97), np.full(3, 6e-4)], 0.01)
    assert weights_agree("w", np.zeros(100), np.r_[np.zeros(99), 0.031], 0.01)
    assert not weights_agree("w", np.zeros(100), np.r_[np.zeros(98), 6e-4, 0.029], 0.01)


def test_special_cases_are_what_they_say() -> None:
    """Ties, idle experts and repeated tokens do occur."""
    tied = model_case("ties-equal-rows")
    router = next(part for spec, part in tied.table().slices(tied.weights()) if "router" in spec.name)
    assert (router[0] == router[1]).all()
    zero = model_case("ties-zero-router")
    assert not any(part.any() for spec, part in zero.table().slices(zero.weights()) if "router" in spec.name)
    assert len(set(model_case("repeated-tokens").sequences()[0])) == 1
    idle = model_case("idle-experts").arch
    assert sum(model_case("idle-experts").lengths) * idle.top_k < idle.num_experts
