"""A training state as a file: safetensors with a JSON manifest and a CRC-32 a member."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from evermind_web import strict_json
from evermind_web.errors import ConfigMismatchError, FormatError
from evermind_web.formats.arch import Arch, param_count_of
from evermind_web.formats.crc import crc32
from evermind_web.formats.evl0 import MAGIC_BYTES, read_evl0
from evermind_web.formats.safetensors_io import read_arrays, write_arrays
from evermind_web.params import F32
from evermind_web.training.loop import Best, Position

FORMAT, VERSION = "evermind.training-state", 1
VECTORS = ("weights", "exp_avg", "exp_avg_sq")
BEST = "best_weights"  # only where an evaluation came before


@dataclass(frozen=True)
class TrainingState:
    """Architecture, packed vectors (weights and moments), applied steps, scaler, position, seed, best evaluation."""

    arch: Arch
    vectors: Mapping[str, F32]
    step: int = 0
    scaler: dict[str, Any] = field(default_factory=dict)
    position: Position = field(default_factory=Position)
    seed: int = 1
    best: Best = field(default_factory=Best)  # its vectors are not used


def write_state(state: TrainingState) -> bytes:
    """The file of a state."""
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "arch": state.arch._asdict(),
        "step": state.step,
        "scaler": state.scaler,
        "position": asdict(state.position),
        "seed": state.seed,
        "best": {"loss": state.best.loss if math.isfinite(state.best.loss) else None, "step": state.best.step}
        | {"without_gain": state.best.without_gain},
        "crc32": {name: crc32(np.asarray(vector, "<f4").tobytes()) for name, vector in state.vectors.items()},
    }
    tensors = [(name, (vector.size,), np.asarray(vector, "<f4")) for name, vector in state.vectors.items()]
    return write_arrays(tensors, {"manifest": json.dumps(manifest)})


def read_state(data: bytes, arch: Arch) -> TrainingState:
    """The state in a file, all of it verified. Raises FormatError, or ConfigMismatchError for a model of another shape.

    A bare EVL0 checkpoint gives a state without moments, with a warning.
    """
    if data[:4] == MAGIC_BYTES:
        _, packed = read_evl0(data, arch)
        warnings.warn("no optimizer state; starting fresh at step 0", stacklevel=3)
        return TrainingState(arch, {"weights": np.asarray(packed, np.float32)})
    arrays, metadata = read_arrays(data)
    manifest = _manifest(metadata)
    if manifest.get("arch") != arch._asdict():
        raise ConfigMismatchError(
            f"the training state is of a model {manifest.get('arch')}, this one is {arch._asdict()}"
        )
    vectors = {tensor.name: np.asarray(tensor.data, np.float32).ravel() for tensor in arrays}
    for name in (*VECTORS, *(name for name in vectors if name == BEST)):
        _check_vector(name, vectors, manifest, param_count_of(arch))
    try:
        position, scaler, best = _position(manifest["position"]), _scaler(manifest["scaler"]), _best(manifest)
        return TrainingState(arch, vectors, _count(manifest["step"]), scaler, position, _count(manifest["seed"]), best)
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"the training state's manifest is damaged ({error}); use an older copy") from None


def _position(stored: Mapping[str, Any]) -> Position:
    sums, counts = ([_number(value) for value in stored[name]] for name in ("sums", "counts"))
    if len(sums) != len(counts):
        raise ValueError(f"{len(sums)} sums and {len(counts)} counts")
    return Position(_count(stored["window"]), _count(stored["first_step"]), sums, counts, _count(stored["tokens"]))


def _best(manifest: Mapping[str, Any]) -> Best:
    """The best evaluation; older files have none."""
    stored = manifest.get("best", {"loss": None, "step": 0, "without_gain": 0})
    loss = math.inf if stored["loss"] is None else _number(stored["loss"])
    return Best(loss, _count(stored["step"]), _count(stored["without_gain"]))


def _scaler(stored: Mapping[str, Any]) -> dict[str, float | int]:
    """What `DynamicLossScaler.load_state` takes; {} where there was none."""
    if not stored:
        return {}
    counts = {name: _count(stored[name]) for name in ("overflows", "skipped", "streak")}
    scale = _number(stored["scale"])
    if not scale > 0:
        raise ValueError(f"the loss scale is {scale}")
    return {"scale": scale, **counts}


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise ValueError(f"{value!r} is no count")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no finite number")
    return float(value)


def _manifest(metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        manifest = strict_json.loads(metadata["manifest"])
    except (KeyError, ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise FormatError("not a training state: the manifest is missing; weights alone go to load_weights")
    if manifest.get("version") != VERSION:
        raise FormatError(f"training state of version {manifest.get('version')!r}; this release reads {VERSION}")
    return manifest


def _check_vector(name: str, vectors: Mapping[str, F32], manifest: Mapping[str, Any], size: int) -> None:
    if name not in vectors or vectors[name].size != size:
        raise FormatError(f"training state: {name} must have {size} values; the file is damaged")
    stored = manifest.get("crc32")
    if not isinstance(stored, dict) or crc32(np.asarray(vectors[name], "<f4").tobytes()) != stored.get(name):
        raise FormatError(f"training state: {name} is damaged (its CRC-32 does not match); use an older copy")
