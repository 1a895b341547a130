"""The parameter table: one list that fixes names, shapes, places, initial values and what is decayed.

Canonical order (the order of files): `token_embedding.weight`, then per layer conv, both norms, router, shared
expert, routed experts. In files the tensors are packed; in memory each starts at a 256-byte border
(`evermind_web.layout`), and so do gradients and AdamW's moments, which are vectors of the same layout.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evermind_web.checks import check_size, zeros
from evermind_web.checks import whole_number as whole_number
from evermind_web.errors import InvalidArgumentError
from evermind_web.formats.arch import FIELDS, Arch, TensorSpec, param_count_of
from evermind_web.layout import ALIGN, padded
from evermind_web.rng import SeededRng, check_seed

F32 = NDArray[np.float32]
MAX_LAYERS = 4096
EMBEDDING_STD = ROUTER_STD = OUTPUT_STD = 0.02


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """One tensor: name and shape (of files), first element in the packed and in the padded vector, weight decay."""

    name: str
    shape: tuple[int, ...]
    size: int
    offset: int
    padded_offset: int
    decays: bool


class ParamTable:
    """Tensors in canonical order and where they lie: the one list that everything else is generated from."""

    def __init__(self, tensors: Iterable[TensorSpec]) -> None:
        self.specs: list[ParamSpec] = []
        offset = at = 0
        for tensor in tensors:
            decays = len(tensor.shape) > 1  # gains and biases are left alone: decay would only pull them off
            self.specs.append(ParamSpec(tensor.name, tensor.shape, tensor.size, offset, at, decays))
            offset += tensor.size
            at += padded(tensor.size)
        self.size = offset
        self.padded_size = at

    @cached_property
    def by_name(self) -> dict[str, ParamSpec]:
        """The specs by tensor name."""
        return {spec.name: spec for spec in self.specs}

    def units(self) -> Iterator[tuple[str, int]]:
        """What the operations of a language model bind as one, in order: (name, padded elements) of a tensor, or of all
        tensors of a layer's mixture."""
        for name, specs in groupby(self.specs, lambda spec: re.sub(r"\.moe\..*", ".moe", spec.name)):
            yield name, sum(padded(spec.size) for spec in specs)

    def slices(self, vector: F32) -> Iterator[tuple[ParamSpec, F32]]:
        """Each tensor as a view, in its shape, of a padded vector (P)."""
        for spec in self.specs:
            yield spec, vector[spec.padded_offset : spec.padded_offset + spec.size].reshape(spec.shape)

    def pack(self, vector: F32) -> F32:
        """The packed vector (size) of a padded one (padded_size), as in files; the same memory if there are no gaps."""
        if self.size == self.padded_size:
            return vector.astype(np.float32, copy=False)
        return np.concatenate([part.ravel() for _, part in self.slices(vector)], dtype=np.float32)

    def pad(self, packed: F32) -> F32:
        """The padded vector of a packed one; the gaps are 0. Without gaps it is the same memory."""
        if self.size == self.padded_size:
            return packed
        vector = np.zeros(self.padded_size, np.float32)
        for spec, part in self.slices(vector):
            part[...] = packed[spec.offset : spec.offset + spec.size].reshape(spec.shape)
        return vector

    def decay_groups(self, owned: tuple[int, int] = (0, 1), names: frozenset[str] | None = None) -> F32:
        """One value per 64 elements for `ops.adamw`: 1 decayed, 0 not decayed, -1 left alone.

        owned (index, count): only tensors number p with p mod count = index are stepped. names: the tensors to decay
        (default: every matrix).
        """
        index, count = owned
        groups = np.empty(self.padded_size // ALIGN, np.float32)
        for number, spec in enumerate(self.specs):
            first = spec.padded_offset // ALIGN
            decays = spec.decays if names is None else spec.name in names
            value = float(decays) if number % count == index else -1.0
            groups[first : first + padded(spec.size) // ALIGN] = value
        return groups


def initial_weights(table: ParamTable, d_model: int, seed: int) -> F32:
    """Fresh padded weights of an EvermindLM, bit for bit those of the reference (FORMAT 5 and 6)."""
    vector = zeros("a model", table.padded_size)
    first = check_seed(seed) or 1
    rng = SeededRng(first)
    for spec, part in table.slices(vector):
        layer = spec.name.split(".")
        if spec.name == "token_embedding.weight":
            part[...] = rng.gaussian(spec.size, EMBEDDING_STD).reshape(spec.shape)
        elif layer[2] == "conv":
            part[:, 0] = 1
        elif layer[2].startswith("norm"):
            part[...] = 1
        elif layer[3] == "router":  # each mixture has a stream of its own, and its router draws first
            rng = SeededRng((first + 1 + int(layer[1])) % 2**32)
            init_moe_tensor(rng, "wr", part, d_model)
        else:
            init_moe_tensor(rng, layer[-1], part, d_model)
    return vector


def init_moe_tensor(rng: SeededRng, kind: str, part: F32, d_model: int) -> None:
    """Fill wr, w1 or w2 (=) with the next normal draws of the mixture's stream; biases stay 0 and draw nothing."""
    std = {"wr": ROUTER_STD, "w1": math.sqrt(2 / d_model), "w2": OUTPUT_STD}.get(kind)
    if std is not None:
        part[...] = rng.gaussian(part.size, std).reshape(part.shape)


def check_arch(sizes: Iterable[Any]) -> Arch:
    """The shape of V, D, L, K, H, E, k if a model can have it; InvalidArgumentError naming the field otherwise.

    H may be None: 2 D.
    """
    given = dict(zip(FIELDS, sizes, strict=True))
    if given["hidden_dim"] is None:
        given["hidden_dim"] = 2 * whole_number("d_model", given["d_model"])
    arch = Arch(**{name: whole_number(name, size, int(name != "num_layers")) for name, size in given.items()})
    check_top_k(arch.top_k, arch.num_experts)
    if arch.num_layers > MAX_LAYERS:
        raise InvalidArgumentError(
            f"a model of {arch.num_layers} layers is more than any device here holds, {MAX_LAYERS}; choose fewer"
        )
    check_size("a model", param_count_of(arch))
    return arch


def check_top_k(top_k: int, num_experts: int) -> None:
    """InvalidArgumentError unless 1 ≤ top_k ≤ num_experts."""
    if not 1 <= top_k <= num_experts:
        raise InvalidArgumentError(f"top_k must be in 1…num_experts ({num_experts}), got {top_k}")
