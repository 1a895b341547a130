"""Plans of the output head. The loss works on chunks of rows, so that logits never take more than a bounded scratch."""

from __future__ import annotations

from collections.abc import Iterator

from evermind_web.backend.kernels import Dispatch, Plan, Shapes, ceil_div, grid_of, plans, scratch
from evermind_web.backend.kernels.tiles import lanes, product_lanes, row_constants, row_grid, tile_constants, tile_width

_LOGITS = 1 << 23  # logits held at once, in elements
_DX_GROUPS = 256  # workgroups wanted for dx, whose sums over the vocabulary are cut up to get them
_DX_DEPTH = 128  # shortest piece of such a sum
_FEW_ROWS = 16  # as many are multiplied without tiles, most of whose rows would be idle
_FLOAT = 4  # bytes


def _chunks(n: int, v: int) -> Iterator[tuple[int, int]]:
    """First row and number of rows of each chunk: whole tiles of 64 rows where they fit."""
    rows = max(1, _LOGITS // v)
    rows = rows // 64 * 64 or rows
    for first in range(0, n, rows):
        yield first, min(rows, n - first)


def _logits(operands: tuple[int, ...], first: int, rows: int, d: int, v: int) -> Dispatch:
    width = tile_width(rows, v)
    grid = (ceil_div(v, 4 * width), ceil_div(rows, 4 * width), 1)
    return Dispatch("head_logits", operands, grid, (first, rows, d, v), tile_constants(width))


def _rows(operands: tuple[int, ...], first: int, rows: int, v: int, gradient: bool) -> Dispatch:
    threads = lanes(v)
    constants = {**row_constants(threads), "GRADIENT": int(gradient)}
    return Dispatch("head_xent_rows", operands, row_grid(rows, threads), (first, rows, v), constants)


@plans("head_logits")
def head_logits(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """x 0, emb 1 -> logits 2."""
    (n, d), (v, _) = shapes[:2]
    if n > _FEW_ROWS or d % 4:
        return Plan((_logits((0, 1, 2), 0, n, d, v),))
    threads = product_lanes(d // 2)
    columns, rows, _ = grid_of(ceil_div(v, 64 // threads))
    grid = (columns, rows, ceil_div(n, 4))
    return Plan((Dispatch("head_logits_rows", (0, 1, 2), grid, (n, d, v), {"LANES": threads}),))


@plans("head_xent_fwd")
def head_xent_fwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """x 0, emb 1, targets 2, weights 3 -> loss 4."""
    x, emb, targets, weights, loss = range(5)
    (n, d), (v, _) = shapes[:2]
    logits, row_loss = scratch(0), scratch(1)
    work = []
    for first, rows in _chunks(n, v):
        work.append(_logits((x, emb, logits), first, rows, d, v))
        # without a gradient hyper is not read: the weights stand in for it
        work.append(_rows((logits, targets, weights, weights, row_loss), first, rows, v, gradient=False))
    work.append(Dispatch("head_xent_loss", (row_loss, loss), (1, 1, 1), (n,)))
    return Plan(tuple(work), (_largest(n, v) * v * _FLOAT, n * _FLOAT))


@plans("head_xent_bwd")
def head_xent_bwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """x 0, emb 1, targets 2, weights 3, hyper 4 -> loss 5, dx 6, demb 7."""
    x, emb, targets, weights, hyper, loss, dx, demb = range(8)
    (n, d), (v, _) = shapes[:2]
    logits, row_loss, partial = scratch(0), scratch(1), scratch(2)
    work = []
    partial_size = 1
    for first, rows in _chunks(n, v):
        width = tile_width(v, d)
        side = 4 * width
        x_tiles = ceil_div(rows, side) * ceil_div(d, side)
        v_tiles = ceil_div(v, side) * ceil_div(d, side)
        parts = max(1, min(ceil_div(_DX_GROUPS, x_tiles), v // _DX_DEPTH))
        depth = ceil_div(v, parts)
        cut = parts > 1
        loss_rows = n if first + rows == n else 0
        work += [
            _logits((x, emb, logits), first, rows, d, v),
            _rows((logits, targets, weights, hyper, row_loss), first, rows, v, gradient=True),
            Dispatch(
                "head_xent_grads",
                (logits, x, emb, row_loss, loss, partial if cut else dx, demb),
                grid_of(parts * x_tiles + v_tiles + (1 if loss_rows else 0)),
                (first, rows, d, v, parts, depth, 0 if cut else first, loss_rows),
                tile_constants(width),
            ),
        ]
        if cut:
            partial_size = max(partial_size, parts * rows * d)
            grid = grid_of(ceil_div(rows * d, 256))
            work.append(Dispatch("head_xent_dx", (partial, dx), grid, (first * d, rows * d, parts)))
    return Plan(tuple(work), (_largest(n, v) * v * _FLOAT, n * _FLOAT, partial_size * _FLOAT))


def _largest(n: int, v: int) -> int:
    return max((rows for _, rows in _chunks(n, v)), default=1)
