"""Weights of PyTorch (a state dict, a .pt or a .safetensors file) → EVL0.

python -m evermind_web.torch.convert model.pt model.evl0 --top-k 2 --fp16
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evermind_web.errors import FormatError
from evermind_web.formats.arch import Arch, evermind_tensor_spec, param_count_of
from evermind_web.formats.evl0 import write_evl0
from evermind_web.formats.safetensors_io import NamedTensor, read_metadata, safetensors_to_tensors
from evermind_web.interop.tensors import TOP_K_KEY, infer_arch_from_tensors
from evermind_web.params import F32, check_arch

PREFIXES = ("_orig_mod.", "module.")  # what torch.compile and DistributedDataParallel put before names


def state_from_packed(arch: Arch, packed: F32) -> dict[str, F32]:
    """The packed vector (P,) as arrays by name (views where the vector is writable float32)."""
    if packed.shape != (param_count_of(arch),):
        raise FormatError(f"expected {param_count_of(arch)} weights for {arch}, got shape {packed.shape}")
    state, start = {}, 0
    for spec in evermind_tensor_spec(arch):
        state[spec.name] = np.ascontiguousarray(packed[start : start + spec.size], np.float32).reshape(spec.shape)
        start += spec.size
    return state


def packed_from_state(arch: Arch, state: Mapping[str, Any]) -> F32:
    """One packed float32 vector (P,) of tensors or arrays by name; FormatError names one that is missing or differs."""
    parts = []
    for spec in evermind_tensor_spec(arch):
        values = state.get(spec.name)
        if values is None or tuple(values.shape) != spec.shape:
            got = "there is none" if values is None else f"got shape {list(values.shape)}"
            raise FormatError(f"tensor {spec.name!r}: expected shape {list(spec.shape)}, {got}")
        parts.append(_array(values).ravel())
    return np.concatenate(parts)


def to_evl0(
    state: Mapping[str, Any],
    top_k: int | None = None,
    fp16: bool = False,
    rename: Callable[[str], str | None] | None = None,
) -> bytes:
    """An EVL0 checkpoint of a state dict whose names are ours, or become so by `rename` (None leaves a tensor out).

    The shape of the model is inferred; top_k, which no shape tells, is 2 unless given. Tensors of other names are
    left out with a warning. FormatError names a tensor that is missing or has another shape.
    """
    found = {}
    for name, values in state.items():
        while name.startswith(PREFIXES):
            name = name.split(".", 1)[1]
        renamed = name if rename is None else rename(name)
        if renamed is not None:
            found[renamed] = values
    shapes = [NamedTensor(name, tuple(v.shape), np.empty(0)) for name, v in found.items() if hasattr(v, "shape")]
    arch = check_arch(infer_arch_from_tensors(shapes, top_k))
    extra = found.keys() - {spec.name for spec in evermind_tensor_spec(arch)}
    if extra:
        warnings.warn(f"no place for {len(extra)} tensors, such as {min(extra)!r}: left out", stacklevel=2)
    return write_evl0(arch, packed_from_state(arch, found), fp16)


def convert_file(source: Path, top_k: int | None = None, fp16: bool = False) -> bytes:
    """An EVL0 checkpoint of a .safetensors or PyTorch file (a state dict, or a dict with one under "model")."""
    if source.suffix == ".safetensors":
        data = source.read_bytes()
        stored = read_metadata(data).get(TOP_K_KEY, "")
        known = int(stored) if top_k is None and stored.isascii() and stored.isdigit() else top_k
        return to_evl0({t.name: np.asarray(t.data).reshape(t.shape) for t in safetensors_to_tensors(data)}, known, fp16)
    import torch  # here, so that safetensors convert without it

    state = torch.load(source, map_location="cpu", weights_only=True)
    return to_evl0(state.get("model", state), top_k, fp16)


def _array(values: Any) -> F32:
    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()
    return np.asarray(values, np.float32)


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser(prog="python -m evermind_web.torch.convert", description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--top-k", type=int, help="experts per token, which no shape tells (default 2)")
    parser.add_argument("--fp16", action="store_true", help="half the size")
    args = parser.parse_args()
    args.target.write_bytes(convert_file(args.source, args.top_k, args.fp16))


if __name__ == "__main__":
    main()
