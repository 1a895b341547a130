"""Exchange with other programs: export, import, model packages, deltas. All public names are re-exported here."""

from __future__ import annotations

from evermind_web.interop.card import generation_config_json as generation_config_json
from evermind_web.interop.export import EXPORT_FORMATS as EXPORT_FORMATS
from evermind_web.interop.export import ExportFile as ExportFile
from evermind_web.interop.export import ExportFormat as ExportFormat
from evermind_web.interop.export import ExportResult as ExportResult
from evermind_web.interop.export import config_json as config_json
from evermind_web.interop.export import export_evermind as export_evermind
from evermind_web.interop.export import export_evermind_async as export_evermind_async
from evermind_web.interop.export import export_gguf as export_gguf
from evermind_web.interop.export import export_gguf_async as export_gguf_async
from evermind_web.interop.export import export_onnx as export_onnx
from evermind_web.interop.export import export_onnx_async as export_onnx_async
from evermind_web.interop.export import export_safetensors as export_safetensors
from evermind_web.interop.export import export_safetensors_async as export_safetensors_async
from evermind_web.interop.export import fp16_losses as fp16_losses
from evermind_web.interop.package import EvermindModelPackage as EvermindModelPackage
from evermind_web.interop.tensors import arch_of as arch_of
from evermind_web.interop.tensors import import_evermind as import_evermind
from evermind_web.interop.tensors import import_evermind_tensors as import_evermind_tensors
from evermind_web.interop.tensors import infer_arch_from_tensors as infer_arch_from_tensors
from evermind_web.interop.tensors import named_tensors as named_tensors
from evermind_web.interop.tensors import named_tensors_async as named_tensors_async
from evermind_web.interop.tensors import param_count as param_count
