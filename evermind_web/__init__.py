"""Train, personalise and run a small language model inside a browser tab (or, unchanged, in CPython)."""

from __future__ import annotations

from evermind_web._version import __version__
from evermind_web.backend.request import resolve_backend, set_default_backend
from evermind_web.errors import EvermindError
from evermind_web.flat_model import Parameter
from evermind_web.lora import EvermindLMLoRA, LoRAAdapter, quantize_base
from evermind_web.mixture import LoadBalanceAccumulator, MoETrainer, SharedExpertMoE
from evermind_web.model import EvermindLM
from evermind_web.optim import AdamW, DynamicLossScaler
from evermind_web.rng import SeededRng
from evermind_web.training import EvermindLMTrainer, StepInfo

__all__ = [
    "AdamW",
    "DynamicLossScaler",
    "EvermindError",
    "EvermindLM",
    "EvermindLMLoRA",
    "EvermindLMTrainer",
    "LoRAAdapter",
    "LoadBalanceAccumulator",
    "MoETrainer",
    "Parameter",
    "SeededRng",
    "SharedExpertMoE",
    "StepInfo",
    "__version__",
    "quantize_base",
    "resolve_backend",
    "set_default_backend",
]
