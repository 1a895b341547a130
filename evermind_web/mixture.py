"""A shared-expert mixture of experts on its own, its trainer, and the load-balance loss (FORMAT 5 and 12)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from evermind_web import ops
from evermind_web.backend.base import Array, Backend, Buf
from evermind_web.backend.reference.moe import choose_experts, router_logits, softmax
from evermind_web.backend.request import resolve_backend
from evermind_web.checks import check_size, checked, number_in, shown, zeros
from evermind_web.environment import run_blocking
from evermind_web.errors import InvalidArgumentError
from evermind_web.flat_model import FlatModel, Parameter
from evermind_web.formats.moe0 import moe_param_count, moe_tensor_spec, read_moe0, write_moe0
from evermind_web.optim import AdamWOptions, FlatAdamW
from evermind_web.params import F32, ParamTable, check_top_k, init_moe_tensor, whole_number
from evermind_web.rng import SeededRng, check_seed

DEFAULT_SEED = 0x4D6F4501


@dataclass(frozen=True, slots=True)
class MoEConfig:
    """D, H, E, k."""

    model_dim: int
    hidden_dim: int
    num_experts: int
    top_k: int


@dataclass(frozen=True, slots=True)
class Route:
    """Where one token goes: expert numbers (k), highest score first, their gates (k), softmax over all experts (E)."""

    experts: list[int]
    gates: F32
    probs: F32


@dataclass(frozen=True, slots=True)
class MoECache:
    """What a backward needs of its forward: inputs (N,D), and the operation's saved outputs as arrays."""

    x: F32
    saved: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class MoEOutput:
    """Output (D) of one token, its route, and the cache for `backward`."""

    output: F32
    route: Route
    cache: MoECache


class SharedExpertMoE(FlatModel):
    """out = shared(x) + Σ gate·expert(x) over the k chosen of E experts, for one token x (D) at a time.

    Raises InvalidArgumentError for impossible sizes or a seed outside 0…2³²−1.
    """

    @checked
    def __init__(
        self,
        model_dim: int = 64,
        hidden_dim: int = 128,
        num_experts: int = 8,
        top_k: int = 2,
        seed: int = DEFAULT_SEED,
        backend: str | Backend | None = None,
    ) -> None:
        sizes = {"model_dim": model_dim, "hidden_dim": hidden_dim, "num_experts": num_experts, "top_k": top_k}
        self.config = MoEConfig(**{name: whole_number(name, size) for name, size in sizes.items()})
        check_top_k(self.config.top_k, self.config.num_experts)
        check_size("a mixture", moe_param_count(model_dim, hidden_dim, num_experts))
        table = ParamTable(moe_tensor_spec(model_dim, hidden_dim, num_experts))
        initial, rng = zeros("a mixture", table.padded_size), SeededRng(check_seed(seed))
        for spec, part in table.slices(initial):
            init_moe_tensor(rng, spec.name.split(".")[-1], part, model_dim)
        super().__init__(resolve_backend(backend), table, initial)

    @property
    def dims(self) -> tuple[int, int, int, int]:
        """(D, H, E, k), as in files."""
        c = self.config
        return c.model_dim, c.hidden_dim, c.num_experts, c.top_k

    def _scalars(self) -> dict[str, int]:
        return {"H": self.config.hidden_dim, "E": self.config.num_experts, "k": self.config.top_k}

    @checked
    def check_rows(self, rows: Sequence[Any]) -> F32:
        """Vectors as float32 (N,D); InvalidArgumentError unless each has D numbers."""
        width = self.config.model_dim
        for row in rows:
            if np.shape(row) != (width,):
                raise InvalidArgumentError(f"expected a vector of {width} numbers, got shape {np.shape(row)}")
        return np.asarray(rows, np.float32).reshape(len(rows), width)

    async def forward_rows_async(self, rows: Sequence[Any]) -> tuple[F32, MoECache]:
        """Outputs (N,D) of rows (N,D), and their cache."""
        x = self.check_rows(rows)
        N, (D, H, E, k) = len(x), self.dims
        shapes = [
            ((N, D), "float32"), ((N, k), "int32"), ((N, k), "float32"), ((N, E), "float32"), ((N * k,), "int32"),
            ((N * k,), "int32"), ((E + 1,), "int32"), ((N * (k + 1), H), "float32"),
        ]  # fmt: skip
        bufs = [self.backend.alloc((N, D)) for _ in range(2)] + [self.backend.alloc((ops.NOISE_SIZE,), "int32")]
        bufs += [self.backend.alloc(*shape) for shape in shapes]
        try:
            self.backend.write(bufs[1], x)  # the residual input and the noise are zero
            ops.moe_fwd(self.backend, (bufs[0], bufs[1], self.flat.whole, bufs[2]), bufs[3:], **self._scalars())
            out, *saved = await self.backend.read(*bufs[3:])
        finally:
            for buf in bufs:
                self.backend.free(buf)
        return np.asarray(out, np.float32), MoECache(x, tuple(saved))

    @checked
    async def backward_rows_async(self, d_output: F32, cache: MoECache) -> F32:
        """dx (N,D) for d_output (N,D); gradients of all parameters +=."""
        _, gates, _, order, inverse, starts, hidden = cache.saved
        routing = [cache.saved[0], gates, order, inverse, starts, hidden]
        temporary: list[Buf] = []
        try:
            for array in (cache.x, *routing, d_output):
                temporary.append(self.backend.alloc(array.shape, "int32" if array.dtype.kind == "i" else "float32"))
                self.backend.write(temporary[-1], array)
            x, *rest = temporary
            dx = self.backend.alloc(cache.x.shape)
            temporary.append(dx)
            ops.moe_bwd(self.backend, (x, self.flat.whole, *rest), (dx, self.flat_grads.whole), **self._scalars())
            (result,) = await self.backend.read(dx)
        finally:
            for buf in temporary:
                self.backend.free(buf)
        return np.asarray(result, np.float32)

    async def forward_async(self, x: Any) -> MoEOutput:
        """One token x (D)."""
        out, cache = await self.forward_rows_async([x])
        return MoEOutput(out[0], _route(cache, 0), cache)

    def forward(self, x: Any) -> MoEOutput:
        """Blocking twin of `forward_async`."""
        return run_blocking(self.forward_async(x))

    def route(self, x: Any) -> Route:
        """Where x (D) would go, without computing the experts (on the host)."""
        logits = router_logits(self.check_rows([x]), self.parameters()[0].data)
        experts = choose_experts(logits, self.config.top_k)
        gates = softmax(np.take_along_axis(logits, experts, axis=1))
        return Route([int(e) for e in experts[0]], gates[0], softmax(logits)[0])

    def backward(self, d_output: Any, cache: MoECache) -> F32:
        """dx (D) for d_output (D) of the token that `cache` is of; gradients +=. The choice of experts is constant."""
        dx = run_blocking(self.backward_rows_async(self.check_rows([d_output]), cache))
        return np.asarray(dx[0], np.float32)

    @checked
    async def aux_grad_step_async(self, x: Any, probs: npt.ArrayLike, f: npt.ArrayLike, scale: float) -> None:
        """Router gradient += scale·P_j·(f_j − Σ f·P)·x: the load-balance loss of one token x (D)."""
        p, share = np.asarray(probs, np.float64), np.asarray(f, np.float64)
        step = np.outer(scale * p * (share - share @ p), self.check_rows([x])[0])
        await self._add_to_router(step)

    async def _add_to_router(self, change: NDArray[np.float64]) -> None:
        """Router gradient (E,D) += change."""
        spec = self.table.by_name["wr"]
        view = self.flat_grads.view(spec.padded_offset, spec.shape)
        try:
            (router,) = await self.backend.read(view)
            self.backend.write(view, (router + change).astype(np.float32))
        finally:
            self.backend.free(view)

    def aux_grad_step(self, x: Any, probs: Any, f: Any, scale: float) -> None:
        """Blocking twin of `aux_grad_step_async`."""
        run_blocking(self.aux_grad_step_async(x, probs, f, scale))

    @checked
    def export_weights(self, fp16: bool = False) -> bytes:
        """A MoE0 checkpoint."""
        return write_moe0(self.dims, run_blocking(self.packed_weights_async()), fp16)

    def load_weights(self, data: bytes) -> None:
        """Take the weights of a MoE0 checkpoint of this shape. Raises FormatError or ConfigMismatchError."""
        _, packed = read_moe0(data, self.dims)
        self.load_packed(packed)

    @checked
    def export_expert(self, index: int) -> list[Parameter]:
        """w1, b1, w2, b2 of routed expert `index`, copies. Raises InvalidArgumentError if there is none."""
        if not 0 <= index < self.config.num_experts:
            raise InvalidArgumentError(f"expert must be in 0…{self.config.num_experts - 1}, got {index}")
        prefix = f"expert{index}."
        return [Parameter(p.name, p.data.copy()) for p in self.parameters() if p.name.startswith(prefix)]


def _route(cache: MoECache, row: int) -> Route:
    experts, gates, probs = cache.saved[:3]
    return Route([int(e) for e in experts[row]], gates[row], probs[row])


@runtime_checkable
class Routed(Protocol):
    """A Route, or anything with its experts and probs."""

    @property
    def experts(self) -> Any: ...

    @property
    def probs(self) -> Any: ...


class LoadBalanceAccumulator:
    """The Switch-style load-balance loss E·Σ_e f_e·P_e over the routes observed; 1 when all experts share evenly."""

    @checked
    def __init__(self, num_experts: int) -> None:
        self.num_experts = whole_number("num_experts", num_experts)
        self._counts, self._probs = zeros("a load balance", 2, num_experts).astype(np.float64)
        self._tokens = 0

    @checked
    def observe(self, route: Routed) -> None:
        """Take note of one token. Raises InvalidArgumentError for a route over another number of experts."""
        experts, probs = np.asarray(route.experts, np.int64), np.asarray(route.probs, np.float64)
        if probs.shape != self._probs.shape or ((experts < 0) | (experts >= self.num_experts)).any():
            raise InvalidArgumentError(f"expected a route over {self.num_experts} experts, got {shown(route)}")
        self._tokens += 1
        np.add.at(self._counts, experts, 1)
        self._probs += probs

    def shares(self) -> NDArray[np.float64]:
        """f (E): the part of all choices that went to each expert; 0 with no tokens."""
        return np.asarray(self._counts / max(self._counts.sum(), 1), np.float64)

    def loss(self) -> float:
        """0.0 with no tokens."""
        if not self._tokens:
            return 0.0
        return float(self.num_experts * np.sum(self.shares() * self._probs / self._tokens))


@dataclass(frozen=True, slots=True)
class MoEEpoch:
    """Mean of ½·|output − target|² over the samples, and the load-balance loss of the last batch."""

    loss: float
    aux_loss: float


class MoETrainer:
    """Regression by AdamW with a load-balance term; moments and step count live on over several `fit` calls.

    batch_size 0 takes all samples as one batch. The balance gradient is divided by the batch size twice, as in the
    reference (FORMAT 12), so that `aux_weight` means the same there and here.
    """

    @checked
    def __init__(
        self,
        model: SharedExpertMoE,
        lr: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        aux_weight: float = 0.01,
        batch_size: int = 0,
        epochs: int = 1,
    ) -> None:
        number_in("aux_weight", aux_weight, -math.inf, math.inf)
        self.model, self.aux_weight = model, aux_weight
        self.batch_size = whole_number("batch_size", batch_size, 0)
        self.epochs = whole_number("epochs", epochs)
        self.options = AdamWOptions(lr, beta1, beta2, eps, weight_decay)
        self._adam = FlatAdamW(model.flat, model.table.decay_groups())
        self._hyper = model.backend.alloc((ops.HYPER_SIZE,))

    @checked
    async def fit_async(self, samples: Sequence[tuple[Any, Any]]) -> list[MoEEpoch]:
        """Train on (input (D), target (D)) pairs, in order; one entry an epoch. No samples: zeros, nothing changes."""
        if not samples:
            return [MoEEpoch(0.0, 0.0)] * self.epochs
        x, y = (self.model.check_rows([pair[i] for pair in samples]) for i in (0, 1))
        size = self.batch_size or len(x)
        history = []
        with self.model.fitting():
            for _ in range(self.epochs):
                total = aux = 0.0
                for start in range(0, len(x), size):
                    loss, aux = await self._step(x[start : start + size], y[start : start + size])
                    total += loss
                history.append(MoEEpoch(total / len(x), aux))
        return history

    def fit(self, samples: Sequence[tuple[Any, Any]]) -> list[MoEEpoch]:
        """Blocking twin of `fit_async`."""
        return run_blocking(self.fit_async(samples))

    async def _step(self, x: F32, y: F32) -> tuple[float, float]:
        model, n = self.model, len(x)
        model.zero_grad()
        out, cache = await model.forward_rows_async(list(x))
        difference = out.astype(np.float64) - y
        await model.backward_rows_async((difference / n).astype(np.float32), cache)
        balance = LoadBalanceAccumulator(model.config.num_experts)
        for row in range(n):
            balance.observe(_route(cache, row))
        await self._balance(cache, balance)
        self._adam.step += 1
        model.backend.write(self._hyper, ops.hyper_vector(self.options.hyper(self._adam.step)))
        self._adam.queue(model.flat_grads, self._hyper)
        return float(0.5 * np.sum(difference**2)), balance.loss()

    async def _balance(self, cache: MoECache, balance: LoadBalanceAccumulator) -> None:
        """Router gradient += the balance term of the whole batch in one go."""
        if self.aux_weight == 0:
            return
        model, n, shares = self.model, len(cache.x), balance.shares()
        probs = cache.saved[2].astype(np.float64)
        coefficient = self.aux_weight * model.config.num_experts / n / n * probs * (shares - (probs @ shares)[:, None])
        await model._add_to_router(coefficient.T @ cache.x)
