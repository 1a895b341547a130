"""EvermindModelPackage: a model, its description and a checksum in one EVM1 file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evermind_web.checks import checked
from evermind_web.environment import run_blocking
from evermind_web.errors import EvermindError, FormatError
from evermind_web.formats.arch import FIELDS, Arch
from evermind_web.formats.evl0 import inspect_evl0
from evermind_web.formats.moe0 import read_moe0, write_moe0
from evermind_web.formats.package import fnv1a, manifest_text, read_package, write_package
from evermind_web.mixture import SharedExpertMoE
from evermind_web.model import EvermindLM
from evermind_web.params import check_arch

SCHEMA = "evermind.model/1"
LM, MOE = "evermind-lm", "shared-expert-moe"
CHECKPOINT_FORMATS = {LM: "EVL0", MOE: "MoE0"}
MOE_FIELDS = ("model_dim", "hidden_dim", "num_experts", "top_k")


@dataclass(frozen=True)
class Validation:
    """ok, and every problem found."""

    ok: bool
    errors: list[str]


def camel(name: str) -> str:
    """snake_case as camelCase: the spelling inside manifests."""
    return re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), name)


@dataclass(frozen=True)
class EvermindModelPackage:
    """manifest (JSON with the reference's camelCase keys), checkpoint bytes, codec bytes or None.

    A codec section, which media models have, is carried along and not interpreted.
    """

    manifest: Mapping[str, Any]
    checkpoint: bytes
    codec: bytes | None = None
    text: str = field(default="", repr=False)  # the manifest as it was read, so that to_blob gives the same bytes

    # ── making ──
    @classmethod
    @checked
    async def from_lm_async(
        cls,
        lm: EvermindLM,
        name: str,
        version: str,
        card: Mapping[str, Any],
        fp16: bool = False,
        created_at: str | None = None,
    ) -> EvermindModelPackage:
        """Pack a language model.

        card: a dict with snake_case keys (description, license, tags, …). fp16 halves the checkpoint;
        InvalidArgumentError names a tensor whose values do not fit. created_at: an ISO time, as text.
        """
        config = dict(zip(FIELDS, Arch.of(lm.config), strict=True))
        checkpoint = await lm.export_weights_async(fp16)
        return cls._pack(LM, config, lm.num_parameters, checkpoint, fp16, (name, version, card, created_at))

    @classmethod
    def from_lm(
        cls, lm: EvermindLM, name: str, version: str, card: Mapping[str, Any], **options: Any
    ) -> EvermindModelPackage:
        """Blocking twin of `from_lm_async`."""
        return run_blocking(cls.from_lm_async(lm, name, version, card, **options))

    @classmethod
    @checked
    async def from_model_async(
        cls,
        moe: SharedExpertMoE,
        name: str,
        version: str,
        card: Mapping[str, Any],
        fp16: bool = False,
        created_at: str | None = None,
    ) -> EvermindModelPackage:
        """Pack a mixture of experts; arguments as in `from_lm_async`."""
        config = {key: int(getattr(moe.config, key)) for key in MOE_FIELDS}
        checkpoint = write_moe0(list(config.values()), await moe.packed_weights_async(), fp16)
        return cls._pack(MOE, config, moe.num_parameters, checkpoint, fp16, (name, version, card, created_at))

    @classmethod
    def from_model(
        cls, moe: SharedExpertMoE, name: str, version: str, card: Mapping[str, Any], **options: Any
    ) -> EvermindModelPackage:
        """Blocking twin of `from_model_async`."""
        return run_blocking(cls.from_model_async(moe, name, version, card, **options))

    @classmethod
    def _pack(
        cls,
        model_type: str,
        config: Mapping[str, int],
        count: int,
        checkpoint: bytes,
        fp16: bool,
        label: tuple[str, str, Mapping[str, Any], str | None],
    ) -> EvermindModelPackage:
        name, version, card, created_at = label
        manifest: dict[str, Any] = {
            "schema": SCHEMA,
            "name": name,
            "version": version,
            "modelType": model_type,
            "config": {camel(key): value for key, value in config.items()},
            "paramCount": count,
            "checkpointFormat": CHECKPOINT_FORMATS[model_type],
            "checkpointFp16": bool(fp16),
            "checksum": fnv1a(checkpoint),
            "card": {camel(key): value for key, value in card.items()},
        }
        if created_at is not None:
            manifest["createdAt"] = created_at
        return cls(manifest, checkpoint)

    # ── bytes ──
    @classmethod
    @checked
    def from_blob(cls, data: bytes) -> EvermindModelPackage:
        """Read an EVM1 file; FormatError if it is none or cut. Call `validate` for what is inside."""
        parts = read_package(data)
        return cls(parts.manifest, parts.checkpoint, parts.codec or None, parts.text)

    def to_blob(self) -> bytes:
        """The EVM1 file; byte for byte what `from_blob` read."""
        return write_package(self.text or manifest_text(dict(self.manifest)), self.checkpoint, self.codec or b"")

    # ── checking and loading ──
    def validate(self) -> Validation:
        """Schema, model type and configuration, checksums; the checkpoint's own header is compared on loading."""
        m, errors = self.manifest, []
        if m.get("schema") != SCHEMA:
            errors.append(f"unknown schema: {m.get('schema')}, expected {SCHEMA}")
        if m.get("modelType") not in tuple(CHECKPOINT_FORMATS):  # it may be anything, also what has no hash
            errors.append(f"unsupported model type: {m.get('modelType')}, expected {' or '.join(CHECKPOINT_FORMATS)}")
        else:
            errors += self._config_errors()
        actual = fnv1a(self.checkpoint)
        if m.get("checksum") != actual:
            errors.append(f"checksum mismatch: manifest {m.get('checksum')}, checkpoint {actual}; it was changed")
        if "modality" in m and not self.codec:
            errors.append(f"a package of modality {m['modality']} needs a codec section")
        elif self.codec and m.get("codecChecksum") != fnv1a(self.codec):
            errors.append(f"codec checksum mismatch: manifest {m.get('codecChecksum')}, codec {fnv1a(self.codec)}")
        return Validation(not errors, errors)

    def _config_errors(self) -> list[str]:
        config = self.manifest.get("config")
        fields = FIELDS if self.manifest["modelType"] == LM else MOE_FIELDS
        sizes: list[Any] = [config.get(camel(key)) for key in fields] if isinstance(config, dict) else []
        if not sizes or any(type(size) is not int for size in sizes):
            return [f"invalid config: expected whole numbers {', '.join(map(camel, fields))}"]
        # A mixture alone has four of the seven numbers; the other three are set to what any model may have.
        arch = Arch(*sizes) if len(fields) == len(FIELDS) else Arch(1, sizes[0], 1, 1, *sizes[1:])
        try:
            check_arch(arch)
        except EvermindError as error:
            return [f"invalid config: {error}"]
        return []

    def _check(self, model_type: str, other: str) -> dict[str, int]:
        """The model's configuration in snake_case; FormatError unless the package is sound and of this type."""
        result = self.validate()
        if not result.ok:
            raise FormatError(f"model package: {'; '.join(result.errors)}")
        if self.manifest["modelType"] != model_type:
            raise FormatError(f"model package: it holds a {self.manifest['modelType']}; use {other}()")
        fields = FIELDS if model_type == LM else MOE_FIELDS
        return {key: self.manifest["config"][camel(key)] for key in fields}

    def load_lm(self, backend: Any = None) -> EvermindLM:
        """The packed language model. FormatError if `validate` finds anything or it is of another type;
        ConfigMismatchError if the checkpoint is not of the manifest's shape."""
        config = self._check(LM, "load_model")
        inspect_evl0(self.checkpoint, tuple(config.values()))  # before a manifest that lies is believed
        lm = EvermindLM(**config, backend=backend)
        lm.load_weights(self.checkpoint)
        return lm

    def load_model(self, backend: Any = None) -> SharedExpertMoE:
        """The packed mixture of experts, a SharedExpertMoE; errors as in `load_lm`."""
        config = self._check(MOE, "load_lm")
        read_moe0(self.checkpoint, tuple(config.values()))
        moe = SharedExpertMoE(**config, backend=backend)
        moe.load_weights(self.checkpoint)
        return moe
