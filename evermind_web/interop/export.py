"""Export: safetensors, ONNX and GGUF files, and a whole Hugging Face repository.

Each function that reads the device has a twin `…_async`; the plain one blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from evermind_web.checks import checked, utf8
from evermind_web.environment import run_blocking
from evermind_web.errors import InvalidArgumentError
from evermind_web.formats.gguf import write_gguf
from evermind_web.formats.onnx import write_onnx
from evermind_web.formats.safetensors_io import NamedTensor, tensors_to_safetensors
from evermind_web.interop.card import (
    DEFAULT_DESCRIPTION,
    CardInfo,
    config_of,
    generation_config_json,
    json_text,
    model_card,
)
from evermind_web.interop.tensors import TOP_K_KEY, arch_of, named_tensors_async, param_count
from evermind_web.model import EvermindLM
from evermind_web.quant import count_lost_to_zero, quantize_fp16

PRODUCER = "evermind_web"
BINARY, JSON, MARKDOWN = "application/octet-stream", "application/json", "text/markdown"


@runtime_checkable
class SupportsTokenizerJson(Protocol):
    """A tokenizer that can write its tokenizer.json."""

    def to_str(self) -> str: ...


@dataclass(frozen=True)
class ExportFormat:
    """A format that `export_evermind` writes."""

    id: str
    label: str
    description: str
    ext: str


EXPORT_FORMATS = (
    ExportFormat("huggingface", "Hugging Face repository", "weights, graph, settings, tokenizer, model card", "/"),
    ExportFormat("onnx", "ONNX", "a graph from input_ids to logits for onnxruntime", ".onnx"),
    ExportFormat("safetensors", "safetensors", "the weights, exact in F32 or half the size in F16", ".safetensors"),
    ExportFormat("gguf", "GGUF", "the weights for tools that read GGUF", ".gguf"),
)


@dataclass(frozen=True)
class ExportFile:
    """One file: a path inside the export, its content (bytes, or str for text), its MIME type."""

    path: str
    data: bytes | str
    content_type: str


@dataclass(frozen=True)
class ExportResult:
    """All files of an export. lost_to_zero: how many non-zero weights fp16 turned into 0 (0 for F32)."""

    format: str
    files: list[ExportFile]
    param_count: int
    lost_to_zero: int = 0


@checked
def config_json(lm: EvermindLM) -> dict[str, Any]:
    """config.json of a model, as a dict."""
    return config_of(arch_of(lm))


def safetensors_metadata(lm: EvermindLM, extra: Mapping[str, str] | None) -> dict[str, str]:
    """What a file says about itself: the caller's entries over ours; without any, also the experts per token."""
    own = {"format": "pt", "producer": PRODUCER}
    return {**own, **extra} if extra is not None else {**own, TOP_K_KEY: str(arch_of(lm).top_k)}


@checked
async def export_safetensors_async(
    lm: EvermindLM, fp16: bool = False, metadata: Mapping[str, str] | None = None
) -> bytes:
    """The weights as safetensors. fp16: F16; InvalidArgumentError names a tensor whose values do not fit."""
    return tensors_to_safetensors(await named_tensors_async(lm), fp16, safetensors_metadata(lm, metadata))


def export_safetensors(lm: EvermindLM, fp16: bool = False, metadata: Mapping[str, str] | None = None) -> bytes:
    """Blocking twin of `export_safetensors_async`."""
    return run_blocking(export_safetensors_async(lm, fp16, metadata))


@checked
async def export_onnx_async(lm: EvermindLM, producer_name: str = PRODUCER, producer_version: str = "evermind") -> bytes:
    """The model as an ONNX graph, float32: `input_ids` int64 (batch, seq) → `logits` (batch, seq, V)."""
    return write_onnx(arch_of(lm), await named_tensors_async(lm), producer_name, producer_version)


def export_onnx(lm: EvermindLM, producer_name: str = PRODUCER, producer_version: str = "evermind") -> bytes:
    """Blocking twin of `export_onnx_async`."""
    return run_blocking(export_onnx_async(lm, producer_name, producer_version))


@checked
async def export_gguf_async(lm: EvermindLM, name: str = "Evermind", fp16: bool = False) -> bytes:
    """The weights as GGUF. fp16: F16; InvalidArgumentError names a tensor whose values do not fit."""
    return write_gguf(arch_of(lm), await named_tensors_async(lm), name, fp16)


def export_gguf(lm: EvermindLM, name: str = "Evermind", fp16: bool = False) -> bytes:
    """Blocking twin of `export_gguf_async`."""
    return run_blocking(export_gguf_async(lm, name, fp16))


@checked
async def export_evermind_async(
    lm: EvermindLM,
    format: str,
    tokenizer: SupportsTokenizerJson | None = None,
    fp16: bool = False,
    name: str = "Evermind",
    version: str = "evermind",
    license: str = "mit",
    author: str = "",
    description: str = DEFAULT_DESCRIPTION,
    tags: Sequence[str] = (),
) -> ExportResult:
    """All files of one of EXPORT_FORMATS; "huggingface" needs the tokenizer.

    fp16 halves safetensors and GGUF (ONNX stays float32). InvalidArgumentError for an unknown format, a missing
    tokenizer, or a weight that fp16 cannot hold (named).
    """
    if format not in {f.id for f in EXPORT_FORMATS}:
        raise InvalidArgumentError(
            f"unknown format {format!r}: expected one of {', '.join(f.id for f in EXPORT_FORMATS)}"
        )
    if format == "huggingface" and tokenizer is None:
        raise InvalidArgumentError("a Hugging Face repository needs the tokenizer; pass tokenizer=")
    tensors = await named_tensors_async(lm)
    arch = arch_of(lm)

    def wanted(kind: str) -> bool:
        return format in (kind, "huggingface")

    files: list[ExportFile] = []
    if wanted("safetensors"):
        weights = tensors_to_safetensors(tensors, fp16, safetensors_metadata(lm, None))
        files.append(ExportFile("model.safetensors", weights, BINARY))
    if wanted("onnx"):
        files.append(ExportFile("model.onnx", write_onnx(arch, tensors, PRODUCER, version), BINARY))
    if wanted("gguf"):
        files.append(ExportFile("model.gguf", write_gguf(arch, tensors, name, fp16), BINARY))
    if tokenizer is not None and format == "huggingface":
        card = model_card(arch, CardInfo(name, license, author, description, tags), fp16)
        utf8(card)  # before anybody writes half of the files
        files += [
            ExportFile("config.json", json_text(config_of(arch)), JSON),
            ExportFile("generation_config.json", json_text(generation_config_json()), JSON),
            ExportFile("tokenizer.json", tokenizer.to_str(), JSON),
            ExportFile("README.md", card, MARKDOWN),
        ]
    lost = sum(fp16_losses(tensors).values()) if fp16 and format != "onnx" else 0
    return ExportResult(format, files, param_count(lm), lost)


def export_evermind(lm: EvermindLM, format: str, **options: Any) -> ExportResult:
    """Blocking twin of `export_evermind_async`."""
    return run_blocking(export_evermind_async(lm, format, **options))


@checked
def fp16_losses(tensors: Sequence[NamedTensor]) -> dict[str, int]:
    """How many non-zero values of each tensor would become 0 in fp16; tensors that lose none are left out."""
    counts = {t.name: count_lost_to_zero(t.data, quantize_fp16(t.data, t.name)) for t in tensors}
    return {name: count for name, count in counts.items() if count}
