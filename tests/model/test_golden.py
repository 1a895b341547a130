"""The model against the reference engine: fresh weights, logits, losses, gradients, text."""

from __future__ import annotations

import asyncio
import hashlib

import numpy as np
import pytest

from evermind_web.backend.base import Backend
from evermind_web.errors import InvalidArgumentError
from tests.golden_data import GoldenCase, load_case, load_cases
from tests.golden_models import (
    body,
    check_forward,
    check_generation,
    check_gradients,
    keywords,
    model_of,
    plain_seed,
)

INITS = [case for case in load_cases("lm_init") if plain_seed(case)]


@pytest.mark.parametrize("case", INITS, ids=str)
def test_fresh_weights_bit_for_bit(case: GoldenCase, backend: Backend) -> None:
    model = model_of(case, backend, checkpoint=False)
    assert model.config._asdict() == {k: v for k, v in keywords(case["resolved_config"]).items() if k != "seed"}
    assert [p.data.size for p in model.parameters()] == [p["length"] for p in case["params"]]
    assert model.num_parameters == case["total_params"]
    data = model.export_weights()
    if case.has("evl0_f32"):
        assert data == case.raw("evl0_f32")
    else:
        assert hashlib.sha256(data).hexdigest() == case["evl0_f32_sha256"]
    model.dispose()


@pytest.mark.parametrize("case", [case for case in INITS if case.has("evl0_fp16")], ids=str)
def test_fp16_checkpoint_is_within_a_code_of_the_truncated_one(case: GoldenCase, cpu: Backend) -> None:
    data, want = model_of(case, cpu, checkpoint=False).export_weights(fp16=True), case.raw("evl0_fp16")
    assert data[:36] == want[:36]
    codes = [np.frombuffer(raw[36:-8], "<u2").astype(np.int64) for raw in (data, want)]
    assert np.abs(codes[0] - codes[1]).max() <= 1


@pytest.mark.parametrize("case", [case for case in load_cases("lm_init") if not plain_seed(case)], ids=str)
def test_seeds_that_are_not_whole_are_refused(case: GoldenCase, cpu: Backend) -> None:
    with pytest.raises(InvalidArgumentError, match="seed"):
        model_of(case, cpu, checkpoint=False)


@pytest.mark.parametrize("case", load_cases("lm_forward"), ids=str)
def test_logits(case: GoldenCase, backend: Backend) -> None:
    findings = asyncio.run(check_forward(backend, case))
    assert findings.compared == len(case["sequences"])
    assert findings.problems == []


def test_a_fresh_model_is_the_golden_checkpoint(cpu: Backend) -> None:
    case = load_case("lm_forward", "lm_forward_A_init")
    assert model_of(case, cpu, checkpoint=False).export_weights() == case.raw("checkpoint")


@pytest.mark.parametrize("case", [case for case in load_cases("lm_grad") if case.has("grads")], ids=str)
def test_losses_and_gradients(case: GoldenCase, backend: Backend) -> None:
    findings = asyncio.run(check_gradients(backend, case))
    assert findings.compared > 2 * len(case["sequences"])
    assert findings.problems == []


def test_sequences_without_a_next_token_cost_nothing(backend: Backend) -> None:
    case = load_case("lm_grad", "lm_grad_short")
    model = model_of(case, backend, checkpoint=False)
    model.zero_grad()
    assert [model.loss_and_backward(tokens) for tokens in case["sequences"]] == [0.0] * len(case["sequences"])
    assert not any(g.data.any() for g in model.gradients())
    model.dispose()


@pytest.mark.parametrize("case", load_cases("generate"), ids=str)
def test_generated_ids(case: GoldenCase, backend: Backend) -> None:
    findings = asyncio.run(check_generation(backend, case))
    assert findings.compared > 2
    assert findings.problems == []


def test_checkpoints_round_trip(backend: Backend) -> None:
    case = load_case("lm_forward", "lm_forward_C_perturbed")
    model = model_of(case, backend)
    assert model.export_weights() == case.raw("checkpoint")
    assert (
        np.concatenate([p.data.ravel() for p in model.parameters()]).tobytes() == body(case.raw("checkpoint")).tobytes()
    )
    model.dispose()
