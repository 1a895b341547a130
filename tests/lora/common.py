"""What the files of this folder share: small models with lively weights, adapters with a delta, texts."""

from __future__ import annotations

import numpy as np

from evermind_web.backend.base import Backend
from evermind_web.lora import LoraConfig, LoraModel
from evermind_web.model import EvermindLM
from tests.cases import model_case
from tests.parity import make_model

CASE = model_case("ragged")  # V 37, D 12, 2 layers, K 3, H 20, 3 experts, top-2
TEXTS = CASE.sequences()
EVERYTHING = LoraConfig(
    r=4, lora_alpha=6, target_modules=("token_embedding", "conv", "router", "w1", "w2"),
    rank_pattern={"conv": 2, "router": 3}, alpha_pattern={"shared.w1": 3.0},
)  # fmt: skip


def base_model(backend: Backend) -> EvermindLM:
    """The base that all tests here use."""
    return make_model(backend, CASE)


def fill(model: LoraModel, name: str, seed: int = 7) -> None:
    """Give an adapter a delta on every target: a third of the size of the base's values."""
    rng = np.random.default_rng(seed)
    for part in model.adapter(name).parts.values():
        part.A[...] = rng.standard_normal(part.A.shape) / np.sqrt(part.cols)
        part.B[...] = 0.5 * rng.standard_normal(part.B.shape) / part.scale
    model.upload(name)


def adapted(backend: Backend, config: LoraConfig = EVERYTHING, base_quant: str = "none") -> LoraModel:
    """A base with one adapter, "a", that is not the identity."""
    model = LoraModel(base_model(backend), base_quant)
    model.add_adapter("a", config)
    fill(model, "a")
    return model


def apart(first: np.ndarray, second: np.ndarray) -> float:
    """Largest difference, relative to the largest value."""
    return float(np.abs(first - second).max() / np.abs(second).max())
