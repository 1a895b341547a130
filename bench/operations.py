"""`kernels()`: how long single operations take at the shapes of a model, and that their results are NumPy's.

Besides whole operations it times single dispatches of them, the matrix products; see `products`.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench.measure import backend_named, compared, shape_of
from evermind_web import ops
from evermind_web.backend.base import Array, Backend, Buf
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.layout import moe_layout

WORTH_S: Final = 0.03  # what the runs of one measurement take at least
MOST_REPEATS: Final = 4096
EXACT: Final = 4e9  # floating-point operations that NumPy repeats in float64, without BLAS in a browser; above, float32


class Timed:
    """Something that can be queued again and again. `run` queues it; `last` is a buffer that it writes."""

    backend: Backend
    last: Buf

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.owned: list[Buf] = []
        self.small = self.new((1,))

    def new(self, shape: tuple[int, ...], dtype: str = "float32") -> Buf:
        """A buffer that `free` gives back."""
        self.owned.append(self.backend.alloc(shape, dtype))
        return self.owned[-1]

    def run(self) -> None:
        """Queue it once."""
        raise NotImplementedError

    async def seconds(self, repeats: int) -> float:
        """For `repeats` runs and one read."""
        started = time.perf_counter()
        for _ in range(repeats):
            self.backend.replay(("bench", self.last.id), self.run)
        await self.backend.read(self.last if self.last.size < 4096 else self.small)
        return time.perf_counter() - started

    async def milliseconds(self, repeats: int, rounds: int) -> float:
        """Of one run: the time that more runs take, so that the read cancels out. The median of `rounds`,

        0 where that is less than can be measured.
        """
        await self.seconds(2)
        # A read takes milliseconds, give or take one: what is measured has to be well above that.
        while repeats < MOST_REPEATS and await self.seconds(2 * repeats) - await self.seconds(repeats) < WORTH_S:
            repeats *= 2
        times = [await self.seconds(2 * repeats) - await self.seconds(repeats) for _ in range(rounds)]
        return max(0.0, 1000 * statistics.median(times) / repeats)

    def free(self) -> None:
        """Give all buffers back."""
        for buf in self.owned:
            self.backend.free(buf)


class Operation(Timed):
    """One operation of `ops` on random data, the same on every backend."""

    def __init__(self, backend: Backend, op: str, letters: dict[str, int], scalars: dict[str, int]) -> None:
        super().__init__(backend)
        self.op, self.scalars, self.letters = ops.OPS[op], scalars, letters | scalars
        drawn, args = draw(self.op, self.letters), (*self.op.ins, *self.op.outs)
        shapes = zip(args, self.shapes(op, self.letters), strict=True)
        bufs = [self.new(shape, arg.dtype) for arg, shape in shapes]
        self.ins, self.outs = bufs[: len(self.op.ins)], bufs[len(self.op.ins) :]
        for arg, buf in zip(self.op.ins, self.ins, strict=True):
            backend.write(buf, drawn[arg.name])
        self.last = self.outs[-1]

    @staticmethod
    def shapes(op: str, letters: dict[str, int]) -> tuple[tuple[int, ...], ...]:
        """Of its inputs and outputs."""
        args = (*ops.OPS[op].ins, *ops.OPS[op].outs)
        return tuple(tuple(ops.extent_of(dim, letters) for dim in arg.dims) for arg in args)

    def run(self) -> None:
        """Queue it once."""
        self.op(self.backend, self.ins, self.outs, **self.scalars)

    async def outputs(self) -> list[Array]:
        """Those of one run."""
        self.run()
        return await self.backend.read(*self.outs)


def draw(op: ops.Op, letters: dict[str, int]) -> dict[str, Array]:
    """Inputs of an operation by name, the same ones each time."""
    random = np.random.default_rng(3)
    drawn: dict[str, Array] = {}
    for arg in op.ins:
        shape = tuple(ops.extent_of(dim, letters) for dim in arg.dims)
        drawn[arg.name] = _values(arg, shape, letters, random)
    if "experts" in drawn:  # what the router would have made of them
        order = np.argsort(drawn["experts"].ravel(), kind="stable").astype(np.int32)
        drawn["order"], drawn["inverse"] = order, np.argsort(order, kind="stable").astype(np.int32)
        counts = np.bincount(drawn["experts"].ravel(), minlength=letters["E"])
        drawn["starts"] = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return drawn


def _values(arg: ops.Arg, shape: tuple[int, ...], letters: dict[str, int], random: np.random.Generator) -> Array:
    name = arg.name
    if name in ("tokens", "targets"):
        return random.integers(0, letters["V"], shape).astype(np.int32)
    if name == "pos":
        return (np.arange(shape[0]) % 64).astype(np.int32)
    if name == "experts":
        return np.argsort(random.random((shape[0], letters["E"])), axis=1)[:, : shape[1]].astype(np.int32)
    if arg.dtype == "int32" or name == "stats":
        return np.zeros(shape, np.int32 if arg.dtype == "int32" else np.float32)
    if name == "hyper":
        betas = {"beta1": 0.9, "one_minus_beta1": 0.1, "beta2": 0.99, "one_minus_beta2": 0.01}
        return ops.hyper_vector(betas | {"lr": 0.1, "eps": 1e-4, "bias_correction1": 0.1, "bias_correction2": 0.01})
    if name == "group":
        return random.integers(-1, 2, shape).astype(np.float32)
    if name in ("weights", "gates"):
        return (0.02 + random.random(shape)).astype(np.float32)
    values = random.normal(0, 0.05, shape).astype(np.float32)
    return np.maximum(values, 0) if name == "hidden" else values


def difference(found: Array, right: Array) -> float:
    """The largest, relative to the largest right value. Integers are right or wrong: 0 or 1."""
    if right.dtype.kind == "i":
        return float(not np.array_equal(found, right))
    off: NDArray[np.float64] = np.abs(found.astype(np.float64) - right)
    return float(off.max() / max(np.abs(right).max(), 1e-30))


def operations(size: dict[str, Any], rows: int) -> list[tuple[str, dict[str, int], dict[str, int], float]]:
    """What a training step of this size runs: (operation, letters, scalars, floating-point operations)."""
    V, D, _, K, H, E, k = shape_of(size)
    block = moe_layout(D, H, E).size
    moe = {"N": rows, "D": D, "M": block}
    experts = {"H": H, "E": E, "k": k}
    head = {"N": rows, "V": V, "D": D}
    expert = 4.0 * rows * (k + 1) * D * H
    return [
        ("rmsnorm_fwd", {"N": rows, "D": D}, {}, 0),
        ("conv_norm_fwd", {"N": rows, "D": D, "K": K}, {}, 0),
        ("moe_fwd", moe, experts, expert),
        ("moe_bwd", moe, experts, 2 * expert),
        ("conv_bwd", {"N": rows, "D": D, "K": K}, {}, 0),
        ("head_logits", head, {}, 2.0 * rows * V * D),
        ("head_xent_bwd", head, {}, 6.0 * rows * V * D),
        ("embed_bwd", head, {}, 0),
        ("adamw", {"P": block, "G": block // 64}, {"half": 0}, 0),
    ]


async def whole(
    backend: Backend, op: str, letters: dict[str, int], scalars: dict[str, int], flops: float, spec: dict[str, Any]
) -> dict[str, Any]:
    """The row of a whole operation."""
    operation = Operation(backend, op, letters, scalars)
    found = await operation.outputs()
    exact = np.float64 if flops <= EXACT else np.float32
    numpy = Operation(NumpyBackend(exact), op, letters, scalars)
    pairs = zip(found, await numpy.outputs(), strict=True)
    off = max(difference(ours, right) for ours, right in pairs)
    ms = await operation.milliseconds(spec.get("repeats", 20), spec.get("rounds", 5))
    operation.free()
    shape = " ".join(f"{name}={value}" for name, value in operation.letters.items() if name not in ("M", "G", "half"))
    row = {"op": op, "shape": shape, "ms": round(ms, 4)}
    if flops and ms > 0:
        row["tflops"] = round(flops / ms / 1e9, 2)
    return row | compared(off) | {"numpy": np.dtype(exact).name}


async def kernels(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """size, rows, backend → a row for each operation, and for each matrix product on its own."""
    from bench import products  # which builds on this module

    backend = await backend_named(spec.get("backend", "webgpu"))
    out = []
    for rows in spec.get("rows", [512, 4096]):
        if hasattr(backend, "device"):
            out += [await products.row(backend, kernel, rows, spec) for kernel in products.PRODUCTS]
        if spec.get("whole", True):
            out += [await whole(backend, *given, spec) for given in operations(spec, rows)]
    return out
