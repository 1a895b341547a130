"""Where a fit stands, kept in host memory: what a lost device costs is the steps since the last one."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from evermind_web.flat_vector import FlatVector, read_all
from evermind_web.optim import FlatAdamW
from evermind_web.params import F32
from evermind_web.training.loop import Position

SECONDS = 2.0  # between snapshots: reading one costs milliseconds


@dataclass(frozen=True)
class Snapshot:
    """The trained vector and its moments as they lie on the device, applied steps, position, loss scale.

    It holds for a trainer of the same model (or adapter) and options on any backend.
    """

    trained: F32
    m: F32
    v: F32
    applied: int
    position: Position
    scaler: dict[str, Any] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """Steps of the fit that are done."""
        return self.position.window

    @classmethod
    async def take(
        cls, trained: FlatVector, adam: FlatAdamW, position: Position, scaler: dict[str, Any] | None = None
    ) -> Snapshot:
        """Read it from the device; to be called where every queued step has been reported."""
        applied, at, scale = adam.step, deepcopy(position), dict(scaler or {})
        vector, m, v = await read_all(trained, adam.m, adam.v)
        return cls(vector, m, v, applied, at, scale)

    def put_back(self, trained: FlatVector, adam: FlatAdamW) -> Position:
        """Write vectors and step count to a device; returns a copy of the position."""
        for vector, values in ((trained, self.trained), (adam.m, self.m), (adam.v, self.v)):
            vector.write(values)
        adam.step = self.applied
        return deepcopy(self.position)


OnSnapshot = Callable[[Snapshot], None]
