"""Random operands of the operations by their names, and edits that make them special; used by `tests.cases`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evermind_web import ops
from evermind_web.backend.base import Array

Operands = dict[str, Array]
Edit = Callable[[Operands], None]


def draw_operand(
    name: str, dtype: str, shape: tuple[int, ...], sizes: dict[str, int], rng: np.random.Generator
) -> Array:
    """What an operand of this name usually holds; other names are normal draws."""
    if name == "pos":
        return positions(shape[0], rng)
    if dtype == "int32":
        if name == "tokens":
            return rng.integers(0, sizes["V"], shape).astype(np.int32)
        if name == "targets":
            ids = rng.integers(0, sizes["V"], shape)
            return np.where(rng.random(shape) < 0.2, ops.IGNORE, ids).astype(np.int32)
        if name in ("cursor", "out", "counts"):
            return np.zeros(shape, np.int32)
        if name == "experts":
            return np.argsort(rng.random((shape[0], sizes["E"])), axis=1)[:, : shape[1]].astype(np.int32)
        if name == "noise":
            return noise_words(seed=5, step=3, salt=1, threshold=int(0.3 * 2**32))
        return rng.integers(-(2**31), 2**31, shape).astype(np.int32)  # draws, codes: any word
    if name in ("weights", "v", "rstd"):
        return (0.1 + rng.random(shape)).astype(np.float32)
    if name == "hyper":
        return hyper()
    if name == "group":
        return rng.integers(-1, 2, shape).astype(np.float32)
    if name == "sampling":
        return sampling()
    if name in ("stats", "bias"):
        return np.zeros(shape, np.float32)
    if name == "probs":
        p = np.exp(rng.standard_normal(shape))
        return (p / p.sum(axis=1, keepdims=True)).astype(np.float32)
    if name == "balance":  # one row in three only fills up the batch
        return (0.1 * (rng.random(shape) > 1 / 3)).astype(np.float32)
    width = sizes.get("D") or sizes.get("I", 1)
    scale = 1 / np.sqrt(width) if name in ("W", "emb", "w") else 1.0
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def positions(rows: int, rng: np.random.Generator) -> Array:
    """pos (N) of a ragged batch: sequences of random lengths, one of a single row among them."""
    pos: list[int] = [0]
    while len(pos) < rows:
        pos.extend(range(int(rng.integers(1, 41))))
    return np.array(pos[:rows], np.int32)


def hyper(**changes: float) -> Array:
    """Step scalars (16) of AdamW's third step."""
    values = {
        "lr": 0.01, "beta1": 0.9, "one_minus_beta1": 1 - 0.9, "beta2": 0.999, "one_minus_beta2": 1 - 0.999, "eps": 1e-8,
        "weight_decay": 0.1, "bias_correction1": 1 - 0.9**3, "bias_correction2": 1 - 0.999**3,
    } | changes  # fmt: skip
    return ops.hyper_vector(values)


def sampling(**changes: float) -> Array:
    """Sampling settings (16): greedy, nothing cut off, no penalty."""
    vector = np.zeros(ops.SAMPLING_SIZE, np.float32)
    for name, value in ({"top_p": 1.0, "repetition_penalty": 1.0} | changes).items():
        vector[ops.SAMPLING[name]] = value
    return vector


def noise_words(**values: int) -> Array:
    """A `noise` row (64)."""
    row = np.zeros(ops.NOISE_SIZE, np.uint32)
    for name, value in values.items():
        row[ops.NOISE[name]] = value
    return row.view(np.int32)


def put(name: str, value: object, at: object = ...) -> Edit:
    """The operand `name` set to `value`, all of it or at an index."""

    def edit(drawn: Operands) -> None:
        drawn[name][at] = value  # type: ignore[index]

    return edit


def sampled_at(value: float, **settings: float) -> Edit:
    """Temperature and settings, and draws in the middle of a choice's share, so that rounding does not decide.

    The shares are those of the first token and without cut-offs: good enough to stay away from borders.
    """

    def edit(drawn: Operands) -> None:
        drawn["sampling"][...] = sampling(temperature=value, **settings)
        if value == 0:
            return
        for b, row in enumerate(drawn["logits"].astype(np.float64) + drawn["bias"]):
            share = np.exp((row - row.max()) / value)
            share /= share.sum()
            likely = np.argsort(-share, kind="stable")[: max(1, np.count_nonzero(share > 1e-3))]
            for s in range(drawn["draws"].shape[1]):
                i = int(likely[s % len(likely)])
                drawn["draws"][b, s] = np.uint32((share[:i].sum() + share[i] / 2) * 2**32).view(np.int32)

    return edit


def finite_halves(drawn: Operands) -> None:
    """Two fp16 codes a word, exponents below infinity."""
    drawn["codes"] &= np.int32(0x3BFF3BFF)


def small_halves(drawn: Operands) -> None:
    """Packed fp16 values below 1/2, of both signs."""
    drawn["codes"] &= np.int32(0x33FF33FF)
    drawn["codes"] ^= np.int32(0x00008000)


def small_scales(drawn: Operands) -> None:
    """Scales that make packed int8 values small."""
    drawn["scales"] = (0.002 * np.abs(drawn["scales"]) + 0.0005).astype(np.float32)


def zero_router(drawn: Operands) -> None:
    """Equal scores for all experts."""
    drawn["W"][: drawn["probs"].shape[1] * drawn["m"].shape[1]] = 0


def equal_router(experts: int) -> Edit:
    """Equal rows of the router for so many experts."""

    def edit(drawn: Operands) -> None:
        width = drawn["x"].shape[1]
        drawn["W"][: experts * width] = np.tile(drawn["W"][:width], experts)

    return edit


def router_noise(drawn: Operands) -> None:
    """Noise on the scores of the router."""
    drawn["noise"][ops.NOISE["amplitude"]] = np.float32(0.75).view(np.int32)
