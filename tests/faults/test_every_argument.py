"""An object that fits nowhere, for each argument of every public call: an EvermindError, whatever the call is.

Found by inspection, so a new call or argument is tested as soon as it is public. Which values are wrong besides is in
`test_wrong_arguments`; what only this package makes and takes (buffers, batches, views) is not for users.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import evermind_web as ew
from evermind_web import limbic, lora, paging, sizing, store, tokenizer, training
from evermind_web.errors import EvermindError
from tests.faults.test_wrong_arguments import DATA, DELTA, IDS, MODEL, SESSION, TENSORS, TOKENIZER, small, with_adapter

pytestmark = pytest.mark.filterwarnings("ignore")

MODULES: tuple[ModuleType, ...] = (ew, limbic, lora, training, paging, store, tokenizer, sizing)
# What only this package makes; calls that take such things are no calls of users.
INNER = {"Buf", "Batch", "Views", "Window", "Item", "FlatVector", "ParamTable", "TensorSpec", "FlatAdamW"}
# Calls between the parts of this package that take plain values: of a step, of a device, of a decoder.
PLUMBING = {
    "set_hyper", "tape", "fitting", "inputs", "target_rows", "LimbicModel.upload", "lr_factor", "noise", "weights",
    "alone", "bias", "check_ids", "alpha_of", "rank_of", "read", "values", "CheckpointSource", "PagedEvermindLM",
}  # fmt: skip
MIXTURE, ADAPTED, LORA = ew.SharedExpertMoE(8, 8, 2, 1), with_adapter(), ew.EvermindLMLoRA(MODEL, 2)
ROW = np.full(8, 0.5, np.float32)
OUTPUT = MIXTURE.forward(ROW)
REPORT = ew.benchmark_model(MODEL, [IDS])
INSTANCES: dict[type, Any] = {
    type(one): one
    for one in (
        MODEL, MIXTURE, ADAPTED, LORA, TOKENIZER, SESSION, SESSION.model, LORA.adapter, ew.LoraConfig(r=2),
        ew.EvermindLMTrainer(small()), ew.MoETrainer(MIXTURE), limbic.LimbicTrainer(SESSION.model),
        ew.LoadBalanceAccumulator(2), ew.DynamicLossScaler(), ew.SeededRng(1), ew.GenerationConfig(),
        ew.TrainingOptions(), TOKENIZER.stream_decoder(), store.MemoryStore(), paging.MemoryBytes(DATA),
        paging.PagedEvermindLM.open(DATA, 2**20), ew.EvermindModelPackage.from_lm(MODEL, "n", "1", {}),
    )
}  # fmt: skip
RIGHT: dict[str, Any] = {
    "model": MODEL, "lm": MODEL, "moe": MIXTURE, "candidate": MODEL, "baseline": MODEL, "target": 0, "codec": TOKENIZER,
    "tokenizer": TOKENIZER, "corpus": "ab ab. abc ab.", "sequences": [IDS], "tokens": IDS, "ids": IDS, "prompt": IDS,
    "data": DATA, "base": DATA, "current": DATA, "diff": DATA, "delta": DELTA, "backup": DATA, "text": "ab",
    "arch": MODEL.config, "config": MODEL.config, "logits": [1.0], "k": 1, "cross_entropy": 1.0, "values": [1.0],
    "codes": [1], "scale": 1.0, "scales": [1.0], "num_channels": 1, "n": 1, "x": ROW, "code": 1, "tensors": TENSORS,
    "name": "a", "version": "1", "card": {}, "format": "gguf", "num_return_sequences": 1, "array": ROW, "row_size": 4,
    "mode": "int8", "seed": 1, "rows": 8, "cols": 8, "rank": 2, "vocab_size": 260, "window": 2, "state": ROW,
    "s": ROW, "i": 0, "v": 0.5, "record": {}, "hidden": np.zeros(4), "delta_target": ROW, "reward_target": 0.0,
    "samples": [(ROW, ROW)], "max_bytes": 2**20, "source": DATA, "weights": {"a": 1.0}, "packed": ROW, "eps": 0.0,
    "num_experts": 2, "route": OUTPUT.route, "probs": [0.5, 0.5], "f": [0.5, 0.5], "cache": OUTPUT.cache,
    "d_output": ROW, "index": 0, "overflow": False, "store": store.MemoryStore(), "kind": "base", "old": "a",
    "new": "b", "items": [], "url": "http://localhost", "path": "no such file", "start": 0, "count": 1, "step": 1,
    "total": 1, "g": np.zeros((8, 8)), "vocab": {}, "merges": [], "spec": {}, "max_len": 2, "purpose": "train",
    "limits": sizing.Limits(), "backend": MODEL.backend, "parts": [],
}  # fmt: skip
RIGHT_HERE: dict[tuple[str, str], Any] = {
    **{(call, "x"): 1.0 for call in ("float_to_fp16", "round_fp16")},
    **{(f"LimbicModel.{call}", "x"): np.zeros(4) for call in ("forward", "backward_step")},
    **{(call, "name"): "layers.0.norm_conv.weight" for call in ("EvermindLM.set_parameter",)},
    **{(f"{one}.{call}", "prompt"): "a" for one in ("EvermindLM", "LoraModel", "EvermindLMLoRA", "PagedEvermindLM")
       for call in ("generate_text", "stream_text")},
    ("AdamW", "target"): MODEL,
    ("MoETrainer", "model"): MIXTURE,
    ("LimbicSession", "model"): SESSION.model,
    ("LimbicSession.from_json", "model"): SESSION.model,
    ("LimbicTrainer", "model"): SESSION.model,
    ("compare_reports", "candidate"): REPORT,
    ("compare_reports", "baseline"): REPORT,
    ("affect_to_sampling", "config"): ew.GenerationConfig(),
    ("apply_row_delta", "base"): np.zeros(8),
    ("compute_row_delta", "base"): np.zeros(8),
    ("compute_row_delta", "current"): np.zeros(8),
}  # fmt: skip


class Nothing:
    """Fits nowhere."""


def is_record(cls: type) -> bool:
    """Whether it only holds what it is given: such values are looked at where they are used."""
    return hasattr(cls, "_fields") or (hasattr(cls, "__dataclass_fields__") and not hasattr(cls, "__post_init__"))


def public_calls() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public function, class and method with its name; methods are bound to an instance."""
    for module in MODULES:
        for name, value in vars(module).items():
            if name.startswith("_") or not getattr(value, "__module__", "").startswith(module.__name__):
                continue
            if inspect.isfunction(value):
                yield name, value
            elif inspect.isclass(value) and not issubclass(value, Exception) and value.__init__ is not object.__init__:
                if not is_record(value) and not inspect.isabstract(value) and not getattr(value, "_is_protocol", False):
                    yield name, value
                for member, raw in inspect.getmembers(INSTANCES.get(value, value)):
                    if member.startswith("_") or not (inspect.ismethod(raw) or value not in INSTANCES):
                        continue
                    if inspect.ismethod(raw):
                        yield f"{name}.{member}", raw


def cases() -> Iterator[Any]:
    """(call, name of the call, parameter)."""
    seen = set()
    for name, call in public_calls():
        parameters = inspect.signature(call).parameters.values()
        inner = {word for p in parameters for word in re.findall(r"\w+", str(p.annotation))} & INNER
        if inner or {name, name.split(".")[-1]} & PLUMBING or name in seen:
            continue
        seen.add(name)
        for parameter in parameters:
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                yield pytest.param(call, name, parameter.name, id=f"{name}-{parameter.name}")


def right(name: str, parameter: str) -> Any:
    """A value that this call takes there; what is not given by name is a mistake of this test."""
    plain = name.removesuffix("_async")
    return RIGHT_HERE[plain, parameter] if (plain, parameter) in RIGHT_HERE else RIGHT[parameter]


@pytest.mark.parametrize(("call", "name", "wrong"), list(cases()))
async def test_an_object_that_fits_nowhere_is_refused(call: Callable[..., Any], name: str, wrong: str) -> None:
    needed = {
        p.name: right(name, p.name)
        for p in inspect.signature(call).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name != wrong
    }
    for value in (Nothing(), [Nothing()]):
        with pytest.raises(EvermindError) as refused:
            await finished(call(**needed, **{wrong: value}))
        assert len(str(refused.value)) > 20


async def finished(result: Any) -> Any:
    """The result of a call, waited for where it has to be."""
    return await result if inspect.isawaitable(result) else result
