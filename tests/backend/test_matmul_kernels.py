"""Kernels of the mixture of experts and of the output head, on a native WebGPU device, against the NumPy reference."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from evermind_web import ops
from evermind_web.backend.base import Array, Backend
from evermind_web.backend.kernels import moe, tiles
from evermind_web.backend.native_webgpu import NativeDevice
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.backend.webgpu_backend import WebGPUBackend
from evermind_web.layout import moe_layout
from tests.operands import draw_operand

RTOL = 1e-4  # of the largest value of an output

# N, D, H, E, k: sizes around the tiles of 32 and 64, one row, one expert, all experts, more experts than rows
MOE = [
    (1, 5, 7, 1, 1),
    (3, 12, 24, 4, 2),
    (17, 20, 33, 3, 3),
    (40, 64, 128, 7, 1),
    (65, 20, 64, 4, 2),
    (130, 70, 65, 9, 5),
    (5, 12, 9, 64, 64),
    (200, 192, 300, 64, 3),
    (300, 64, 130, 8, 2),
    (530, 20, 33, 9, 2),
]
# N, D, V
HEAD = [(1, 5, 37), (3, 12, 301), (40, 20, 37), (64, 64, 512), (65, 64, 301), (130, 192, 1000)]


@pytest.fixture(scope="module", params=["tiles of 64", "tiles of 32", "software"])
def gpu(request: pytest.FixtureRequest) -> Iterator[WebGPUBackend]:
    """A device on which every product is cut in the same way."""
    backend = WebGPUBackend(NativeDevice(), "wgpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "ENOUGH", 1 if request.param == "tiles of 64" else 1 << 30)
        patch.setattr(tiles, "software", request.param == "software")
        patch.setattr(moe, "_LARGE", 1 if request.param == "tiles of 64" else 1 << 30)  # parts of long sums
        patch.setattr(tiles, "choose", lambda adapter_name: None)  # the backend would look at the adapter, a CPU
        yield backend
    backend.dispose()


@pytest.fixture
def cpu() -> NumpyBackend:
    return NumpyBackend()


def run(backend: Backend, op: ops.Op, ins: Sequence[Array], outs: Sequence[Array], **scalars: int) -> list[Array]:
    """`outs` as they are after `op`; they start with the given values."""
    bufs = []
    for array in (*ins, *outs):
        buf = backend.alloc(array.shape, "int32" if array.dtype.kind == "i" else "float32")
        backend.write(buf, array)
        bufs.append(buf)
    op(backend, bufs[: len(ins)], bufs[len(ins) :], **scalars)
    results = asyncio.run(backend.read(*bufs[len(ins) :]))
    for buf in bufs:
        backend.free(buf)
    return results


def close(got: Array, expected: Array, name: str) -> None:
    scale = float(np.abs(expected).max(initial=0.0))
    worst = float(np.abs(got - expected).max(initial=0.0))
    assert worst <= RTOL * scale or worst <= 1e-30, f"{name}: off by {worst}, largest value {scale}"


def draw(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


class Moe:
    """Random operands of one mixture of experts, and both operations on any backend."""

    def __init__(self, n: int, d: int, h: int, e: int, k: int, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        self.n, self.d, self.k, self.h, self.e = n, d, k, h, e
        self.scalars = {"H": h, "E": e, "k": k}
        self.a, self.m, self.dy = draw(rng, n, d), draw(rng, n, d), draw(rng, n, d)
        self.weights = draw(rng, moe_layout(d, h, e).size) / np.float32(np.sqrt(d))
        self.dweights = draw(rng, self.weights.size)  # what the gradient is added to

    @property
    def router(self) -> Array:
        return self.weights[: self.e * self.d].reshape(self.e, self.d)

    def forward(self, backend: Backend) -> list[Array]:
        """out, experts, gates, probs, order, inverse, starts, hidden"""
        n, k = self.n, self.k
        shapes = [(n, self.d), (n, k), (n, k), (n, self.e), (n * k,), (n * k,), (self.e + 1,), (n * (k + 1), self.h)]
        dtypes = [np.float32, np.int32, np.float32, np.float32, np.int32, np.int32, np.int32, np.float32]
        outs = [np.full(shape, 77, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
        return run(backend, ops.moe_fwd, [self.a, self.m, self.weights, np.zeros(64, np.int32)], outs, **self.scalars)

    def backward(self, backend: Backend, forward: list[Array]) -> list[Array]:
        """dm, dW"""
        _, experts, gates, _, order, inverse, starts, hidden = forward
        ins = [self.m, self.weights, experts, gates, order, inverse, starts, hidden, self.dy]
        return run(backend, ops.moe_bwd, ins, [np.full_like(self.m, 77), self.dweights], **self.scalars)

    def compare(self, gpu: Backend, cpu: Backend) -> None:
        expected, got = self.forward(cpu), self.forward(gpu)
        names = ("out", "experts", "gates", "probs", "order", "inverse", "starts", "hidden")
        for name, e, g in zip(names, expected, got, strict=True):
            if e.dtype.kind == "i":
                np.testing.assert_array_equal(g, e, err_msg=name)
            else:
                close(g, e, name)
        for name, e, g in zip(("dm", "dW"), self.backward(cpu, expected), self.backward(gpu, expected), strict=True):
            close(g, e, name)


@pytest.mark.parametrize("sizes", MOE, ids=str)
def test_moe_equals_reference(gpu: WebGPUBackend, cpu: NumpyBackend, sizes: tuple[int, int, int, int, int]) -> None:
    Moe(*sizes).compare(gpu, cpu)


def test_moe_ties_take_the_lowest_experts(gpu: WebGPUBackend, cpu: NumpyBackend) -> None:
    case = Moe(65, 20, 24, 7, 2)
    case.router[...] = 0
    assert set(case.forward(gpu)[1][:, 1].tolist()) == {1}
    case.compare(gpu, cpu)  # experts 2.. are idle too


def test_moe_equal_router_rows_give_equal_scores(gpu: WebGPUBackend, cpu: NumpyBackend) -> None:
    case = Moe(65, 65, 24, 64, 3)
    case.router[1:] = case.router[0]
    experts = case.forward(gpu)[1]
    np.testing.assert_array_equal(experts, np.tile(np.arange(3), (65, 1)))


def test_moe_idle_experts_keep_their_gradient(gpu: WebGPUBackend) -> None:
    case = Moe(33, 20, 24, 5, 2)
    case.router[...] = 0
    dweights = case.backward(gpu, case.forward(gpu))[1]
    at = moe_layout(case.d, case.h, case.e)
    idle = at.experts + 3 * at.stride  # the shared expert and experts 0 and 1 work
    np.testing.assert_array_equal(dweights[idle:], case.dweights[idle:])
    assert not np.array_equal(dweights[at.experts : idle], case.dweights[at.experts : idle])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_moe_nan_never_wins_and_survives(gpu: WebGPUBackend, value: float) -> None:
    case = Moe(9, 20, 24, 5, 2)
    case.router[1, 3] = np.nan
    case.m[4, 2] = value
    out, experts = case.forward(gpu)[:2]
    others = np.delete(np.arange(9), 4)
    assert not np.any(experts[others] == 1)
    assert all(len(set(row)) == 2 for row in experts.tolist())
    assert not np.isfinite(out[4]).any()


def test_moe_repeats_bit_for_bit(gpu: WebGPUBackend) -> None:
    case = Moe(150, 64, 96, 4, 2)
    first = case.forward(gpu)
    grads = case.backward(gpu, first)
    for _ in range(3):
        again = case.forward(gpu)
        for one, other in zip(first + grads, again + case.backward(gpu, again), strict=True):
            assert one.tobytes() == other.tobytes()


class Head:
    """Random operands of the output head; rows 0 and every fifth are not scored."""

    def __init__(self, n: int, d: int, v: int) -> None:
        rng = np.random.default_rng(2)
        self.x, self.emb = draw(rng, n, d), draw(rng, v, d)
        self.targets = rng.integers(0, v, n).astype(np.int32)
        self.weights = rng.random(n).astype(np.float32)
        if n > 1:
            self.targets[::5] = ops.IGNORE
            self.weights[1::5] = 0
        self.hyper = np.zeros(ops.HYPER_SIZE, np.float32)
        self.hyper[ops.HYPER["grad_scale"]] = 8
        self.loss, self.demb = np.full(1, 3, np.float32), draw(rng, v, d)

    def logits(self, backend: Backend) -> Array:
        outs = [np.full((len(self.x), len(self.emb)), 77, np.float32)]
        return run(backend, ops.head_logits, [self.x, self.emb], outs)[0]

    def forward(self, backend: Backend) -> Array:
        return run(backend, ops.head_xent_fwd, [self.x, self.emb, self.targets, self.weights], [self.loss])[0]

    def backward(self, backend: Backend) -> list[Array]:
        """loss, dx, demb"""
        ins = [self.x, self.emb, self.targets, self.weights, self.hyper]
        return run(backend, ops.head_xent_bwd, ins, [self.loss, np.full_like(self.x, 77), self.demb])

    def compare(self, gpu: Backend, cpu: Backend) -> None:
        close(self.logits(gpu), self.logits(cpu), "logits")
        close(self.forward(gpu), self.forward(cpu), "loss")
        for name, got, expected in zip(("loss", "dx", "demb"), self.backward(gpu), self.backward(cpu), strict=True):
            close(got, expected, name)


@pytest.mark.parametrize("sizes", HEAD, ids=str)
def test_head_equals_reference(gpu: WebGPUBackend, cpu: NumpyBackend, sizes: tuple[int, int, int]) -> None:
    Head(*sizes).compare(gpu, cpu)


def test_head_in_chunks_equals_reference(
    gpu: WebGPUBackend, cpu: NumpyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evermind_web.backend.kernels.head._LOGITS", 300 * 50)
    Head(131, 12, 300).compare(gpu, cpu)


def test_head_large_logits_do_not_overflow(gpu: WebGPUBackend, cpu: NumpyBackend) -> None:
    case = Head(12, 20, 301)
    case.x *= np.float32(300)
    case.compare(gpu, cpu)


def test_head_rows_that_are_not_scored_count_nothing(gpu: WebGPUBackend, cpu: NumpyBackend) -> None:
    case = Head(12, 20, 301)
    expected = case.backward(cpu)
    case.x[0], case.x[1] = np.nan, np.inf  # one by its target, one by its weight
    loss, dx, demb = case.backward(gpu)
    assert not dx[:2].any()
    for name, got, wanted in zip(("loss", "dx", "demb"), (loss, dx, demb), expected, strict=True):
        close(got, wanted, name)
    close(case.forward(gpu), expected[0], "loss")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_head_loss_is_not_finite_if_a_logit_is_not(gpu: WebGPUBackend, value: float) -> None:
    case = Head(12, 20, 301)
    case.x[7, 3] = value
    assert not np.isfinite(case.forward(gpu)[0])
    assert not np.isfinite(case.backward(gpu)[0][0])


@pytest.mark.parametrize("target", [-1, 301, 2**31 - 1])
def test_head_target_outside_gives_nan_loss(gpu: WebGPUBackend, target: int) -> None:
    case = Head(12, 20, 301)
    case.targets[2] = target
    assert np.isnan(case.forward(gpu)[0])


def test_head_repeats_bit_for_bit(gpu: WebGPUBackend) -> None:
    case = Head(130, 64, 512)
    first = case.backward(gpu)
    for _ in range(3):
        assert all(one.tobytes() == other.tobytes() for one, other in zip(first, case.backward(gpu), strict=True))


LORA = ("lora_down", "lora_outer", "lora_bwd", "lora_head_logits", "lora_head_xent_bwd")


@pytest.mark.parametrize("name", LORA)
@pytest.mark.parametrize("sizes", [(7, 12, 3, 37), (150, 36, 9, 301)], ids=str)
def test_low_rank_products_equal_reference(
    gpu: WebGPUBackend, cpu: NumpyBackend, name: str, sizes: tuple[int, int, int, int]
) -> None:
    letters, rng, op = dict(zip("NDRV", sizes, strict=True)), np.random.default_rng(4), ops.OPS[name]
    ins, outs = (
        [
            draw_operand(arg.name, arg.dtype, tuple(ops.extent_of(dim, letters) for dim in arg.dims), letters, rng)
            for arg in args
        ]
        for args in (op.ins, op.outs)
    )
    expected = run(cpu, op, ins, outs)
    for arg, got, wanted in zip(op.outs, run(gpu, op, ins, outs), expected, strict=True):
        close(got, wanted, arg.name)
