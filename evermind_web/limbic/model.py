"""LimbicModel: a leaky recurrent step from an experience and a state to the state's change and a reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evermind_web import ops
from evermind_web.backend.base import Backend, Buf
from evermind_web.backend.request import resolve_backend
from evermind_web.checks import checked, zeros
from evermind_web.environment import run_blocking
from evermind_web.errors import InvalidArgumentError
from evermind_web.flat_model import FlatModel
from evermind_web.formats.lmbc import limbic_tensor_spec, read_lmbc, write_lmbc
from evermind_web.params import F32, ParamTable, whole_number
from evermind_web.rng import SeededRng, check_seed

DEFAULT_SEED = 0x11B1C5EE
MAX_HIDDEN = 64
_STD = {"win": 0.1, "ws": 0.1, "aLogit": 0.05, "woutState": 0.05, "woutReward": 0.05}


@dataclass(frozen=True, slots=True)
class LimbicConfig:
    """I, H, A, and the weight of the reward in the loss."""

    input_dim: int
    hidden_dim: int
    state_dim: int
    reward_weight: float


@dataclass(frozen=True, slots=True)
class LimbicOutput:
    """New hidden state (H), change of the affect state (A), predicted reward."""

    hidden: F32
    delta: F32
    reward: float


@dataclass(frozen=True, slots=True)
class LimbicLoss:
    """Loss of one sample, and the new hidden state (H)."""

    loss: float
    hidden: F32


class LimbicModel(FlatModel):
    """h' = a·h + (1−a)·tanh(Win x + Ws s); change = tanh(Wout h' + b); reward = wr·h' + br, a learned per unit.

    Raises InvalidArgumentError for impossible sizes (hidden_dim is at most 64) or a seed outside 0…2³²−1.
    """

    @checked
    def __init__(
        self,
        input_dim: int = 32,
        hidden_dim: int = 16,
        state_dim: int = 8,
        reward_weight: float = 0.5,
        seed: int = DEFAULT_SEED,
        backend: str | Backend | None = None,
    ) -> None:
        sizes = {"input_dim": input_dim, "hidden_dim": hidden_dim, "state_dim": state_dim}
        found = {name: whole_number(name, size) for name, size in sizes.items()}
        if hidden_dim > MAX_HIDDEN:
            raise InvalidArgumentError(f"hidden_dim must be at most {MAX_HIDDEN}, got {hidden_dim}")
        if not np.isfinite(reward_weight) or reward_weight < 0:
            raise InvalidArgumentError(f"reward_weight must be a finite number from 0 on, got {reward_weight!r}")
        self.config = LimbicConfig(**found, reward_weight=float(reward_weight))
        table = ParamTable(limbic_tensor_spec(input_dim, hidden_dim, state_dim))
        initial, rng = zeros("a model", table.padded_size), SeededRng(check_seed(seed))
        for spec, part in table.slices(initial):
            std = _STD.get(spec.name)
            if std is not None:
                part[...] = rng.gaussian(spec.size, std).reshape(spec.shape)
        super().__init__(resolve_backend(backend), table, initial)
        self.loss, self.reward_weight = self._new((1,)), self._new((1,))
        self.backend.write(self.reward_weight, np.array([reward_weight], np.float32))

    @property
    def dims(self) -> tuple[int, int, int]:
        """(I, H, A), as in files."""
        return self.config.input_dim, self.config.hidden_dim, self.config.state_dim

    def init_hidden(self) -> F32:
        """A hidden state (H) at rest: zeros."""
        return np.zeros(self.config.hidden_dim, np.float32)

    def _check(self, what: str, rows: Any, width: int) -> F32:
        array = np.asarray(rows, np.float32)
        if array.ndim != 2 or array.shape[1] != width:
            raise InvalidArgumentError(f"{what}: expected {width} numbers, got shape {array.shape[1:]}")
        return array

    def inputs(self, x: Any, hidden: Any, state: Any) -> list[Buf]:
        """Fresh buffers x (N,I), h (N,H), s (N,A), uploaded; the caller frees them."""
        given = zip(("input", "hidden", "state"), (x, hidden, state), self.dims, strict=True)
        return [self.upload(array) for array in [self._check(*one) for one in given]]

    def upload(self, array: F32) -> Buf:
        """A fresh buffer with these values; the caller frees it."""
        buf = self.backend.alloc(array.shape)
        self.backend.write(buf, array)
        return buf

    @checked
    async def forward_async(self, x: npt.ArrayLike, hidden: npt.ArrayLike, state: npt.ArrayLike) -> LimbicOutput:
        """One step from x (I), hidden (H) and state (A). Raises InvalidArgumentError for wrong lengths."""
        bufs = self.inputs([x], [hidden], [state])
        try:
            for shape in ((1, self.config.hidden_dim), (1, self.config.state_dim), (1,)):
                bufs.append(self.backend.alloc(shape))
            ops.limbic_fwd(self.backend, (*bufs[:3], self.flat.whole), bufs[3:])
            new, delta, reward = await self.backend.read(*bufs[3:])
        finally:
            for buf in bufs:
                self.backend.free(buf)
        return LimbicOutput(np.asarray(new[0], np.float32), np.asarray(delta[0], np.float32), float(reward[0]))

    def forward(self, x: Any, hidden: Any, state: Any) -> LimbicOutput:
        """Blocking twin of `forward_async`."""
        return run_blocking(self.forward_async(x, hidden, state))

    def queue_backward(self, bufs: Sequence[Buf], targets: Buf) -> None:
        """Queue loss (1) += and gradients += for uploaded inputs and targets (N,A+2)."""
        inputs = (*bufs, self.flat.whole, targets, self.reward_weight)
        ops.limbic_bwd(self.backend, inputs, (self.loss, self.flat_grads.whole))

    def target_rows(self, deltas: Any, rewards: Any, weight: float) -> F32:
        """Targets (N,A+2) of `ops.limbic_bwd`: delta, reward, the weight of each sample."""
        change = self._check("delta target", deltas, self.config.state_dim)
        columns = np.asarray(rewards, np.float32).reshape(len(change), 1), np.full((len(change), 1), weight, np.float32)
        return np.concatenate([change, *columns], axis=1, dtype=np.float32)

    @checked
    async def backward_step_async(
        self,
        x: npt.ArrayLike,
        hidden: npt.ArrayLike,
        state: npt.ArrayLike,
        delta_target: npt.ArrayLike,
        reward_target: float,
    ) -> LimbicLoss:
        """Loss ½Σ(delta − target)² + ½·reward_weight·(reward − target)² of one sample; gradients +=."""
        targets = self.target_rows([delta_target], [reward_target], 1.0)
        step = await self.forward_async(x, hidden, state)
        bufs = [*self.inputs([x], [hidden], [state]), self.upload(targets)]
        try:
            self.backend.zero(self.loss)
            self.queue_backward(bufs[:3], bufs[3])
            (loss,) = await self.backend.read(self.loss)
        finally:
            for buf in bufs:
                self.backend.free(buf)
        return LimbicLoss(float(loss[0]), step.hidden)

    def backward_step(self, x: Any, hidden: Any, state: Any, delta_target: Any, reward_target: float) -> LimbicLoss:
        """Blocking twin of `backward_step_async`."""
        return run_blocking(self.backward_step_async(x, hidden, state, delta_target, reward_target))

    @checked
    async def export_weights_async(self, fp16: bool = False) -> bytes:
        """An LMBC checkpoint."""
        return write_lmbc(self.dims, await self.packed_weights_async(), fp16)

    def export_weights(self, fp16: bool = False) -> bytes:
        """Blocking twin of `export_weights_async`."""
        return run_blocking(self.export_weights_async(fp16))

    def load_weights(self, data: bytes) -> None:
        """Take the weights of an LMBC checkpoint of this shape. Raises FormatError or ConfigMismatchError."""
        _, packed = read_lmbc(data, self.dims)
        self.load_packed(packed)
