"""Models of tests/golden/ on any backend, held against the values of the reference; also runs inside a page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from evermind_web.backend.base import Array, Backend
from evermind_web.model import EvermindLM
from tests.golden_data import GoldenCase, load_cases, number
from tests.parity import MODEL_RTOL, Findings


def keywords(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """camelCase options of the reference as our keyword arguments; a shard becomes (index, count)."""
    out: dict[str, Any] = {}
    for key, value in (options or {}).items():
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", key).lower()
        if key == "shard":
            out[name] = (value["index"], value["count"])
        else:
            out[name] = keywords(value) if isinstance(value, Mapping) else number(value)
    return out


def plain_seed(case: GoldenCase) -> bool:
    """Whether the case's seed is one that this package takes (FORMAT 2 reduces others modulo 2**32)."""
    seed = number(case.config.get("seed", 0))
    return isinstance(seed, int) and 0 <= seed < 2**32


def model_of(case: GoldenCase, backend: Backend, checkpoint: bool = True) -> EvermindLM:
    """The case's model, with its checkpoint unless told otherwise."""
    model = EvermindLM(**keywords(case.config), backend=backend)
    if checkpoint:
        model.load_weights(case.raw("checkpoint"))
    return model


def body(checkpoint: bytes, header: int = 36) -> Array:
    """The float32 values of a file without its header and, if it has one, its CRC trailer."""
    end = len(checkpoint) - 8 if checkpoint[-8:-4] == b"EVCR" else len(checkpoint)
    return np.frombuffer(checkpoint[header:end], "<f4")


async def check_forward(backend: Backend, case: GoldenCase) -> Findings:
    """Logits of every sequence, ≤ 1e-4 of the largest (or of 1)."""
    findings, model, want, start = Findings(), model_of(case, backend), case.file("logits"), 0
    for i, tokens in enumerate(case["sequences"]):
        part = want[start : start + len(tokens)]
        got = await model.forward_async(tokens)
        findings.close(f"{case} sequence {i}", got, part, MODEL_RTOL, max(1.0, float(np.abs(part).max())))
        start += len(tokens)
    if start != len(want):
        findings.problems.append(f"{case}: {start} rows, expected {len(want)}")
    model.dispose()
    return findings


async def check_gradients(backend: Backend, case: GoldenCase) -> Findings:
    """Losses and gradients of every sequence, plain and checkpointed, and two of them accumulated."""
    findings, model = Findings(), model_of(case, backend)
    names = [(spec.name, spec.size) for spec in model.table.specs]
    for i, tokens in enumerate(case["sequences"]):
        for checkpoint in (False, True):
            model.zero_grad()
            loss = await model.loss_and_backward_async(tokens, checkpoint=checkpoint)
            findings.close(f"{case} loss {i}", np.array([loss]), np.array([case["losses"][i]]), 1e-4, 1.0)
            await _compare(findings, f"{case} sequence {i}", model, case.file("grads")[i], names)
    if case.has("grads_accumulated"):
        model.zero_grad()
        for i in (0, 1):
            await model.loss_and_backward_async(case["sequences"][i])
        await _compare(findings, f"{case} accumulated", model, case.file("grads_accumulated"), names)
    model.dispose()
    return findings


async def _compare(findings: Findings, what: str, model: EvermindLM, want: Array, names: list[tuple[str, int]]) -> None:
    largest = float(np.abs(want).max())
    sizes = np.cumsum([size for _, size in names])[:-1]
    parts = np.split(want, sizes)
    gradients = await model.gradients_async()
    for (name, _), got, part in zip(names, gradients, parts, strict=True):
        findings.close(f"{what} gradient of {name}", got.data.ravel(), part, MODEL_RTOL, largest)


async def check_generation(backend: Backend, case: GoldenCase) -> Findings:
    """Token ids of every run that this package allows."""
    findings, model = Findings(), model_of(case, backend)
    for run in case["runs"]:
        options = keywords(run["options"])
        if not run["prompt"] or options.get("temperature", 0) < 0:
            continue  # refused here: see test_generation
        findings.compared += 1
        got = await model.generate_async(run["prompt"], **options)
        if got != run["output"]:
            findings.problems.append(f"{case} {run['label']} {run['options']}: {got}, expected {run['output']}")
    model.dispose()
    return findings


async def check_all(backend: Backend) -> Findings:
    """Everything above."""
    findings = Findings()
    for kind, check in (("lm_forward", check_forward), ("lm_grad", check_gradients), ("generate", check_generation)):
        for case in load_cases(kind):
            if kind != "lm_grad" or case.has("grads"):
                found = await check(backend, case)
                findings.problems += found.problems
                findings.compared += found.compared
    return findings
