"""The limbic affect model: an 8-dim state of mood and drives, and a small network that learns how it moves."""

from __future__ import annotations

from evermind_web.limbic.model import LimbicConfig as LimbicConfig
from evermind_web.limbic.model import LimbicModel as LimbicModel
from evermind_web.limbic.sampling import affect_to_sampling as affect_to_sampling
from evermind_web.limbic.session import LimbicSession as LimbicSession
from evermind_web.limbic.state import LIMBIC_BOUNDS as LIMBIC_BOUNDS
from evermind_web.limbic.state import LIMBIC_DIM as LIMBIC_DIM
from evermind_web.limbic.state import LIMBIC_DIM_NAMES as LIMBIC_DIM_NAMES
from evermind_web.limbic.state import NEUTRAL_STATE as NEUTRAL_STATE
from evermind_web.limbic.state import REGION as REGION
from evermind_web.limbic.state import clamp_dim as clamp_dim
from evermind_web.limbic.state import clamp_state as clamp_state
from evermind_web.limbic.state import neutral_state as neutral_state
from evermind_web.limbic.state import personality_setpoint as personality_setpoint
from evermind_web.limbic.state import record_to_state as record_to_state
from evermind_web.limbic.state import state_to_record as state_to_record
from evermind_web.limbic.trainer import LimbicTrainer as LimbicTrainer
