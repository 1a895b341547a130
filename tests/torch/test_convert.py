"""Weights of PyTorch to EVL0: state dicts of twins, wrapped, renamed, halved; files; what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from evermind_web import EvermindLM
from evermind_web.errors import EvermindError, FormatError
from evermind_web.formats.evl0 import read_evl0
from evermind_web.interop.export import export_safetensors
from evermind_web.torch import EvermindModule, packed_from_state, to_evl0
from evermind_web.torch.convert import convert_file, state_from_packed

SHAPE = (41, 12, 2, 3, 16, 3, 1)


@pytest.fixture
def module() -> EvermindModule:
    return EvermindModule(*SHAPE, seed=5)


@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "module.", "_orig_mod.module.", "module._orig_mod."])
def test_a_state_dict_becomes_the_modules_own_checkpoint(module: EvermindModule, prefix: str) -> None:
    state = {prefix + name: values for name, values in module.state_dict().items()}
    assert to_evl0(state, top_k=1) == module.to_evl0()
    assert to_evl0(state, top_k=1, fp16=True) == module.to_evl0(fp16=True)


def test_top_k_is_two_unless_given(module: EvermindModule) -> None:
    arch, _ = read_evl0(to_evl0(module.state_dict()))
    assert arch == module.config._replace(top_k=2)


def test_names_of_others_are_renamed_and_the_rest_left_out(module: EvermindModule) -> None:
    state = {"net." + name.replace("layers", "blocks"): values for name, values in module.state_dict().items()}
    state["rotary.cache"] = torch.zeros(3)

    def rename(name: str) -> str | None:
        return name.removeprefix("net.").replace("blocks", "layers") if name.startswith("net.") else None

    assert to_evl0(state, 1, rename=rename) == module.to_evl0()
    with pytest.warns(UserWarning, match=r"no place for 1 tensors, such as 'rotary\.cache'"):
        kept = to_evl0(module.state_dict() | {"rotary.cache": torch.zeros(3)}, 1)
    assert kept == module.to_evl0()


def test_half_precision_tensors_are_widened_exactly(module: EvermindModule) -> None:
    state = {name: values.to(torch.bfloat16) for name, values in module.state_dict().items()}
    _, packed = read_evl0(to_evl0(state, 1))
    expected = torch.cat([values.float().flatten() for values in state.values()])
    np.testing.assert_array_equal(packed, expected.numpy())


def test_what_is_missing_or_misshapen_is_named(module: EvermindModule) -> None:
    name = "layers.1.moe.shared.b2"
    state = dict(module.state_dict())
    with pytest.raises(FormatError, match=r"layers\.1\.moe\.shared\.b2.*got shape \[13\]"):
        packed_from_state(module.config, state | {name: torch.zeros(13)})
    del state[name]
    with pytest.raises(FormatError, match=r"layers\.1\.moe\.shared\.b2.*there is none"):
        packed_from_state(module.config, state)
    with pytest.raises(EvermindError):
        to_evl0(state, 1)
    with pytest.raises(FormatError, match="weights"):
        state_from_packed(module.config, np.zeros(7, np.float32))


def test_values_that_fp16_cannot_hold_are_refused_by_name(module: EvermindModule) -> None:
    state = dict(module.state_dict())
    state["layers.0.conv.weight"] = torch.full((12, 3), 1e6)
    with pytest.raises(EvermindError, match=r"layers\.0\.conv\.weight"):
        to_evl0(state, 1, fp16=True)


def test_files_convert_and_say_the_same(module: EvermindModule, tmp_path: Path) -> None:
    plain, wrapped, safe = (tmp_path / name for name in ("plain.pt", "wrapped.pt", "model.safetensors"))
    torch.save(module.state_dict(), plain)
    torch.save({"model": module.state_dict(), "step": 3}, wrapped)
    lm = EvermindLM.from_checkpoint(module.to_evl0())
    safe.write_bytes(export_safetensors(lm))  # which knows top_k
    assert convert_file(plain, 1) == convert_file(wrapped, 1) == convert_file(safe) == module.to_evl0()
    target = tmp_path / "model.evl0"
    words = [sys.executable, "-m", "evermind_web.torch.convert", str(plain), str(target), "--top-k=1", "--fp16"]
    subprocess.run(words, check=True, timeout=120)
    assert target.read_bytes() == lm.export_weights(fp16=True)


def test_a_file_with_code_in_it_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "evil.pt"
    torch.save({"model": {"x": print}}, path)
    with pytest.raises(Exception, match=r"weights_only|Unsupported"):
        convert_file(path)
