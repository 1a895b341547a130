"""Plans of low-rank adapters: merged matrices, the low-rank path of the tied embedding, frozen parameters."""

from __future__ import annotations

from evermind_web.backend.kernels import (
    PART_ROWS,
    Dispatch,
    Plan,
    Shapes,
    ceil_div,
    conv,
    grid_of,
    head,
    in_parts,
    moe,
    norm,
    plans,
    scratch,
)
from evermind_web.backend.kernels.tiles import tile_constants, tile_width

_FLOAT = 4  # bytes
_Inputs = tuple[tuple[Dispatch, ...], int]


@plans("lora_fwd")
def lora_fwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """base, b, a, alpha -> merged."""
    v, d = shapes[0]
    r = shapes[1][1]
    return Plan((Dispatch("lora_fwd", (0, 1, 2, 3, 4), grid_of(ceil_div(v * d, 256)), (v, d, r)),))


def _down(operands: tuple[int, ...], n: int, d: int, r: int, drop: bool, add: bool) -> Dispatch:
    width = tile_width(n, r)
    grid = grid_of(ceil_div(n, 4 * width) * ceil_div(r, 4 * width))
    constants = tile_constants(width) | {"DROP": int(drop), "ADD": int(add)}
    return Dispatch("lora_down", operands, grid, (n, d, r), constants)


def _outer(ins: tuple[int, ...], out: int, n: int, d: int, r: int, drop: bool, before: tuple[Dispatch, ...]) -> Plan:
    parts = ceil_div(n, PART_ROWS)
    width = tile_width(r, d, parts)
    tiles = ceil_div(r, 4 * width) * ceil_div(d, 4 * width)
    constants = tile_constants(width) | {"DROP": int(drop)}
    return in_parts(
        n, r * d, out,
        lambda to, parts, size: Dispatch(
            "lora_outer", (*ins, to), (tiles, parts, 1), (n, d, r, parts, size), constants
        ),
        before,
    )  # fmt: skip


@plans("lora_bwd")
def lora_bwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """dw 0, b 1, a 2, alpha 3 -> db 4, da 5. No noise is read: alpha stands in for it."""
    v, d = shapes[0]
    r = shapes[1][1]
    db = _down((3, 0, 2, 3, 4), v, d, r, drop=False, add=True)
    return _outer((3, 1, 0, 3), 5, v, d, r, drop=False, before=(db,))


@plans("lora_down")
def lora_down(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """noise, x, a, alpha -> u."""
    (n, d), (r, _) = shapes[1:3]
    return Plan((_down((0, 1, 2, 3, 4), n, d, r, drop=True, add=False),))


@plans("lora_up")
def lora_up(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """noise, u, a, alpha -> x."""
    (n, r), (_, d) = shapes[1:3]
    return Plan((Dispatch("lora_up", (0, 1, 2, 3, 4), grid_of(ceil_div(n * d, 256)), (n, d, r)),))


@plans("lora_outer")
def lora_outer(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """noise, u, x, alpha -> da."""
    (n, r), (_, d) = shapes[1:3]
    return _outer((0, 1, 2, 3), 4, n, d, r, drop=True, before=())


@plans("lora_dropout")
def lora_dropout(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """noise -> a."""
    r, d = shapes[1]
    return Plan((Dispatch("lora_dropout", (0, 1), grid_of(ceil_div(r * d, 256)), (r * d, d)),))


# ---- the head; emb plain, or codes and scales, with the number of values per scale ----


class _Head:
    """Shapes and operands of a head: x 0, u 1, emb 2, scales (3, or x in their place), b, then what is given."""

    def __init__(self, shapes: Shapes, scalars: tuple[int, ...]) -> None:
        packed = bool(scalars)
        (self.n, self.d), (_, self.r) = shapes[:2]
        self.b = 4 if packed else 3
        self.v = shapes[self.b][0]
        self.bits = scalars[0] if packed else 32
        self.scales = 3 if packed else 0
        self.block = max(1, self.v * self.d // max(1, shapes[3][0])) if packed else 1
        self.given = self.b + 1  # targets, weights, …

    def logits(self, to: int, first: int, rows: int) -> Dispatch:
        """Logits of a chunk of rows."""
        width = tile_width(rows, self.v)
        grid = (ceil_div(self.v, 4 * width), ceil_div(rows, 4 * width), 1)
        constants = tile_constants(width) | {"BITS": self.bits}
        uniform = (first, rows, self.d, self.r, self.v, self.block)
        return Dispatch("lora_head_logits", (0, 1, 2, self.scales, self.b, to), grid, uniform, constants)

    def inputs(self, grad: int, partial: int, row_loss: int, outs: tuple[int, int], first: int, rows: int) -> _Inputs:
        """dx and du of a chunk, and how many values the parts of them take."""
        across = self.d + self.r
        width = tile_width(rows, across)
        tiles = ceil_div(across, 4 * width), ceil_div(rows, 4 * width)
        wanted = ceil_div(head._DX_GROUPS, tiles[0] * tiles[1])
        part = ceil_div(self.v, max(1, min(wanted, self.v // head._DX_DEPTH)))
        parts = ceil_div(self.v, part)
        product = Dispatch(
            "lora_head_inputs", (grad, 2, self.scales, self.b, partial), (*tiles, parts),
            (rows, self.d, self.r, self.v, part, self.block), tile_constants(width) | {"BITS": self.bits},
        )  # fmt: skip
        grid = grid_of(ceil_div(rows * across, 256))
        split = Dispatch("lora_head_split", (partial, row_loss, *outs), grid, (first, rows, self.d, self.r, parts))
        return (product, split), parts * rows * across

    def db(self, grad: int, row_loss: int, to: int, first: int, rows: int) -> tuple[Dispatch, ...]:
        """db of a chunk."""
        if not self.r:
            return ()
        width = tile_width(self.v, self.r)
        grid = grid_of(ceil_div(self.v, 4 * width) * ceil_div(self.r, 4 * width))
        operands = (grad, 1, row_loss, to)
        return (Dispatch("lora_head_db", operands, grid, (first, rows, self.r, self.v), tile_constants(width)),)


@plans("lora_head_logits")
@plans("packed_head_logits")
def head_logits(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """x, u, emb (or codes, scales), b -> logits."""
    at = _Head(shapes, scalars)
    return Plan((at.logits(at.given, 0, at.n),))


@plans("lora_head_xent_fwd")
@plans("packed_head_xent_fwd")
def head_xent_fwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """x, u, emb (or codes, scales), b, targets, weights -> loss."""
    at = _Head(shapes, scalars)
    targets, weights, loss = range(at.given, at.given + 3)
    logits, row_loss = scratch(0), scratch(1)
    work = []
    for first, rows in head._chunks(at.n, at.v):
        work.append(at.logits(logits, first, rows))
        # without a gradient hyper is not read: the weights stand in for it
        work.append(head._rows((logits, targets, weights, weights, row_loss), first, rows, at.v, gradient=False))
    work.append(Dispatch("head_xent_loss", (row_loss, loss), (1, 1, 1), (at.n,)))
    return Plan(tuple(work), (head._largest(at.n, at.v) * at.v * _FLOAT, at.n * _FLOAT))


@plans("lora_head_xent_bwd")
@plans("packed_head_xent_bwd")
def head_xent_bwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """x, u, emb (or codes, scales), b, targets, weights, hyper -> loss, dx, du, db."""
    at = _Head(shapes, scalars)
    targets, weights, hyper, loss, dx, du, db = range(at.given, at.given + 7)
    grad, row_loss, partial = scratch(0), scratch(1), scratch(2)
    work: list[Dispatch] = []
    largest = 1
    for first, rows in head._chunks(at.n, at.v):
        inputs, size = at.inputs(grad, partial, row_loss, (dx, du), first, rows)
        largest = max(largest, size)
        work += [
            at.logits(grad, first, rows),
            head._rows((grad, targets, weights, hyper, row_loss), first, rows, at.v, gradient=True),
            *inputs,
            *at.db(grad, row_loss, db, first, rows),
        ]
    work.append(Dispatch("head_xent_loss", (row_loss, loss), (1, 1, 1), (at.n,)))
    sizes = head._largest(at.n, at.v) * at.v, at.n, largest
    return Plan(tuple(work), tuple(_FLOAT * size for size in sizes))


@plans("packed_embed_fwd")
def packed_embed_fwd(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """tokens, codes, scales -> x; scalars V, bits."""
    (n, d), (v, bits) = shapes[3], scalars
    uniform = (n, d, v, max(1, v * d // max(1, shapes[2][0])))
    return Plan((Dispatch("packed_embed_fwd", (0, 1, 2, 3), grid_of(ceil_div(n * d, 256)), uniform, {"BITS": bits}),))


# ---- backward passes for frozen parameters: that part of the full ones that makes the inputs' gradient ----


@plans("rmsnorm_bwd_inputs")
def rmsnorm_bwd_inputs(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """x, g, rstd, dy -> dx."""
    n, d = shapes[0]
    return Plan((norm.backward(scratch(0), n, d, 0, 0),), (_FLOAT,))


@plans("conv_bwd_inputs")
def conv_bwd_inputs(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """w, pos, da -> dn. No n is read: da stands in for it."""
    (n, d), k = shapes[2], shapes[0][1]
    return Plan((conv.backward((2, 0, 1, 2, 3, scratch(0)), n, d, k, 0, 0),), (_FLOAT,))


@plans("moe_bwd_inputs")
def moe_bwd_inputs(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
    """As moe_bwd, without dW and the dispatches that make it."""
    plan = moe.moe_bwd((*shapes, shapes[1]), scalars)
    left_out = ("moe_bwd_weights", "moe_bwd_shared")
    return Plan(tuple(d for d in plan.dispatches if d.kernel not in left_out), plan.scratch)
