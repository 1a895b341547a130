"""Adapters as files in PEFT's layout: adapter_config.json and adapter_model.safetensors.

Keys, with the tensor's name without ".weight" as the module:

    base_model.model.<module>.lora_A.weight (R,cols), .lora_B.weight (rows,R)    delta = scale · B A
    base_model.model.token_embedding.lora_embedding_A (R,V), .lora_embedding_B (D,R)    delta = scale · (B A)ᵀ

so the embedding's matrices are our B and A transposed. The head is tied to the embedding and has no adapter of its
own: one under "lm_head" is left out where it says the same as the embedding's, and refused where it does not.
adapter_config.json has, besides PEFT's own keys, `base_fingerprint`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evermind_web import strict_json
from evermind_web.checks import check_finite
from evermind_web.errors import ConfigMismatchError, FormatError, InvalidArgumentError
from evermind_web.formats.safetensors_io import NamedTensor, safetensors_to_tensors, tensors_to_safetensors
from evermind_web.lora.adapter import LoRAAdapter
from evermind_web.lora.config import EMBEDDING, LoraConfig, module_of
from evermind_web.params import F32, ParamTable
from evermind_web.quant import count_lost_to_zero, quantize_fp16

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
NO_FINGERPRINT = "this adapter does not say which base it was trained on; only its shape was checked"
UNSUPPORTED = {  # settings of PEFT that change what an adapter computes, and their value where they do not
    "bias": "none", "use_dora": False, "modules_to_save": None, "fan_in_fan_out": False, "lora_bias": False,
    "layer_replication": None, "use_qalora": False, "trainable_token_indices": None, "target_parameters": None,
}  # fmt: skip


def check_fingerprint(recorded: str, found: str, force: bool) -> None:
    """ConfigMismatchError unless the adapter's base is this one, or force is set."""
    if not force and recorded != found:
        raise ConfigMismatchError(
            f"the adapter was trained on base {recorded[:12]}…, this base is {found[:12]}…; "
            "load that base, or pass force=True to use it all the same"
        )


def check_shape(name: str, adapter: tuple[int, int], base: tuple[int, ...]) -> None:
    """ConfigMismatchError naming the tensor unless the adapter's matrix has the shape of the base's."""
    if adapter != tuple(base):
        raise ConfigMismatchError(
            f"{name}: adapter {adapter}, base {tuple(base)}; load the base that the adapter was trained on"
        )


# ── writing ──────────────────────────────────────────────────────────────────
def write_adapter(
    config: LoraConfig, parts: Mapping[str, LoRAAdapter], base_fingerprint: str, fp16: bool = False
) -> dict[str, bytes]:
    """The two files of an adapter, by name."""
    tensors = [tensor for name, part in parts.items() for tensor in _tensors(name, part)]
    if fp16:
        lost = sum(count_lost_to_zero(t.data, quantize_fp16(t.data, t.name)) for t in tensors)
        if lost:
            total = sum(t.data.size for t in tensors)
            warnings.warn(
                f"{lost} of {total} adapter values became 0 in fp16; save as float32 to keep them", stacklevel=2
            )
    text = json.dumps(_settings(config, parts, base_fingerprint), indent=2)
    return {CONFIG_FILE: text.encode(), WEIGHTS_FILE: tensors_to_safetensors(tensors, fp16, {"format": "pt"})}


def _tensors(name: str, part: LoRAAdapter) -> list[NamedTensor]:
    module = PREFIX + module_of(name)
    if name == EMBEDDING:
        pair = {"lora_embedding_A": part.B.T, "lora_embedding_B": part.A.T}
    else:
        pair = {"lora_A.weight": part.A, "lora_B.weight": part.B}
    return [NamedTensor(f"{module}.{kind}", m.shape, np.ascontiguousarray(m)) for kind, m in pair.items()]


def _settings(config: LoraConfig, parts: Mapping[str, LoRAAdapter], base_fingerprint: str) -> dict[str, Any]:
    """PEFT's keys. Targets, ranks and alphas are written out by full name, so that they mean the same everywhere."""
    ranks = {module_of(n): p.rank for n, p in parts.items() if p.rank != config.r}
    alphas = {module_of(n): p.alpha for n, p in parts.items() if p.alpha != config.alpha}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "base_fingerprint": base_fingerprint,
        "r": config.r,
        "lora_alpha": config.alpha,
        "target_modules": [module_of(name) for name in parts],
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "use_rslora": config.use_rslora,
        "lora_dropout": config.lora_dropout,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
    }


# ── reading ──────────────────────────────────────────────────────────────────
def read_blob(data: bytes, table: ParamTable) -> tuple[LoraConfig, dict[str, LoRAAdapter], None]:
    """An adapter from the reference's "LORA" file. Raises FormatError or ConfigMismatchError."""
    adapter = LoRAAdapter.deserialize(data)
    check_shape(EMBEDDING, (adapter.rows, adapter.cols), table.by_name[EMBEDDING].shape)
    return LoraConfig(adapter.rank, adapter.alpha, (module_of(EMBEDDING),)), {EMBEDDING: adapter}, None


def read_adapter(
    files: Mapping[str, bytes], table: ParamTable
) -> tuple[LoraConfig, dict[str, LoRAAdapter], str | None]:
    """Settings, tensors and the base's fingerprint (None: not recorded) of the two files, all checked.

    Raises FormatError for what is missing, damaged or of another kind, ConfigMismatchError for other shapes than the
    base's, InvalidArgumentError for a rank that no adapter of this base can have.
    """
    missing = [name for name in (CONFIG_FILE, WEIGHTS_FILE) if name not in files]
    if missing:
        raise FormatError(f"an adapter is two files, {CONFIG_FILE} and {WEIGHTS_FILE}; missing: {', '.join(missing)}")
    settings = _parse(files[CONFIG_FILE])
    config = _config(settings)
    matrices = {t.name: t.data for t in safetensors_to_tensors(files[WEIGHTS_FILE])}
    _drop_tied_head(matrices)
    parts = config.adapters(table)
    for name, part in parts.items():
        _fill(name, part, matrices)
    if matrices:
        raise FormatError(f"{WEIGHTS_FILE} has tensors that target_modules lacks: {', '.join(sorted(matrices))}")
    recorded = settings.get("base_fingerprint")
    if not isinstance(recorded, str | None):
        raise FormatError(f"{CONFIG_FILE}: base_fingerprint must be a text, got {recorded!r}; save the adapter again")
    return config, parts, recorded


def _parse(data: bytes) -> dict[str, Any]:
    try:
        settings = strict_json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{CONFIG_FILE} is no valid JSON ({error}); save the adapter again") from None
    if not isinstance(settings, dict) or settings.get("peft_type") != "LORA":
        kind = settings.get("peft_type") if isinstance(settings, dict) else type(settings).__name__
        raise FormatError(f"{CONFIG_FILE}: expected an object with peft_type LORA, got {kind!r}")
    for key, off in UNSUPPORTED.items():
        if settings.get(key, off) not in (off, None):
            raise FormatError(f"{CONFIG_FILE}: {key} = {settings[key]!r} is not supported, only {off!r}")
    if not isinstance(settings.get("use_rslora"), bool | None):
        raise FormatError(f"{CONFIG_FILE}: use_rslora must be true or false, got {settings['use_rslora']!r}")
    return settings


def _config(settings: dict[str, Any]) -> LoraConfig:
    wanted = settings.get("target_modules")
    if not isinstance(wanted, str) and not (isinstance(wanted, list) and all(isinstance(w, str) for w in wanted)):
        raise FormatError(f"{CONFIG_FILE}: target_modules must be a list of names, got {wanted!r}")
    for key in ("rank_pattern", "alpha_pattern"):
        if not isinstance(settings.get(key) or {}, dict):
            raise FormatError(f"{CONFIG_FILE}: {key} must be an object, got {settings[key]!r}")
    try:
        return LoraConfig(
            r=settings.get("r", 8),
            lora_alpha=settings.get("lora_alpha", 8),  # PEFT's default
            target_modules=wanted,
            rank_pattern=settings.get("rank_pattern") or {},
            alpha_pattern=settings.get("alpha_pattern") or {},
            use_rslora=bool(settings.get("use_rslora", False)),
            lora_dropout=settings.get("lora_dropout", 0.0),
        )
    except InvalidArgumentError as error:
        raise FormatError(f"{CONFIG_FILE}: {error}") from None


def _fill(name: str, part: LoRAAdapter, matrices: dict[str, F32]) -> None:
    """Take A and B of one target out of `matrices`, their shapes checked."""
    module = PREFIX + module_of(name)
    if name == EMBEDDING:
        b, a = (_take(f"{module}.{kind}", matrices).T for kind in ("lora_embedding_A", "lora_embedding_B"))
    else:
        a, b = (_take(f"{module}.{kind}", matrices) for kind in ("lora_A.weight", "lora_B.weight"))
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
        raise FormatError(f"{module}: A {a.shape} and B {b.shape} do not make a matrix")
    check_shape(module_of(name), (b.shape[0], a.shape[1]), (part.rows, part.cols))
    if a.shape[0] != part.rank:
        raise FormatError(f"{module}: rank {a.shape[0]} in {WEIGHTS_FILE}, {part.rank} in {CONFIG_FILE}")
    part.A[...], part.B[...] = a, b


def _take(key: str, matrices: dict[str, F32]) -> NDArray[np.float32]:
    if key not in matrices:
        raise FormatError(f"{WEIGHTS_FILE} has no {key}; save the adapter again")
    check_finite(key, matrices[key], FormatError)
    return matrices.pop(key)


def _drop_tied_head(matrices: dict[str, F32]) -> None:
    """Remove an adapter of the tied head that equals the embedding's; FormatError naming both otherwise."""
    head, emb = f"{PREFIX}lm_head", PREFIX + module_of(EMBEDDING)
    pairs = ((f"{head}.lora_B.weight", f"{emb}.lora_embedding_A"), (f"{head}.lora_A.weight", f"{emb}.lora_embedding_B"))
    for own, other in pairs:
        if own in matrices:
            if other not in matrices or not np.array_equal(matrices[own], matrices[other].T):
                raise FormatError(f"{own} and {other} differ, but head and embedding are one matrix here")
            del matrices[own]
