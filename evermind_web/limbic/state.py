"""The affect state: its eight dimensions, their bounds, and the setpoint that a personality gives it (FORMAT 13)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evermind_web.checks import checked, is_number
from evermind_web.errors import InvalidArgumentError
from evermind_web.params import F32

# Brain regions that the modules of the model are named after; values are their ids in files.
REGION = {
    "amygdala": "amygdala",
    "hypothalamus": "hypothalamus",
    "thalamus": "thalamus",
    "basalGanglia": "basal_ganglia",
    "hippocampus": "hippocampus",
}
LIMBIC_DIM_NAMES = (
    "valence",
    "arousal",
    "driveCuriosity",
    "driveCaution",
    "driveEffort",
    "driveSocial",
    "attention",
    "exploration",
)
LIMBIC_DIM = {name: i for i, name in enumerate(LIMBIC_DIM_NAMES)}
LIMBIC_BOUNDS = ((-1.0, 1.0), *((0.0, 1.0),) * 7)
NEUTRAL_STATE = (0.0, 0.2, 0.5, 0.5, 0.8, 0.5, 0.7, 0.5)

# What each trait adds to each dimension, per unit of the trait's offset in -1…1, in the reference's order of addition.
# The setpoint of exploration starts from .4, not from the neutral .5: a personality of all-average traits is a
# little less exploring than no personality at all, as in the reference.
_TRAIT_EFFECTS: dict[str, tuple[float, tuple[tuple[str, float], ...]]] = {
    "valence": (0.0, (("regulatory_focus", 0.1), ("emotionality", -0.1))),
    "arousal": (0.2, (("emotionality", 0.2), ("extraversion", 0.1))),
    "driveCuriosity": (0.5, (("openness", 0.35), ("stimulation", 0.15))),
    "driveCaution": (
        0.5,
        (("conscientiousness", 0.3), ("risk_tolerance", -0.3), ("regulatory_focus", -0.2), ("emotionality", 0.15)),
    ),
    "driveEffort": (0.8, (("grit", 0.15), ("conscientiousness", 0.1))),
    "driveSocial": (0.5, (("extraversion", 0.35),)),
    "attention": (0.7, (("conscientiousness", 0.1),)),
    "exploration": (0.4, (("openness", 0.3), ("risk_tolerance", 0.25), ("regulatory_focus", 0.15))),
}
TRAITS = (
    "openness",
    "conscientiousness",
    "extraversion",
    "emotionality",
    "regulatory_focus",
    "risk_tolerance",
    "grit",
    "stimulation",
)


def neutral_state() -> F32:
    """A fresh float32 (8) at rest."""
    return np.array(NEUTRAL_STATE, np.float32)


@checked
def clamp_dim(i: int, v: float) -> float:
    """v within the bounds of dimension i; NaN becomes the lower one. InvalidArgumentError for an unknown dimension."""
    if not 0 <= i < len(LIMBIC_BOUNDS):
        raise InvalidArgumentError(f"dimension must be in 0…{len(LIMBIC_BOUNDS) - 1}, got {i}")
    low, high = LIMBIC_BOUNDS[i]
    return low if math.isnan(v) else min(max(float(v), low), high)


@checked
def clamp_state(s: NDArray[np.float32]) -> NDArray[np.float32]:
    """s (8), clamped in place, and returned."""
    _check(s)
    for i in range(len(LIMBIC_BOUNDS)):
        s[i] = clamp_dim(i, float(s[i]))
    return s


def state_to_record(s: NDArray[np.float32]) -> dict[str, float]:
    """{dimension name: value} of a state (8)."""
    _check(s)
    return {name: float(value) for name, value in zip(LIMBIC_DIM_NAMES, s, strict=True)}


@checked
def record_to_state(record: Mapping[str, float]) -> F32:
    """float32 (8): neutral, with the record's entries over it, clamped. Unknown names and NaN are refused."""
    state = neutral_state()
    for name, value in record.items():
        if name not in LIMBIC_DIM:
            raise InvalidArgumentError(f"no dimension is named {name!r}; they are {', '.join(LIMBIC_DIM_NAMES)}")
        state[LIMBIC_DIM[name]] = clamp_dim(LIMBIC_DIM[name], _finite(name, value))
    return state


@checked
def personality_setpoint(traits: Mapping[str, float] | None = None) -> F32:
    """float32 (8) that a personality comes back to. Traits are 0…100 (clamped), 50 where not given; None is neutral."""
    if traits is None:
        return neutral_state()
    offsets = dict.fromkeys(TRAITS, 0.0)
    for name, value in traits.items():
        if name not in offsets:
            raise InvalidArgumentError(f"no trait is named {name!r}; they are {', '.join(TRAITS)}")
        offsets[name] = (min(max(_finite(name, value), 0.0), 100.0) - 50) / 50
    setpoint = neutral_state()
    for dimension, (start, effects) in _TRAIT_EFFECTS.items():
        level = start
        for trait, effect in effects:
            level = level + effect * offsets[trait]
        setpoint[LIMBIC_DIM[dimension]] = clamp_dim(LIMBIC_DIM[dimension], level)
    return setpoint


def _check(s: NDArray[Any]) -> None:
    if np.shape(s) != (len(LIMBIC_BOUNDS),):
        raise InvalidArgumentError(f"a limbic state has {len(LIMBIC_BOUNDS)} numbers, got shape {np.shape(s)}")


def _finite(name: str, value: Any) -> float:
    if not is_number(value) or math.isinf(value):
        raise InvalidArgumentError(f"{name} must be a finite number, got {value!r}")
    return float(value)
