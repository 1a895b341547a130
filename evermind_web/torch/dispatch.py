"""Sparse dispatch: the rows of each expert gathered into tiles of equal height, so that one batched matmul does all.

Every tile belongs to one expert. The number of tiles depends on the shapes only (each expert may leave one tile
partly empty), so nothing is read back from the device, `torch.compile` sees fixed shapes, and what is computed is the
chosen pairs of row and expert plus at most E tiles of padding; an idle expert costs nothing else. All index
arithmetic is exact and no gradient is summed by atomics, so equal inputs give equal bits.

Letters as in `evermind_web.ops`; G tiles of `tile` rows each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

SMALLEST_TILE, LARGEST_TILE = 8, 512


class Plan(NamedTuple):
    """Where each chosen pair goes."""

    source: Tensor  # (G*tile) int64: the row that fills each place; places of no pair repeat row 0
    slot: Tensor  # (N*k) int64: the place of each pair (row n's i-th expert is pair n*k+i)
    expert: Tensor  # (G) int64: the expert of each tile
    members: Tensor  # (E, G) bool: the same as a table
    counts: Tensor  # (E) int64: pairs of each expert


def tile_rows(pairs: int, num_experts: int) -> int:
    """Height of a tile: a power of two that leaves at most about a sixteenth of the places empty."""
    tile = SMALLEST_TILE
    while tile < LARGEST_TILE and tile * 32 * num_experts <= pairs:
        tile *= 2
    return tile


def make_plan(experts: Tensor, num_experts: int) -> Plan:
    """The plan for chosen experts (N, k) int64."""
    rows, top_k = experts.shape
    pairs = rows * top_k
    tile = tile_rows(pairs, num_experts)
    num_tiles = -(-pairs // tile) + num_experts
    flat = experts.reshape(-1)
    names = torch.arange(num_experts, device=flat.device)
    chosen = flat.unsqueeze(0) == names.unsqueeze(1)  # (E, N*k)
    rank = chosen.cumsum(1) - 1  # place of a pair among those of its expert
    counts = chosen.sum(1)
    last_tile = ((counts + (tile - 1)) // tile).cumsum(0)  # (E): one behind the last tile of each expert
    first_tile = torch.cat([last_tile.new_zeros(1), last_tile[:-1]])
    slot = torch.where(chosen, rank + (first_tile * tile).unsqueeze(1), 0).sum(0)
    number = torch.arange(num_tiles, device=flat.device)
    behind = (number.unsqueeze(1) >= last_tile.unsqueeze(0)).sum(1)
    expert = torch.where(behind < num_experts, behind, flat[0])  # surplus tiles repeat an expert that is in use
    pair = torch.arange(pairs, device=flat.device)
    source = torch.zeros(num_tiles * tile, dtype=torch.int64, device=flat.device)
    source = source.scatter(0, slot, pair // top_k)
    return Plan(source, slot, expert, expert.unsqueeze(0) == names.unsqueeze(1), counts)


class _Gather(torch.autograd.Function):
    """m (N, D) → (G*tile, D). Backward sums the k copies of each row in a fixed order."""

    @staticmethod
    def forward(ctx: Any, m: Tensor, source: Tensor, slot: Tensor) -> Tensor:
        ctx.save_for_backward(slot)
        ctx.rows = m.shape[0]
        return m[source]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (slot,) = ctx.saved_tensors
        return grad[slot].unflatten(0, (ctx.rows, -1)).sum(1), None, None


class _Collect(torch.autograd.Function):
    """y (G*tile, D) → (N*k, D): the pairs back in their own order."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, slot: Tensor) -> Tensor:
        ctx.save_for_backward(slot)
        ctx.places = y.shape[0]
        return y[slot]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (slot,) = ctx.saved_tensors
        places = grad.new_zeros(ctx.places, grad.shape[1])
        return places.index_copy(0, slot, grad), None


class _PerTile(torch.autograd.Function):
    """A parameter of all experts (E, …) → that of each tile's expert (G, …). Backward adds up the tiles."""

    @staticmethod
    def forward(ctx: Any, stacked: Tensor, expert: Tensor, members: Tensor) -> Tensor:
        ctx.save_for_backward(members)
        return stacked[expert]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (members,) = ctx.saved_tensors
        total = members.to(grad.dtype) @ grad.flatten(1)
        return total.unflatten(1, grad.shape[1:]), None, None


def gather_rows(m: Tensor, plan: Plan) -> Tensor:
    """m (N, D) → (G, tile, D)."""
    rows: Tensor = _Gather.apply(m, plan.source, plan.slot)
    return rows.unflatten(0, (plan.expert.shape[0], -1))


def collect_rows(y: Tensor, plan: Plan, rows: int) -> Tensor:
    """y (G, tile, D) → (N, k, D)."""
    pairs: Tensor = _Collect.apply(y.flatten(0, 1), plan.slot)
    return pairs.unflatten(0, (rows, -1))


def per_tile(stacked: Tensor, plan: Plan) -> Tensor:
    """(E, …) → (G, …)."""
    out: Tensor = _PerTile.apply(stacked, plan.expert, plan.members)
    return out
