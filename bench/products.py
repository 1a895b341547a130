"""Single dispatches of operations that are matrix products, timed like the plain products that peers run.

A dispatch is taken out of the plan of its operation: first what comes before it in the plan runs, so that all that it
reads is real; then it runs alone, on the same buffers. With one routed expert that gets every row, the rows of the
shared and of the routed expert are two plain products of half of `rows` each, side by side in one dispatch; the
gradients of weights, whose sums are over rows, are those of all experts of the model.

Dispatches that write the same buffer wait for each other, and peers write a new tensor each time; so the buffers
that a dispatch writes are there ROTATED times, and used in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench.measure import compared, shape_of
from bench.operations import Operation, Timed, difference
from evermind_web.backend.base import Array, Backend, Buf
from evermind_web.backend.device import load_kernel
from evermind_web.backend.kernels import Dispatch, Plan, Shapes, plan_for, plans, tiles
from evermind_web.backend.reference.moe import Expert, split_block
from evermind_web.layout import moe_layout

PEAK: Final = 67.0  # TFLOP/s in float32 of the chip that the published numbers are from
ROTATED: Final = 8
SAMPLED: Final = 64  # rows of a result that NumPy computes, too

Exact = NDArray[np.float64]
Size = tuple[int, ...]  # V, D, L, K, H, E, k
Pairs = list[tuple[Array, Exact]]  # what was found, what is right
Rows = tuple[Expert, slice, Array, Exact]  # an expert, its rows of hidden, their tokens and gates


@dataclass(frozen=True)
class Product:
    """Where a product is: the operation; m, k, n; how many of these the dispatch makes; what NumPy makes of it."""

    op: str
    shape: Callable[[int, int, int, int], tuple[int, int, int]]  # of rows, V, D, H
    check: Callable[[Values], Pairs]
    products: int = 1
    experts: bool = False  # a sum over the rows of each expert of the model, in all `products` for each row

    def letters(self, rows: int, size: Size) -> tuple[dict[str, int], dict[str, int]]:
        """Letters and scalars of the operation."""
        V, D, _, _, H, E, k = size
        if self.op.startswith("head"):
            return {"N": rows, "V": V, "D": D}, {}
        if not self.experts:
            rows, E, k = rows // 2, 1, 1
        return {"N": rows, "D": D, "M": moe_layout(D, H, E).size}, {"H": H, "E": E, "k": k}


class Values:
    """Operands and scratch memory by name, after the dispatch ran; `rows` are the ones to look at."""

    def __init__(self, arrays: dict[str, Array], letters: dict[str, int], written: set[str]) -> None:
        self.arrays, self.letters, self.written = arrays, letters, written

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def rows(self, count: int) -> NDArray[np.int64]:
        """Some of `count` rows: the first, the last, and others drawn at random."""
        drawn = np.random.default_rng(count).choice(count, min(count, SAMPLED), replace=False)
        picked: NDArray[np.int64] = np.unique(np.append(drawn, [0, count - 1]))
        return picked

    def experts(self) -> list[Rows]:
        """Of the shared one and all routed ones: parameters, its rows of hidden, their tokens, their gates."""
        N, D, H, E, k = (self.letters[name] for name in "NDHEk")
        _, found = split_block(self["W"].astype(np.float64), D, H, E)
        gates = np.asarray(self.arrays.get("gates", np.ones(N * k)), np.float64).ravel()
        order, starts = self["order"].astype(np.int64), self["starts"].tolist()
        out: list[Rows] = [(found[0], slice(0, N), np.arange(N), np.ones(N))]
        for expert, first, last in zip(found[1:], starts[:-1], starts[1:], strict=True):
            slots = order[first:last]
            out.append((expert, slice(N + first, N + last), slots // k, gates[slots]))
        return out


def _matrix(values: Array, width: int) -> Array:
    return values.reshape(-1, width)


def _up(v: Values) -> Pairs:
    out = []
    for p, rows, tokens, _ in v.experts():
        some = v.rows(len(tokens))
        right = np.maximum(v["m"][tokens[some]].astype(np.float64) @ p.w1.T + p.b1, 0)
        out.append((v["hidden"][rows][some], right))
    return out


def _down(v: Values) -> Pairs:
    y, out = _matrix(v["scratch0"], v.letters["D"]), []
    for p, rows, tokens, _ in v.experts():
        some = v.rows(len(tokens))
        out.append((y[rows][some], v["hidden"][rows][some].astype(np.float64) @ p.w2.T + p.b2))
    return out


def _dpre(v: Values) -> Array:
    """The rows of moe_bwd_hidden, at the start of its scratch memory."""
    N, H, k = (v.letters[name] for name in "NHk")
    return _matrix(v["scratch0"][: N * (k + 1) * H], H)


def _back(v: Values) -> Pairs:
    dpre, out = _dpre(v), []
    for p, rows, tokens, gates in v.experts():
        some = v.rows(len(tokens))
        right = gates[some, None] * (v["dy"][tokens[some]].astype(np.float64) @ p.w2)
        out.append((dpre[rows][some], np.where(v["hidden"][rows][some] > 0, right, 0)))
    return out


def _inputs(v: Values) -> Pairs:
    N, D = v.letters["N"], v.letters["D"]
    dpre, dx, out = _dpre(v), _matrix(v["scratch1"][-2 * N * D :], D), []
    for p, rows, tokens, _ in v.experts():
        some = v.rows(len(tokens))
        out.append((dx[rows][some], dpre[rows][some].astype(np.float64) @ p.w1))
    return out


def _weights(v: Values) -> Pairs:
    D, H, E = (v.letters[name] for name in "DHE")
    layout, dW = moe_layout(D, H, E), v["dW"].astype(np.float64)
    dpre, out = _dpre(v).astype(np.float64), Pairs()
    rows = v.letters["N"] * (v.letters["k"] + 1)
    parts = v["scratch0"][rows * H + v.letters["N"] * v.letters["k"] :].reshape(-1, layout.stride)
    dW[layout.experts :][: layout.stride] += parts.sum(axis=0, dtype=np.float64)  # moe_bwd_shared is yet to come
    _, found = split_block(dW, D, H, E)
    for g, (_, rows, tokens, gates) in zip(found, v.experts(), strict=True):
        some, others = v.rows(H), v.rows(D)
        out.append((g.w1[some], dpre[rows][:, some].T @ v["m"][tokens].astype(np.float64)))
        dy = gates[:, None] * v["dy"][tokens][:, others].astype(np.float64)
        out.append((g.w2[others], dy.T @ v["hidden"][rows].astype(np.float64)))
    return out


def _logits(v: Values) -> Pairs:
    some = v.rows(len(v["x"]))
    return [(v["logits"][some], v["x"][some].astype(np.float64) @ v["emb"].T.astype(np.float64))]


def _grads(v: Values) -> Pairs:
    N, V, D = (v.letters[name] for name in "NVD")
    d = _matrix(v["scratch0"][: N * V], V)
    parts = v["scratch2" if "scratch2" in v.written else "dx"].reshape(-1, N, D)
    some, others = v.rows(N), v.rows(V)
    dx = d[some].astype(np.float64) @ v["emb"].astype(np.float64)
    demb = d[:, others].T.astype(np.float64) @ v["x"].astype(np.float64)
    return [(parts[:, some].sum(axis=0, dtype=np.float64), dx), (v["demb"][others], demb)]


PRODUCTS: Final = {
    "moe_fwd_up": Product("moe_fwd", lambda rows, V, D, H: (rows, D, H), _up),
    "moe_fwd_down": Product("moe_fwd", lambda rows, V, D, H: (rows, H, D), _down),
    "moe_bwd_hidden": Product("moe_bwd", lambda rows, V, D, H: (rows, D, H), _back),
    "moe_bwd_rows": Product("moe_bwd", lambda rows, V, D, H: (rows, H, D), _inputs),
    "moe_bwd_weights": Product("moe_bwd", lambda rows, V, D, H: (D, rows, H), _weights, products=2, experts=True),
    "head_logits": Product("head_logits", lambda rows, V, D, H: (rows, D, V), _logits),
    "head_xent_grads": Product("head_xent_bwd", lambda rows, V, D, H: (rows, V, D), _grads, products=2),
}


class Single(Timed):
    """One dispatch of an operation, alone, on the buffers of that operation."""

    def __init__(self, operation: Operation, kernel: str, rotated: int) -> None:
        super().__init__(operation.backend)
        self.scalars = tuple(operation.scalars.values())
        operands = [*operation.ins, *operation.outs]
        shapes = tuple(buf.shape for buf in operands)
        plan = plan_for(operation.op.name, shapes, self.scalars)
        scratch = [self.new((nbytes // 4,)) for nbytes in plan.scratch]
        self.operands = [*operands, *scratch]
        names = [arg.name for arg in (*operation.op.ins, *operation.op.outs)]
        self.names = [*names, *(f"scratch{i}" for i in range(len(scratch)))]
        before, only = _taken_apart(plan, kernel, len(operands))
        self.name = _as_operation(f"{operation.op.name}: {kernel}", (only,))
        kinds = zip(only.operands, load_kernel(kernel).bindings, strict=False)
        self.written = sorted({operand for operand, kind in kinds if kind == "read_write"})
        if before:
            self._queue(_as_operation(f"{operation.op.name}: before {kernel}", before), self.operands)
        self.sets = [self.operands] + [self._copied() for _ in range(rotated - 1)]
        self.last = self.operands[self.written[0]]

    def _copied(self) -> list[Buf]:
        """The operands, with copies of those that the dispatch writes."""
        out = list(self.operands)
        for i in self.written:
            out[i] = self.new(self.operands[i].shape, self.operands[i].dtype)
            self.backend.copy(self.operands[i], 0, out[i], 0, out[i].size)
        return out

    def _queue(self, name: str, operands: list[Buf]) -> None:
        self.backend.run(name, operands, (), self.scalars)

    def run(self) -> None:
        """Queue it once on each set of buffers."""
        for operands in self.sets:
            self._queue(self.name, operands)

    async def values(self, letters: dict[str, int]) -> Values:
        """What the first run of all leaves."""
        self._queue(self.name, self.operands)
        arrays = dict(zip(self.names, await self.backend.read(*self.operands), strict=True))
        return Values(arrays, letters, {self.names[i] for i in self.written})


def _taken_apart(plan: Plan, kernel: str, operands: int) -> tuple[tuple[Dispatch, ...], Dispatch]:
    """What comes before the dispatch of `kernel`, and that: with scratch memory as further operands."""
    named = [d.kernel for d in plan.dispatches]
    if named.count(kernel) != 1:
        raise ValueError(f"expected one dispatch of {kernel}, the plan has {named}")
    own = [replace(d, operands=tuple(o if o >= 0 else operands - 1 - o for o in d.operands)) for d in plan.dispatches]
    at = named.index(kernel)
    return tuple(own[:at]), own[at]


def _as_operation(name: str, dispatches: tuple[Dispatch, ...]) -> str:
    """Let backends run these dispatches under this name, for shapes that are the same ones each time."""

    @plans(name)
    def planned(shapes: Shapes, scalars: tuple[int, ...]) -> Plan:
        return Plan(dispatches)

    return name


def _rows_in_one(kernel: str, rows: int, size: Size) -> int:
    """At most `rows`: as many as the operation takes in one dispatch of that kernel."""
    product = PRODUCTS[kernel]
    while rows > 1:
        letters, scalars = product.letters(rows, size)
        shapes = Operation.shapes(product.op, letters | scalars)
        if [d.kernel for d in plan_for(product.op, shapes, tuple(scalars.values())).dispatches].count(kernel) <= 1:
            break
        rows //= 2
    return rows


async def row(backend: Backend, kernel: str, rows: int, spec: dict[str, Any]) -> dict[str, Any]:
    """The row of one product."""
    size = shape_of(spec)
    V, D, _, _, H, _, k = size
    product = PRODUCTS[kernel]
    tiles.choose(backend.adapter_name)
    rows = _rows_in_one(kernel, rows, size)
    letters, scalars = product.letters(rows, size)
    rotated = spec.get("rotated", ROTATED)
    operation = Operation(backend, product.op, letters, scalars)
    single = Single(operation, kernel, rotated)
    off = max(difference(*pair) for pair in product.check(await single.values(letters | scalars)))
    ms = await single.milliseconds(spec.get("repeats", 4), spec.get("rounds", 5)) / rotated
    for part in (single, operation):
        part.free()
    products = product.products * (k + 1 if product.experts else 1)
    m, depth, n = product.shape(rows, V, D, H)
    shape = {"op": product.op, "kernel": kernel, "m": m, "k": depth, "n": n, "products": products}
    done = {"ms": round(ms, 4)}
    if ms > 0:
        tflops = products * 2 * m * depth * n / ms / 1e9
        done |= {"tflops": round(tflops, 2), "share_of_peak": round(tflops / PEAK, 3)}
    return shape | done | compared(off) | {"numpy": "float64"}
