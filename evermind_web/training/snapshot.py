"""Where a fit stands, kept in host memory: what a lost device costs is the steps since the last one."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from evermind_web.flat_vector import FlatVector, read_all
from evermind_web.optim import FlatAdamW
from evermind_web.params import F32
from evermind_web.training.loop import Best, Position

SECONDS = 2.0  # between snapshots: reading one costs milliseconds


@dataclass(frozen=True)
class Snapshot:
    """The trained vector and its moments as they lie on the device, applied steps, position, loss scale.

    best: the best evaluation so far, and best_weights the vector that gave it, if it is kept. It holds for a trainer
    of the same model (or adapter) and options on any backend.
    """

    trained: F32
    m: F32
    v: F32
    applied: int
    position: Position
    scaler: dict[str, Any] = field(default_factory=dict)
    best: Best = field(default_factory=Best)
    best_weights: F32 | None = None

    @property
    def step(self) -> int:
        """Steps of the fit that are done."""
        return self.position.window

    @classmethod
    async def take(
        cls,
        trained: FlatVector,
        adam: FlatAdamW,
        position: Position,
        best: Best,
        scaler: dict[str, Any] | None = None,
    ) -> Snapshot:
        """Read it from the device; to be called where every queued step has been reported."""
        applied, at, scale = adam.step, deepcopy(position), dict(scaler or {})
        score, kept = replace(best, weights=None), [best.weights] if best.weights else []
        vector, m, v, *weights = await read_all(trained, adam.m, adam.v, *kept)
        return cls(vector, m, v, applied, at, scale, score, weights[0] if weights else None)

    def put_back(self, trained: FlatVector, adam: FlatAdamW) -> tuple[Position, Best]:
        """Write vectors and step count to a device; returns copies of the position and of the best evaluation."""
        for vector, values in ((trained, self.trained), (adam.m, self.m), (adam.v, self.v)):
            vector.write(values)
        adam.step = self.applied
        best = replace(self.best)
        if self.best_weights is not None:
            best.weights = trained.like()
            best.weights.write(self.best_weights)
        return deepcopy(self.position), best


OnSnapshot = Callable[[Snapshot], None]
