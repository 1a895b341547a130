"""LimbicSession: a mood over time. Experiences move it, personality pulls it back, and it can be saved."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from evermind_web import strict_json
from evermind_web.checks import checked, number_in
from evermind_web.environment import run_blocking
from evermind_web.errors import FormatError, InvalidArgumentError
from evermind_web.limbic.model import LimbicModel, LimbicOutput
from evermind_web.limbic.state import (
    LIMBIC_DIM_NAMES,
    clamp_state,
    personality_setpoint,
    record_to_state,
    state_to_record,
)
from evermind_web.params import F32

VERSION = 1


class LimbicSession:
    """A state (8) that starts at the personality's setpoint.

    `experience` moves it by the model's predicted change times `gain`; `relax` moves it back toward the setpoint,
    by half every `half_life` steps.
    """

    @checked
    def __init__(
        self,
        model: LimbicModel,
        traits: Mapping[str, float] | None = None,
        gain: float = 0.1,
        half_life: float = 10.0,
    ) -> None:
        if model.config.state_dim != len(LIMBIC_DIM_NAMES):
            raise InvalidArgumentError(f"a session needs a model of {len(LIMBIC_DIM_NAMES)} state dimensions")
        if not half_life > 0:
            raise InvalidArgumentError(f"half_life must be above 0 steps, got {half_life!r}")
        number_in("gain", gain, -math.inf, math.inf)
        self.model, self.gain, self.half_life = model, float(gain), float(half_life)
        self.traits = None if traits is None else dict(traits)
        self.setpoint: F32 = personality_setpoint(traits)
        self.state: F32 = self.setpoint.copy()
        self.hidden: F32 = model.init_hidden()

    @checked
    async def experience_async(self, x: npt.ArrayLike) -> LimbicOutput:
        """Take in an experience x (I): the hidden state and the mood move; returns what the model said."""
        step = await self.model.forward_async(x, self.hidden, self.state)
        self.hidden = step.hidden
        self.state = np.asarray(clamp_state(np.asarray(self.state + self.gain * step.delta, np.float32)), np.float32)
        return step

    def experience(self, x: npt.ArrayLike) -> LimbicOutput:
        """Blocking twin of `experience_async`."""
        return run_blocking(self.experience_async(x))

    @checked
    def relax(self, steps: float = 1.0) -> F32:
        """Let `steps` pass without experience; returns the state."""
        left = np.float32(0.5 ** (steps / self.half_life))
        self.state = np.asarray(
            clamp_state(np.asarray(self.setpoint + left * (self.state - self.setpoint), np.float32)), np.float32
        )
        return self.state

    def affect(self) -> dict[str, float]:
        """The mood by dimension names."""
        return state_to_record(self.state)

    def to_json(self) -> str:
        """Everything but the model's weights, as versioned JSON."""
        fields = {"traits": self.traits, "gain": self.gain, "half_life": self.half_life, "state": self.affect()}
        return json.dumps({"version": VERSION, **fields, "hidden": [float(v) for v in self.hidden]})

    @classmethod
    @checked
    def from_json(cls, model: LimbicModel, text: str) -> LimbicSession:
        """A session as it was saved, on the same model. Raises FormatError for anything else."""
        try:
            data = strict_json.loads(text)
            if data["version"] != VERSION:
                raise FormatError(f"limbic session of version {data['version']!r}; this release reads {VERSION}")
            session = cls(model, data["traits"], data["gain"], data["half_life"])
            session.state = record_to_state(data["state"])
            hidden = np.asarray(data["hidden"], np.float32)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise FormatError(f"not a saved limbic session: {error}") from None
        if hidden.shape != session.hidden.shape:
            raise FormatError(f"the session has {hidden.size} hidden units, the model {session.hidden.size}")
        session.hidden = hidden
        return session
