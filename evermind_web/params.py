"""The parameter table: one list that fixes names, shapes, places, initial values and what is decayed.

Canonical order (the order of files): `token_embedding.weight`, then per layer conv, both norms, router, shared
expert, routed experts. In files the tensors are packed; in memory each starts at a 256-byte border
(`evermind_web.layout`), and so do gradients and AdamW's moments, which are vectors of the same layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from evermind_web.errors import InvalidArgumentError
from evermind_web.formats.arch import Arch, evermind_tensor_spec
from evermind_web.layout import ALIGN, padded
from evermind_web.rng import SeededRng, check_seed

F32 = NDArray[np.float32]
EMBEDDING_STD = 0.02


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
    """All tensors of a model of one shape, in canonical order."""

    def __init__(self, arch: Arch) -> None:
        self.arch = check_arch(arch)
        self.specs: list[ParamSpec] = []
        offset = at = 0
        for tensor in evermind_tensor_spec(arch):
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

    def slices(self, vector: F32) -> Iterator[tuple[ParamSpec, F32]]:
        """Each tensor as a view, in its shape, of a padded vector (P)."""
        for spec in self.specs:
            yield spec, vector[spec.padded_offset : spec.padded_offset + spec.size].reshape(spec.shape)

    def pack(self, vector: F32) -> F32:
        """The packed vector (size) of a padded one (padded_size): what files hold."""
        return np.concatenate([part.ravel() for _, part in self.slices(vector)], dtype=np.float32)

    def pad(self, packed: F32) -> F32:
        """The padded vector of a packed one; the gaps are 0."""
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

    def initial(self, seed: int) -> F32:
        """Fresh padded weights, bit for bit those of the reference (FORMAT 5 and 6)."""
        vector = np.zeros(self.padded_size, np.float32)
        first = check_seed(seed) or 1
        rng = SeededRng(first)
        for spec, part in self.slices(vector):
            layer = spec.name.split(".")
            if spec.name == "token_embedding.weight":
                part[...] = rng.gaussian(spec.size, EMBEDDING_STD).reshape(spec.shape)
            elif layer[2] == "conv":
                part[:, 0] = 1
            elif layer[2].startswith("norm"):
                part[...] = 1
            elif layer[3] == "router":  # each mixture has a stream of its own, and the router draws first
                rng = SeededRng((first + 1 + int(layer[1])) % 2**32)
                part[...] = rng.gaussian(spec.size, 0.02).reshape(spec.shape)
            elif layer[-1] in ("w1", "w2"):
                std = float(np.sqrt(2 / self.arch.d_model)) if layer[-1] == "w1" else 0.02
                part[...] = rng.gaussian(spec.size, std).reshape(spec.shape)
        return vector


def check_arch(arch: Arch) -> Arch:
    """The shape itself if a model can have it; InvalidArgumentError naming the field otherwise."""
    for field, value in zip(arch._fields, arch, strict=True):
        if field == "num_layers":
            if not 0 <= value < 2**32:
                raise InvalidArgumentError(f"num_layers must be 0 or more, got {value}")
        elif not 0 < value < 2**32:
            raise InvalidArgumentError(f"{field} must be at least 1, got {value}")
    if arch.top_k > arch.num_experts:
        raise InvalidArgumentError(f"top_k must be in 1…num_experts ({arch.num_experts}), got {arch.top_k}")
    return arch
