"""How a mood changes the way text is drawn: a small documented mapping, the identity at the neutral state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from evermind_web.checks import checked
from evermind_web.generation import GenerationConfig
from evermind_web.limbic.state import LIMBIC_DIM, NEUTRAL_STATE, clamp_state


@checked
def affect_to_sampling(state: NDArray[np.float32], config: GenerationConfig) -> GenerationConfig:
    """`config` as a mood (8) changes it; exactly `config` at the neutral state. Greedy stays greedy.

    With Δ the distance from neutral: temperature × e^(0.8·Δexploration + 0.4·Δarousal); attention above neutral
    narrows top_p by 0.3·Δ; caution above neutral raises min_p by 0.2·Δ.
    """
    mood = clamp_state(np.array(state, np.float32))
    rest = np.array(NEUTRAL_STATE, np.float32)

    def above(name: str) -> float:
        return float(mood[LIMBIC_DIM[name]] - rest[LIMBIC_DIM[name]])

    return replace(
        config,
        temperature=config.temperature * float(np.exp(0.8 * above("exploration") + 0.4 * above("arousal"))),
        top_p=max(0.05, config.top_p - 0.3 * max(0.0, above("attention"))),
        min_p=min(0.95, config.min_p + 0.2 * max(0.0, above("driveCaution"))),
    )
