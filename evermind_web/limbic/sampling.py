"""How a mood changes the way text is drawn: a small documented mapping, the identity at the neutral state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evermind_web.limbic.state import LIMBIC_DIM, NEUTRAL_STATE, clamp_state


@dataclass(frozen=True, slots=True)
class Sampling:
    """The settings that affect reaches: temperature (0 stays greedy), top_p in (0, 1], min_p in [0, 1)."""

    temperature: float = 0.8
    top_p: float = 1.0
    min_p: float = 0.0


def affect_to_sampling(state: NDArray[np.float32], base: Sampling | None = None) -> Sampling:
    """`base` as a mood (8) changes it; exactly `base` at the neutral state.

    exploration and arousal raise the temperature (×e^(0.8·Δexploration + 0.4·Δarousal)); attention below neutral
    loosens nothing, above it narrows top_p (−0.3·Δ); caution above neutral raises min_p (+0.2·Δ). Δ is the distance
    from neutral.
    """
    chosen = base or Sampling()
    mood = clamp_state(np.array(state, np.float32))
    rest = np.array(NEUTRAL_STATE, np.float32)

    def above(name: str) -> float:
        return float(mood[LIMBIC_DIM[name]] - rest[LIMBIC_DIM[name]])

    warmth = float(np.exp(0.8 * above("exploration") + 0.4 * above("arousal")))
    return Sampling(
        temperature=chosen.temperature * warmth,
        top_p=min(1.0, max(0.05, chosen.top_p - 0.3 * max(0.0, above("attention")))),
        min_p=min(0.5, chosen.min_p + 0.2 * max(0.0, above("driveCaution"))),
    )
