"""How large a model may be: what its weights, training and adapters take in memory, and what a device's limits allow.

All sizes are in bytes on the device (on NumPy: in Python's memory), counted as the buffers are made; a test holds each
of them to a backend that counts. Not counted: scratch memory of kernels (at most 16 MB of logits) and compiled code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evermind_web.backend.base import Backend
from evermind_web.checks import checked
from evermind_web.errors import InvalidArgumentError
from evermind_web.formats.arch import FIELDS, Arch, evermind_tensor_spec, param_count_of
from evermind_web.formats.crc import TRAILER_BYTES
from evermind_web.formats.evl0 import HEADER_BYTES
from evermind_web.layout import ALIGN, padded
from evermind_web.params import ParamTable, check_arch

F32 = 4
MIB = 1 << 20
DEFAULT_BINDING = 128 * MIB  # what every WebGPU device allows: maxStorageBufferBindingSize
DEFAULT_BUFFER = 256 * MIB  # and maxBufferSize
WASM_MEMORY = 4096 * MIB  # 32-bit WebAssembly: the most that Python's own memory can be
SCRATCH = 32 * MIB  # set aside for kernels: logits of a chunk, and what else they keep
STEP_ROWS = 8 * 64  # tokens of a training step, the default of the page
PURPOSES = ("write", "personalize", "train")


# ── bytes ────────────────────────────────────────────────────────────────────
def weight_bytes(arch: Any) -> int:
    """The flat vector of weights: 4 bytes a parameter, every tensor padded to 256 bytes."""
    return F32 * ParamTable(evermind_tensor_spec(arch)).padded_size


def buffer_bytes(arch: Any) -> int:
    """The largest buffer that weights need: the embedding, or a layer's mixture. A vector may be cut between them."""
    return F32 * max(size for _, size in ParamTable(evermind_tensor_spec(arch)).units())


@checked
def activation_bytes(arch: Any, rows: int, shared_layers: bool = False) -> int:
    """What a forward and backward pass over `rows` tokens keeps; shared_layers: with activation checkpointing.

    Of each layer: three rows of D, two of its norms, routing (4k + E numbers, starts), hidden units of k+1 experts.
    """
    a = Arch.of(arch)
    N, D, H, E, k = rows, a.d_model, a.hidden_dim, a.num_experts, a.top_k
    layer = 3 * N * D + 2 * N + 4 * N * k + N * E + (E + 1) + N * (k + 1) * H
    layers = 1 if shared_layers else a.num_layers
    residual, gradient = (a.num_layers + 1) * N * D, 2 * N * D
    return F32 * (3 * padded(N) + 2 * N + ALIGN + residual + layers * layer + gradient)


@checked
def training_bytes(arch: Any, rows: int = STEP_ROWS, checkpoint: bool = False, keep_best: bool = False) -> int:
    """Weights, gradients and AdamW's two moments (16 bytes a parameter), and activations of a step of `rows` tokens.

    keep_best: early stopping keeps the best weights, 4 bytes a parameter more.
    """
    vectors = 4 + keep_best
    weights = weight_bytes(arch)
    return vectors * weights + weights // ALIGN + activation_bytes(arch, rows, checkpoint)


@checked
def adapter_parameters(arch: Any, rank: int, all_linear: bool = False) -> int:
    """Weights of an adapter on the embedding; all_linear: also on every w1 and w2."""
    a = Arch.of(arch)
    count = rank * (a.vocab_size + a.d_model)
    if all_linear:
        count += a.num_layers * (a.num_experts + 1) * 2 * rank * (a.hidden_dim + a.d_model)
    return count


@checked
def base_bytes(arch: Any, base_quant: str = "none") -> int:
    """The frozen base of `LoraModel.from_checkpoint`: its embedding may be packed, its layers are float32."""
    a = Arch.of(arch)
    V, n = a.vocab_size, a.vocab_size * a.d_model
    layers = weight_bytes(a) - F32 * padded(n)
    packed = {"none": F32 * n, "fp16": 4 * math.ceil(n / 2) + 4}
    packed |= {"int8": 4 * math.ceil(n / 4) + 4, "int8-row": 4 * math.ceil(n / 4) + F32 * V}
    if base_quant not in packed:
        raise InvalidArgumentError(f"base_quant must be one of {', '.join(packed)}, got {base_quant!r}")
    return layers + packed[base_quant]


@checked
def personalize_bytes(
    arch: Any, rank: int = 8, all_linear: bool = False, base_quant: str = "none", rows: int = STEP_ROWS
) -> int:
    """Frozen base, an adapter with gradients and moments (16 bytes a parameter of it), activations.

    all_linear: the mixtures are kept once more, with the adapter merged in, and once more for their gradients.
    """
    a = Arch.of(arch)
    adapter = 4 * F32 * adapter_parameters(a, rank, all_linear)
    blocks = 2 * (weight_bytes(a) - F32 * padded(a.vocab_size * a.d_model)) if all_linear else 0
    return base_bytes(a, base_quant) + adapter + blocks + activation_bytes(a, rows)


def writing_bytes(arch: Any) -> int:
    """Weights, and the state of one text: K−1 rows a layer, and a step's buffers."""
    a = Arch.of(arch)
    state = a.num_layers * max(a.conv_kernel - 1, 1) * a.d_model + 4 * a.d_model + (a.top_k + 1) * a.hidden_dim
    return weight_bytes(a) + F32 * (state + 3 * a.vocab_size)


@checked
def file_bytes(arch: Any, fp16: bool = True) -> int:
    """The EVL0 file: what is downloaded and stored."""
    return HEADER_BYTES + (2 if fp16 else 4) * param_count_of(arch) + TRAILER_BYTES


# ── a suggestion ─────────────────────────────────────────────────────────────
# Shapes to choose from, smallest first: D, L, K, H, E, k. The third is that of the shipped base.
LADDER = (
    (64, 2, 3, 128, 4, 2),
    (128, 4, 4, 256, 4, 2),
    (256, 6, 16, 512, 3, 2),
    (256, 6, 4, 512, 8, 2),
    (384, 8, 4, 768, 8, 2),
    (512, 12, 4, 1024, 8, 2),
    (768, 12, 4, 1536, 8, 2),
    (1024, 16, 4, 2048, 8, 2),
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device allows, in bytes.

    max_binding, max_buffer: `maxStorageBufferBindingSize` and `maxBufferSize` of the adapter (a backend asks for all
    that it has). memory: what a model may take in all; a browser does not tell, so the default is what is safe on an
    ordinary laptop. download: the largest file that people should have to fetch, 0 for no limit.
    """

    max_binding: int = DEFAULT_BINDING
    max_buffer: int = DEFAULT_BUFFER
    memory: int = 1024 * MIB
    download: int = 0

    @classmethod
    @checked
    def of_backend(cls, backend: Backend, memory: int = 0, download: int = 0) -> Limits:
        """Of an open backend. NumPy in a browser has WebAssembly's 4 GiB, of which half is left for others."""
        largest = min(backend.max_buffer_bytes, WASM_MEMORY // 2)
        return cls(largest, largest, memory or cls().memory, download)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """config: keyword arguments of `EvermindLM`. limit: what the next larger shape would have run into."""

    config: dict[str, int]
    parameters: int
    largest_buffer: int
    memory: int
    file: int
    limit: str
    fits: bool = field(default=True)


@checked
def needed_bytes(arch: Any, purpose: str, rows: int = STEP_ROWS) -> int:
    """Memory for "write", "personalize" (an adapter of rank 8 on the embedding) or "train"."""
    if purpose not in PURPOSES:
        raise InvalidArgumentError(f"purpose must be one of {', '.join(PURPOSES)}, got {purpose!r}")
    if purpose == "write":
        return writing_bytes(arch) + SCRATCH
    return (training_bytes(arch, rows) if purpose == "train" else personalize_bytes(arch, rows=rows)) + SCRATCH


@checked
def problem(arch: Any, limits: Limits, purpose: str = "train", rows: int = STEP_ROWS) -> str:
    """Which limit a model of this shape runs into, with both numbers; "" if it fits."""
    buffer, memory, file = buffer_bytes(arch), needed_bytes(arch, purpose, rows), file_bytes(arch)
    for what, needs, has in (
        ("binding", buffer, limits.max_binding),
        ("buffer", buffer, limits.max_buffer),
        ("memory", memory, limits.memory),
        ("download", file, limits.download or file),
    ):
        if needs > has:
            return f"{what}: {needs / MIB:.0f} MiB needed, {has / MIB:.0f} MiB allowed"
    return ""


@checked
def suggest_config(
    limits: Limits | Mapping[str, int] | None = None,
    vocab_size: int = 4096,
    purpose: str = "train",
    rows: int = STEP_ROWS,
) -> Suggestion:
    """The largest shape of `LADDER` that fits. limits: `Limits`, or a mapping with its fields; None: every device's.

    If not even the smallest fits, that one is returned with fits=False and the reason in `limit`.
    """
    known = limits if isinstance(limits, Limits) else Limits(**(limits or {}))
    chosen, reason = None, ""
    for shape in LADDER:
        arch = check_arch((vocab_size, *shape))
        reason = problem(arch, known, purpose, rows)
        if reason:
            break
        chosen = arch
    arch = chosen or check_arch((vocab_size, *LADDER[0]))
    return Suggestion(
        dict(zip(FIELDS, arch, strict=True)), param_count_of(arch), buffer_bytes(arch),
        needed_bytes(arch, purpose, rows), file_bytes(arch), reason, chosen is not None,
    )  # fmt: skip
