"""After `dispose`: every call says so and takes no memory, and what others hold is as it was."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest

import evermind_web as ew
from evermind_web import limbic, paging
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.errors import BackendError
from tests.faults.test_every_argument import finished, right
from tests.faults.test_wrong_arguments import DATA, IDS, MODEL

pytestmark = pytest.mark.filterwarnings("ignore")

# What needs no device, and what the parts of the package call of each other.
OTHERS = {
    "check_codec", "check_rows", "check_sequence", "dispose", "init_hidden", "footprint", "stop", "serialize_adapter",
    "serialize_adapter_async", "fitting", "target_rows", "views_async", "accumulate", "queue_gradients", "parts",
    "mixture", "tape", "free_tapes", "queue_backward", "set_hyper", "evaluate_items", "inputs", "alone",
}  # fmt: skip


def small(backend: NumpyBackend) -> ew.EvermindLM:
    return ew.EvermindLM(260, 8, 1, 2, 8, 2, 1, seed=1, backend=backend)


def adapted(backend: NumpyBackend) -> ew.LoraModel:
    model = ew.LoraModel.from_checkpoint(DATA, backend, base_quant="int8")
    model.add_adapter("a", ew.LoraConfig(r=2))
    model.forward(IDS)
    return model


MAKE: dict[str, Callable[[NumpyBackend], Any]] = {
    "EvermindLM": small,
    "EvermindLMLoRA": lambda backend: ew.EvermindLMLoRA(small(backend), 2),
    "LoraModel": adapted,
    "SharedExpertMoE": lambda backend: ew.SharedExpertMoE(8, 8, 2, 1, backend=backend),
    "LimbicModel": lambda backend: limbic.LimbicModel(4, 4, backend=backend),
    "PagedEvermindLM": lambda backend: paging.PagedEvermindLM.open(DATA, 2**20, backend),
}
FITTING: dict[str, Any] = {
    "packed": lambda one: np.zeros(one.num_parameters, np.float32),
    "data": lambda one: one.export_weights(),
    "array": lambda one: one.parameters()[-1].data.copy(),
    "name": lambda one: one.parameters()[-1].name,
    "delta": lambda one: one.export_delta(DATA),
    "rows": lambda one: [np.ones(8)],
}


OF_ADAPTERS: dict[str, Any] = {"data": ew.EvermindLMLoRA(MODEL, 2).serialize_adapter()}


def cases() -> Iterator[Any]:
    for cls, make in MAKE.items():
        for name, raw in inspect.getmembers(make(NumpyBackend()), inspect.ismethod):
            if not name.startswith("_") and name not in OTHERS and not inspect.isclass(raw.__self__):
                yield pytest.param(cls, name, id=f"{cls}.{name}")


@pytest.mark.parametrize(("cls", "method"), list(cases()))
async def test_what_was_disposed_says_so_and_takes_nothing(cls: str, method: str) -> None:
    backend = NumpyBackend()
    one = MAKE[cls](backend)
    needed = {}
    for p in inspect.signature(getattr(one, method)).parameters.values():
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD:
            own = p.name in FITTING and hasattr(one, "num_parameters")
            needed[p.name] = FITTING[p.name](one) if own else OF_ADAPTERS.get(p.name, right(f"{cls}.{method}", p.name))
    for _ in range(2):  # a second time does nothing
        one.dispose()
    held = len(backend._arrays)
    with pytest.raises(BackendError, match=r"was disposed.*make a new one"):
        await begun(getattr(one, method)(**needed))
    assert len(backend._arrays) == held


async def begun(result: Any) -> Any:
    """The result of a call, waited for, or the first item of a stream."""
    if isinstance(result, AsyncIterator):
        return await anext(result)
    return next(result) if isinstance(result, Iterator) else await finished(result)


def over_a_disposed_model() -> dict[str, Callable[[], Any]]:
    model, mood = small(NumpyBackend()), limbic.LimbicSession(limbic.LimbicModel(4, 4))
    trainer, started = ew.EvermindLMTrainer(model), model.stream(IDS, max_new_tokens=9)
    next(started)
    for gone in (model, mood.model):
        gone.dispose()
    return {
        "fit": lambda: trainer.fit([IDS]),
        "save_state": trainer.save_state,
        "EvermindLMTrainer": lambda: ew.EvermindLMTrainer(model).fit([IDS]),
        "EvermindLMLoRA": lambda: ew.EvermindLMLoRA(model, 2).forward(IDS),
        "LoraModel": lambda: ew.LoraModel(model).forward(IDS),
        "a stream that had begun": lambda: next(started),
        "LimbicTrainer": lambda: limbic.LimbicTrainer(mood.model),
        "LimbicSession.experience": lambda: mood.experience(np.ones(4)),
    }


@pytest.mark.parametrize("name", list(over_a_disposed_model()))
def test_what_stands_on_a_disposed_model_says_so(name: str) -> None:
    with pytest.raises(BackendError, match=r"was disposed.*make a new one"):
        over_a_disposed_model()[name]()


def test_the_base_of_disposed_adapters_stays() -> None:
    before = MODEL.forward(IDS)
    lora, adapted = ew.EvermindLMLoRA(MODEL, 2), ew.LoraModel(MODEL)
    adapted.add_adapter("a", ew.LoraConfig(r=2))
    for one in (lora, adapted):
        one.forward(IDS)
        one.dispose()
    assert np.array_equal(MODEL.forward(IDS), before)
