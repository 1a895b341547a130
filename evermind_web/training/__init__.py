"""Training: options, the loop over windows, the trainer of all weights, and saving where it stands."""

from __future__ import annotations

from evermind_web.batch import Example as Example
from evermind_web.batch import pack_windows as pack_windows
from evermind_web.training.loop import EvalInfo as EvalInfo
from evermind_web.training.loop import StepInfo as StepInfo
from evermind_web.training.options import TrainingOptions as TrainingOptions
from evermind_web.training.snapshot import Snapshot as Snapshot
from evermind_web.training.trainer import EvermindLMTrainer as EvermindLMTrainer
