"""The formulas of memory against a backend that counts bytes, and the suggestion that is made of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from evermind_web import EvermindLM, EvermindLMTrainer, Example, LoraConfig, LoraModel, pack_windows
from evermind_web.backend.base import Buf
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.errors import BackendError, InvalidArgumentError
from evermind_web.sizing import (
    DEFAULT_BINDING,
    LADDER,
    MIB,
    SCRATCH,
    Limits,
    activation_bytes,
    adapter_parameters,
    base_bytes,
    buffer_bytes,
    file_bytes,
    needed_bytes,
    personalize_bytes,
    problem,
    suggest_config,
    training_bytes,
    weight_bytes,
    writing_bytes,
)
from tests.counting import CountingBackend

ARCH = (700, 48, 3, 4, 96, 4, 2)
ROWS = 128
SMALL = 9000  # bytes that the formulas leave out: scalars, noise words, views' rounding


class ByteCounter(CountingBackend):
    """Bytes of the buffers that are alive (views have none), and the most that were."""

    def __init__(self) -> None:
        super().__init__(NumpyBackend())
        self.sizes: dict[int, int] = {}
        self.peak = 0

    def alloc(self, shape: Sequence[int], dtype: str = "float32") -> Buf:
        buf = super().alloc(shape, dtype)
        self.sizes[buf.id] = 4 * buf.size
        self.peak = max(self.peak, self.bytes)
        return buf

    def free(self, buf: Buf) -> None:
        super().free(buf)
        self.sizes.pop(buf.id, None)

    @property
    def bytes(self) -> int:
        return sum(self.sizes.values())


def windows() -> list[Example]:
    """Windows of which 8 make ROWS tokens."""
    return pack_windows(np.random.default_rng(0).integers(0, ARCH[0], 4 * ROWS + 1), ROWS // 8)


def model() -> tuple[EvermindLM, ByteCounter]:
    backend = ByteCounter()
    return EvermindLM(*ARCH, backend=backend), backend


def test_weights() -> None:
    lm, backend = model()
    assert weight_bytes(ARCH) <= backend.bytes <= weight_bytes(ARCH) + 200
    assert 4 * lm.num_parameters <= weight_bytes(ARCH) < 4.4 * lm.num_parameters
    assert len(lm.export_weights()) == file_bytes(ARCH, fp16=False)
    assert len(lm.export_weights(fp16=True)) == file_bytes(ARCH)


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("best", [False, True])
def test_training(checkpoint: bool, best: bool) -> None:
    lm, backend = model()
    trainer = EvermindLMTrainer(lm, accum_steps=8, checkpoint=checkpoint)
    held_out = windows()[:8] if best else []
    trainer.fit(windows(), validation=held_out)
    expected = training_bytes(ARCH, ROWS, checkpoint, best)
    if best and not checkpoint:
        # validation has a tape of its own, without the two rows of gradients
        expected += activation_bytes(ARCH, ROWS, shared_layers=True) - 4 * 2 * ROWS * ARCH[1]
    assert abs(backend.peak - expected) < SMALL, (backend.peak, expected)
    assert activation_bytes(ARCH, ROWS, True) < 0.6 * activation_bytes(ARCH, ROWS, False)


def test_writing() -> None:
    lm, backend = model()
    before = backend.bytes
    tokens = lm.stream([1], max_new_tokens=3)
    next(tokens)
    state = backend.bytes - before
    assert abs(state - (writing_bytes(ARCH) - weight_bytes(ARCH))) < SMALL
    tokens.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("quant", ["none", "fp16", "int8", "int8-row"])
@pytest.mark.parametrize("targets", ["token_embedding", "all-linear"])
def test_personalizing(quant: str, targets: str) -> None:
    lm, _ = model()
    backend = ByteCounter()
    lora = LoraModel.from_checkpoint(lm.export_weights(), backend, base_quant=quant)
    assert abs(backend.bytes - base_bytes(ARCH, quant)) < SMALL
    lora.add_adapter("a", LoraConfig(4, target_modules=targets))
    count = sum(part.num_params() for part in lora.adapter("a").parts.values())
    assert count == adapter_parameters(ARCH, 4, targets == "all-linear")
    lora.fit(windows(), accum_steps=8)
    expected = personalize_bytes(ARCH, 4, targets == "all-linear", quant, ROWS)
    targeted = len(lora.adapter("a").parts)
    assert abs(backend.peak - expected) < 0.02 * expected + SMALL + 2500 * targeted, (backend.peak, expected)


def test_names_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="base_quant"):
        base_bytes(ARCH, "int4")
    with pytest.raises(InvalidArgumentError, match="purpose"):
        needed_bytes(ARCH, "dream")


def test_the_suggestion_is_the_largest_that_fits() -> None:
    for memory in (64, 256, 1024, 4096):
        for binding in (16 * MIB, DEFAULT_BINDING, 2048 * MIB):
            limits = Limits(binding, 2 * binding, memory * MIB)
            found = suggest_config(limits, 4096)
            assert found.fits
            assert found.largest_buffer <= binding
            assert found.memory <= memory * MIB
            assert problem(tuple(found.config.values()), limits) == ""
            at = LADDER.index(tuple(found.config.values())[1:])
            if at + 1 < len(LADDER):
                assert problem((4096, *LADDER[at + 1]), limits) == found.limit != ""
    EvermindLM(**suggest_config(vocab_size=300, limits={"memory": 60 * MIB}).config)  # its keywords


def test_each_limit_is_named() -> None:
    plenty = 10**13
    assert suggest_config(Limits(6 * MIB, plenty, plenty)).limit.startswith("binding: 9 MiB needed, 6 MiB allowed")
    assert suggest_config(Limits(plenty, 6 * MIB, plenty)).limit.startswith("buffer")
    assert suggest_config(Limits(plenty, plenty, 100 * MIB)).limit.startswith("memory")
    assert suggest_config(Limits(plenty, plenty, plenty, 5 * MIB)).limit.startswith("download")
    assert suggest_config(Limits(plenty, plenty, plenty)).limit == ""
    tiny = suggest_config(Limits(MIB // 2, MIB, MIB))
    assert not tiny.fits
    assert "binding" in tiny.limit


def test_writing_takes_less_than_training() -> None:
    limits = Limits(2048 * MIB, 4096 * MIB, 1024 * MIB)
    sizes = [suggest_config(limits, purpose=p).parameters for p in ("train", "personalize", "write")]
    assert sizes == sorted(set(sizes))
    assert needed_bytes(ARCH, "write") < SCRATCH + 1.1 * weight_bytes(ARCH)


def test_the_largest_buffer_is_the_least_that_holds_a_model() -> None:
    backend = CountingBackend(NumpyBackend())
    for arch, nbytes in ((ARCH, 188_928), ((20_000, 32, 1, 3, 8, 2, 1), 2_560_000)):
        assert buffer_bytes(arch) == nbytes
        backend.max_buffer_bytes = nbytes
        EvermindLM(*arch, backend=backend)
        backend.max_buffer_bytes = nbytes - 1
        with pytest.raises(BackendError, match=f"needs {nbytes} bytes in one buffer"):
            EvermindLM(*arch, backend=backend)


def test_limits_of_a_backend() -> None:
    assert Limits.of_backend(NumpyBackend()).max_binding == 2048 * MIB
    backend = NumpyBackend()
    backend.max_buffer_bytes = 77 * MIB
    assert Limits.of_backend(backend, memory=5).max_buffer == 77 * MIB
    assert Limits.of_backend(backend, memory=5).memory == 5
