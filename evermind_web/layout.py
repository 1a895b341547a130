"""Where tensors lie inside a flat vector in memory. Files are packed; memory is padded.

In memory every tensor starts at a multiple of 256 bytes, the offset alignment that WebGPU guarantees for
bindings, so that each tensor can be bound on its own. NumPy uses the same layout: one layout, one set of offsets.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

ALIGN = 64  # float32 elements = 256 bytes, WebGPU's minStorageBufferOffsetAlignment


def padded(count: int) -> int:
    """`count` elements rounded up to a whole number of 256-byte blocks."""
    return -(-count // ALIGN) * ALIGN


@dataclass(frozen=True, slots=True)
class MoeLayout:
    """Padded element offsets inside the parameter block of one mixture of experts.

    The block is `wr (E,D)` and then E+1 experts of equal size, the shared one first, each
    `w1 (H,D), b1 (H), w2 (D,H), b2 (D)`. Expert `i` (0 = shared, 1.. = routed) starts at `experts + i * stride`.
    """

    experts: int
    stride: int
    b1: int  # offsets within one expert; w1 is at 0
    w2: int
    b2: int
    size: int


def moe_layout(d_model: int, hidden_dim: int, num_experts: int) -> MoeLayout:
    """The layout of one block of D, H, E."""
    matrix = padded(d_model * hidden_dim)
    b1 = matrix
    w2 = b1 + padded(hidden_dim)
    b2 = w2 + matrix
    stride = b2 + padded(d_model)
    experts = padded(num_experts * d_model)
    return MoeLayout(experts, stride, b1, w2, b2, experts + (num_experts + 1) * stride)


@dataclass(frozen=True, slots=True)
class LimbicLayout:
    """Padded element offsets of the limbic model's tensors: win (H,I) at 0, ws (H,A), a_logit (H), heads."""

    ws: int
    a_logit: int
    wout_state: int  # (A,H)
    bout_state: int  # (A)
    wout_reward: int  # (H)
    bout_reward: int  # (1)
    size: int


def limbic_layout(inputs: int, hidden: int, states: int) -> LimbicLayout:
    """The layout for I inputs, H hidden units, A state dimensions."""
    sizes = (hidden * inputs, hidden * states, hidden, states * hidden, states, hidden, 1)
    ends = list(accumulate(padded(size) for size in sizes))
    return LimbicLayout(*ends)
