"""The seeded stream: the reference's numbers bit for bit, and what a seed may be (SA4)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evermind_web import rng
from evermind_web.errors import InvalidArgumentError
from evermind_web.rng import SeededRng
from tests.golden_data import GoldenCase, load_cases, number


def plain(case: GoldenCase) -> bool:
    seed = number(case.config["seed"])
    return isinstance(seed, int) and 0 <= seed < 2**32


CASES = load_cases("rng")
STREAMS = [c for c in CASES if c.has("states") and plain(c)]
GAUSSIANS = [c for c in CASES if c.has("gauss") and plain(c)]


@pytest.mark.parametrize("case", STREAMS, ids=str)
def test_uniform_stream_equals_reference(case: GoldenCase) -> None:
    stream = SeededRng(case.config["seed"])
    assert [stream.next() for _ in case.file("states")] == (case.file("states") / 2.0**32).tolist()


@pytest.mark.parametrize("case", GAUSSIANS, ids=str)
def test_gaussian_equals_reference_and_continues_the_stream(case: GoldenCase) -> None:
    stream, std = SeededRng(case.config["seed"]), case.config["std"]
    assert stream.gaussian(case.config["n"], std).tobytes() == case.file("gauss").tobytes()
    assert stream.gaussian(1, std)[0] == np.float32(case["next_randn_std"])
    assert stream.gaussian(1, 1.0)[0] == np.float32(case["next_randn_1"])


def test_golden_cases_are_there() -> None:
    assert len(STREAMS) >= 5
    assert len(GAUSSIANS) >= 4


def test_vectorised_stream_equals_single_steps_across_chunks() -> None:
    n = rng.CHUNK + 3  # one more sample than a chunk, and then some
    vector, single = SeededRng(7), SeededRng(7)
    values = vector.gaussian(n, 0.5)
    for i in range(n):
        u1, u2 = max(single.next(), 1e-12), single.next()
        if i % 997 == 0 or i >= rng.CHUNK - 1:
            assert values[i] == np.float32(0.5 * math.sqrt(-2.0 * math.log(u1)) * math.cos(2 * math.pi * u2))
    assert vector.next() == single.next()


def test_values_next_to_a_rounding_border_come_from_the_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a product is within ulps of the middle between two float32, an inexact np.log must not decide."""
    exact = np.log
    monkeypatch.setattr(np, "log", lambda x: exact(x) * (1 - 2.0**-52))
    uniforms = np.array([math.exp(-0.5), 0.0])  # std·sqrt(1)·cos(0): the product is (nearly) std itself
    for nudge in range(-3, 4):
        std = 1.0 + 2.0**-24 + nudge * 2.0**-52
        want = np.float32(std * math.sqrt(-2.0 * math.log(uniforms[0])) * math.cos(0.0))
        assert rng.box_muller(uniforms, std)[0] == want


def test_no_samples() -> None:
    stream = SeededRng(3)
    assert stream.gaussian(0, 1.0).shape == (0,)
    assert stream.next() == SeededRng(3).next()
    with pytest.raises(InvalidArgumentError, match="n must be at least 0"):
        stream.gaussian(-1, 1.0)


def test_sa4_seeds_are_whole_or_refused() -> None:
    for seed in (42, 1715852364, np.uint32(42), 2**32 - 1):
        first, again = SeededRng(seed), SeededRng(seed)
        assert [first.next() for _ in range(5)] == [again.next() for _ in range(5)]
    for seed in (2**32 + 42, 2**53 + 1, -1):
        with pytest.raises(InvalidArgumentError, match=r"0…4294967295, got"):
            SeededRng(seed)
    for odd in (3.9, 1.0, "1", None, math.nan):
        with pytest.raises(InvalidArgumentError, match="must be an integer"):
            SeededRng(odd)  # type: ignore[arg-type]


def test_seed_zero_is_the_stream_of_one() -> None:
    assert SeededRng(0).next() == SeededRng(1).next()
