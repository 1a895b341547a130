"""Merging into the weights, exactly undone; merging over packed bases."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from evermind_web.backend.base import Backend
from evermind_web.errors import InvalidArgumentError
from evermind_web.formats.evl0 import read_evl0
from evermind_web.lora import LoraConfig, LoraModel
from evermind_web.lora.base import pack_matrix, requantize
from evermind_web.model import EvermindLM
from tests.lora.common import EVERYTHING, TEXTS, adapted, apart, base_model, fill

EMB = LoraConfig(r=4, lora_alpha=8)


def test_merge_and_exact_unmerge(backend: Backend) -> None:
    base = base_model(backend)
    before, plain = base.export_weights(), base.forward(TEXTS[-1])
    fingerprint = base.fingerprint()
    model = LoraModel(base)
    model.add_adapter("a", EVERYTHING)
    fill(model, "a")
    with_adapter = model.forward(TEXTS[-1])
    assert apart(with_adapter, plain) > 0.1  # the adapter is not the identity
    assert model.merge_adapter().max_error == 0
    assert model.merged == "a"
    assert apart(base.forward(TEXTS[-1]), with_adapter) < 1e-5  # the model itself has it now
    assert apart(model.forward(TEXTS[-1]), with_adapter) < 1e-5  # and it is not applied twice
    assert base.export_weights() != before
    assert model.base.fingerprint == fingerprint  # adapters saved meanwhile name the base, not the merged weights
    for action in (lambda: model.set_adapter(None), model.merge_adapter, lambda: model.fit(TEXTS)):
        with pytest.raises(InvalidArgumentError, match="is merged; unmerge_adapter"):
            action()
    model.unmerge_adapter()
    assert base.export_weights() == before
    assert np.array_equal(model.forward(TEXTS[-1]), with_adapter)
    model.dispose()
    base.dispose()


def test_merged_checkpoint_changes_the_targets_only(backend: Backend) -> None:
    model = adapted(backend, LoraConfig(r=2, target_modules=["experts.0.w1"]))
    before = {p.name: p.data.copy() for p in base_model(backend).parameters()}
    after = {p.name: p.data for p in EvermindLM.from_checkpoint(model.merge(), backend).parameters()}
    changed = [name for name in before if not np.array_equal(before[name], after[name])]
    assert changed == ["layers.0.moe.experts.0.w1", "layers.1.moe.experts.0.w1"]
    model.dispose()


def test_ck6_merging_to_fp16_refuses_what_overflows_by_name(cpu: Backend) -> None:
    model = adapted(cpu, LoraConfig(r=2, target_modules=["shared.w2"]))
    half = EvermindLM.from_checkpoint(model.merge(fp16=True))
    assert apart(half.forward(TEXTS[0]), model.forward(TEXTS[0])) < 1e-2
    for part in model.adapter("a").parts.values():
        part.B[...] *= 1e6
    model.upload("a")
    with pytest.raises(InvalidArgumentError, match=r"layers.0.moe.shared.w2.*fp16"):
        model.merge(fp16=True)


@pytest.mark.parametrize("quant", ["fp16", "int8", "int8-row"])
def test_tr17_merging_over_a_packed_base_goes_to_float32(backend: Backend, quant: str) -> None:
    model = adapted(backend, EMB, quant)
    wanted = model.forward(TEXTS[-1])
    with pytest.raises(InvalidArgumentError, match=rf"base embedding is {quant}: merging into it would round"):
        model.merge_adapter()
    assert apart(EvermindLM.from_checkpoint(model.merge(), backend).forward(TEXTS[-1]), wanted) < 1e-5
    report = model.merge_adapter(requantize_base=True)
    step = {"fp16": 2e-3, "int8": 0.1, "int8-row": 0.1}[quant]
    assert 0 < report.max_error < step
    assert not report.vanished
    merged = model.forward(TEXTS[-1])
    assert not np.array_equal(merged, wanted)  # the rounding shows
    assert apart(merged, wanted) < (1e-2 if quant == "fp16" else 0.2)
    model.unmerge_adapter()
    assert np.array_equal(model.forward(TEXTS[-1]), wanted)
    model.dispose()


def test_tr17_a_delta_that_vanishes_is_reported() -> None:
    """A row with max 1.27, so a step of 0.01; a delta of 0.004 is below half a step."""
    base = pack_matrix(np.array([[1.27, 0.5, -0.25, 0.0]], np.float32), "int8-row")
    delta = np.array([[0.0, 0.004, -0.004, 0.004]], np.float32)
    with pytest.warns(UserWarning, match=r"lost the whole adapter: its largest value 0.004 is below half"):
        packed, report = requantize(base, delta, "int8-row")
    assert report.vanished
    assert report.max_error == pytest.approx(0.004, rel=1e-4)
    assert np.array_equal(packed.values(), base.values())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        packed, report = requantize(base, 2 * delta, "int8-row")
    assert not report.vanished
    assert report.max_error == pytest.approx(0.002, rel=1e-3)


def test_merge_of_a_checkpoint_base(backend: Backend) -> None:
    checkpoint = base_model(backend).export_weights()
    model = LoraModel.from_checkpoint(checkpoint, backend)
    assert model.merge() == checkpoint
    model.add_adapter("a", EVERYTHING)
    assert model.merge() == checkpoint  # a fresh adapter changes nothing
    fill(model, "a")
    assert read_evl0(model.merge())[1].tobytes() != read_evl0(checkpoint)[1].tobytes()
    model.merge_adapter()
    model.unmerge_adapter()
    model.set_adapter(None)
    assert model.merge() == checkpoint
    model.dispose()
