"""Plans: how one operation of `ops` becomes dispatches of kernels, for given shapes.

A plan is made once per (operation, shapes, scalars) and cached on the device, so everything in it is constant:
the uniform words hold shapes, never values that change from step to step (those come in buffers).
One module per family of operations; each function below `@plans("rmsnorm_fwd")` is called with the shapes of the
operation's inputs and outputs, in the order of `ops.OPS`, and its scalars.
"""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from evermind_web.errors import BackendError

Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]
Grid = tuple[int, int, int]

MAX_GRID: Final = 65_535  # workgroups in one dimension, WebGPU's guaranteed limit

# Where each operation is planned.
FAMILIES: Final = {
    "embed": ("embed_fwd", "embed_bwd"),
    "norm": ("rmsnorm_fwd", "rmsnorm_bwd"),
    "conv": ("conv_fwd", "conv_norm_fwd", "conv_bwd", "conv_step"),
    "moe": ("moe_fwd", "moe_bwd"),
    "step": ("layer_step",),
    "head": ("head_logits", "head_xent_fwd", "head_xent_bwd"),
    "lora": (
        *("lora_fwd", "lora_bwd", "lora_down", "lora_up", "lora_outer", "lora_dropout"),
        *("lora_head_logits", "lora_head_xent_fwd", "lora_head_xent_bwd"),
        *("packed_embed_fwd", "packed_head_logits", "packed_head_xent_fwd", "packed_head_xent_bwd"),
        *("rmsnorm_bwd_inputs", "conv_bwd_inputs", "moe_bwd_inputs"),
    ),
    "dequant": ("dequant",),
    "optim": ("grad_stats", "adamw"),
    "sample": ("sample",),
    "noise": ("dropout",),
    "balance": ("balance_bwd",),
    "limbic": ("limbic_fwd", "limbic_bwd"),
}


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One kernel run. `operands` are indices into the operation's inputs + outputs, or `scratch(i)`."""

    kernel: str
    operands: tuple[int, ...]  # in binding order, without the uniform
    grid: Grid
    uniform: tuple[int, ...] = ()  # u32 words of the last binding; floats as `f32_bits`
    constants: Mapping[str, float] = field(default_factory=dict)  # `override` values: a pipeline each


@dataclass(frozen=True, slots=True)
class Plan:
    """The dispatches of an operation in order, and the bytes of each scratch buffer that they use.

    Scratch buffers are shared by all plans: their contents are arbitrary at the start of a plan and lost at its end.
    """

    dispatches: tuple[Dispatch, ...]
    scratch: tuple[int, ...] = ()

    def to_json(self) -> str:
        """The text that `Device.define_plan` takes."""
        return json.dumps(asdict(self))


Planner = Callable[[Shapes, tuple[int, ...]], Plan]
PLANS: dict[str, Planner] = {}


def plans(op: str) -> Callable[[Planner], Planner]:
    """Decorator: this function plans the operation `op`."""

    def register(planner: Planner) -> Planner:
        PLANS[op] = planner
        return planner

    return register


def plan_for(op: str, shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """The plan of `op`. Raises BackendError if there is none."""
    if op not in PLANS:
        family = next((name for name, ops in FAMILIES.items() if op in ops), None)
        if family is None:
            raise BackendError(f"no GPU kernel for operation {op!r}; known: {sorted(sum(FAMILIES.values(), ()))}")
        importlib.import_module(f"{__name__}.{family}")
    return PLANS[op](shapes, scalars)


def scratch(index: int) -> int:
    """Operand that stands for scratch buffer `index` of the plan."""
    return -1 - index


def f32_bits(value: float) -> int:
    """The bits of `value` as float32, for a uniform word that a kernel reads as f32."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def ceil_div(count: int, size: int) -> int:
    """`count / size`, rounded up."""
    return -(-count // size)


def grid_of(groups: int) -> Grid:
    """A grid of at least `groups` workgroups, split over two dimensions where one is too short.

    The kernel's group number is `id.x + id.y * num_workgroups.x`; it must check its bounds.
    """
    rows = max(1, ceil_div(groups, MAX_GRID))
    return (ceil_div(groups, rows), rows, 1)


PART_ROWS: Final = 256  # rows that one workgroup of a long sum takes
MAX_PARTS: Final = 32


def in_parts(
    rows: int,
    width: int,
    target: int,
    summing: Callable[[int, int, int], Dispatch],
    before: tuple[Dispatch, ...] = (),
    scratch_before: tuple[int, ...] = (),
    part_rows: int = PART_ROWS,
) -> Plan:
    """The plan of `operand target (width) += sum over rows`, in a fixed order whatever the number of rows.

    `summing(out, parts, size)` is the dispatch that sums each part of `size` rows. A single part adds to the target
    itself; several are left in scratch memory, behind the `scratch_before` of `before`, and `sum_parts` adds them.
    """
    size = part_rows * max(1, ceil_div(rows, part_rows * MAX_PARTS))
    parts = max(1, ceil_div(rows, size))
    if parts == 1:
        return Plan((*before, summing(target, 1, size)), scratch_before)
    left = scratch(len(scratch_before))
    total = Dispatch("sum_parts", (left, target), grid_of(ceil_div(width, 64)), (width, parts))
    return Plan((*before, summing(left, parts, size), total), (*scratch_before, 4 * width * parts))
