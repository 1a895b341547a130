"""The page's mood: what a reader's feedback does to the eight dimensions, and they to the way text is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from evermind_web.backend.request import request_backend
from evermind_web.errors import InvalidArgumentError
from evermind_web.generation import GenerationConfig
from evermind_web.limbic import LimbicModel, LimbicSession, affect_to_sampling
from evermind_web.limbic.state import (
    LIMBIC_DIM,
    NEUTRAL_STATE,
    TRAITS,
    clamp_state,
    personality_setpoint,
    state_to_record,
)
from evermind_web.limbic.trainer import LimbicTrainer

# What each kind of feedback should change, in tanh's range; the model learns these and what lies between.
EXPERIENCES: dict[str, dict[str, float]] = {
    "praise": {"valence": 0.8, "driveSocial": 0.4, "exploration": 0.5, "driveCaution": -0.4},
    "blame": {"valence": -0.8, "driveCaution": 0.7, "exploration": -0.6, "attention": 0.5},
    "surprise": {"arousal": 0.8, "driveCuriosity": 0.7, "exploration": 0.5},
    "boredom": {"arousal": -0.5, "driveCuriosity": -0.4, "driveEffort": -0.5, "attention": -0.6, "exploration": 0.3},
}
GAIN = 0.35


class Mood:
    """Make it with `await Mood.learned()`; it lives on NumPy, since it is tiny."""

    def __init__(self, model: LimbicModel) -> None:
        self._session = LimbicSession(model, {}, gain=GAIN)

    @classmethod
    async def learned(cls) -> Mood:
        """A model that was taught what the kinds of feedback mean."""
        model = LimbicModel(input_dim=len(EXPERIENCES), hidden_dim=12, backend=await request_backend("numpy"))
        rest, inputs = np.array(NEUTRAL_STATE, np.float32), np.eye(len(EXPERIENCES), dtype=np.float32)
        samples = []
        for x, wanted in zip(inputs, EXPERIENCES.values(), strict=True):
            change = np.zeros(len(rest), np.float32)
            for dimension, value in wanted.items():
                change[LIMBIC_DIM[dimension]] = value
            for state in (rest, rest * 0.5, np.minimum(rest + 0.3, 1)):
                samples.append((x, state, change, wanted.get("valence", 0.0)))
        await LimbicTrainer(model).train_async(samples, learning_rate=0.05, epochs=120)
        return cls(model)

    def set_traits(self, traits: dict[str, float]) -> None:
        """Another personality (traits 0…100): the setpoint moves, and the mood with it."""
        session = self._session
        setpoint = personality_setpoint(traits)
        session.state = clamp_state(np.asarray(session.state + setpoint - session.setpoint, np.float32))
        session.traits, session.setpoint = dict(traits), setpoint

    async def feel(self, experience: str) -> None:
        """Take in one of EXPERIENCES; "rest" lets time pass instead."""
        if experience == "rest":
            self._session.relax(5)
            return
        names = list(EXPERIENCES)
        if experience not in names:
            raise InvalidArgumentError(f"an experience is one of {', '.join(names)} or rest, got {experience!r}")
        await self._session.experience_async(np.eye(len(names), dtype=np.float32)[names.index(experience)])

    def applied(self, config: GenerationConfig) -> GenerationConfig:
        """`config` as the mood changes it."""
        return affect_to_sampling(self._session.state, config)

    def describe(self, config: GenerationConfig) -> dict[str, Any]:
        """State, setpoint, traits, and what `config` becomes."""
        now = self.applied(config)
        return {
            "state": [[name, value] for name, value in self._session.affect().items()],
            "setpoint": [[name, value] for name, value in state_to_record(self._session.setpoint).items()],
            "traits": [[name, (self._session.traits or {}).get(name, 50)] for name in TRAITS],
            "sampling": {"temperature": now.temperature, "top_p": now.top_p, "min_p": now.min_p},
        }
