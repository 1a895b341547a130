"""Low-rank adapters: on the tied embedding as the reference has them, or several by name on any matrices."""

from __future__ import annotations

from evermind_web.lora.adapter import DEFAULT_SEED as DEFAULT_SEED
from evermind_web.lora.adapter import LoRAAdapter as LoRAAdapter
from evermind_web.lora.base import BASE_QUANTS as BASE_QUANTS
from evermind_web.lora.base import MergeReport as MergeReport
from evermind_web.lora.base import QuantizedBase as QuantizedBase
from evermind_web.lora.base import quantize_base as quantize_base
from evermind_web.lora.config import LoraConfig as LoraConfig
from evermind_web.lora.model import LoraModel as LoraModel
from evermind_web.lora.single import EvermindLMLoRA as EvermindLMLoRA
