"""The seven numbers that fix a model's shape, and the names and shapes of its tensors in files.

Order of the tensors is the order of the flat parameter vector. Names are those of safetensors, GGUF and ONNX files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

from evermind_web.errors import InvalidArgumentError

FIELDS = ("vocab_size", "d_model", "num_layers", "conv_kernel", "hidden_dim", "num_experts", "top_k")


class Arch(NamedTuple):
    """(V, D, L, K, H, E, k), in the order of the EVL0 header; the same field names as EvermindLM.config."""

    vocab_size: int
    d_model: int
    num_layers: int
    conv_kernel: int
    hidden_dim: int
    num_experts: int
    top_k: int

    @classmethod
    def of(cls, config: Any) -> Arch:
        """From seven integers in that order, or from any object with these fields. InvalidArgumentError for others."""
        try:
            words = config if isinstance(config, (tuple, list)) else [getattr(config, field) for field in FIELDS]
            return cls(*(int(word) for word in words))
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"a shape has {', '.join(FIELDS)}, got {config!r}: {error}") from None


class TensorSpec(NamedTuple):
    """Name and shape of one tensor."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def param_count_of(arch: Any) -> int:
    """Number of parameters, without building the table: V·D + L·(D·K + 2·D + E·D + (E+1)·(2·H·D + H + D))."""
    v, d, layers, k, h, e, _ = Arch.of(arch)
    return v * d + layers * (d * k + 2 * d + e * d + (e + 1) * (2 * h * d + h + d))


def evermind_tensor_spec(arch: Any) -> list[TensorSpec]:
    """Every tensor of a model of this shape, in parameter order."""
    return list(iter_tensor_spec(arch))


def iter_tensor_spec(arch: Any) -> Iterator[TensorSpec]:
    """As `evermind_tensor_spec`, each made when it is asked for."""
    a = Arch.of(arch)
    yield TensorSpec("token_embedding.weight", (a.vocab_size, a.d_model))
    for layer in range(a.num_layers):
        yield from _layer_spec(a, f"layers.{layer}")


def _layer_spec(a: Arch, prefix: str) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{prefix}.conv.weight", (a.d_model, a.conv_kernel))
    yield TensorSpec(f"{prefix}.norm_conv.weight", (a.d_model,))
    yield TensorSpec(f"{prefix}.norm_moe.weight", (a.d_model,))
    yield TensorSpec(f"{prefix}.moe.router.weight", (a.num_experts, a.d_model))
    for expert in chain(("shared",), (f"experts.{e}" for e in range(a.num_experts))):
        yield TensorSpec(f"{prefix}.moe.{expert}.w1", (a.hidden_dim, a.d_model))
        yield TensorSpec(f"{prefix}.moe.{expert}.b1", (a.hidden_dim,))
        yield TensorSpec(f"{prefix}.moe.{expert}.w2", (a.d_model, a.hidden_dim))
        yield TensorSpec(f"{prefix}.moe.{expert}.b2", (a.d_model,))
