"""What is in a file of any kind that this package reads or writes, as plain JSON values.

`contents(data)` verifies what the file lets it verify (lengths, CRCs, checksums) and raises FormatError for anything
damaged or unknown. No file is ever executed; no weights are decoded beyond a few statistics.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from evermind_web import strict_json
from evermind_web.errors import FormatError
from evermind_web.formats import stored_zip
from evermind_web.formats.arch import evermind_tensor_spec, param_count_of
from evermind_web.formats.crc import crc32, verify_crc_trailer
from evermind_web.formats.delta import deserialize_row_delta
from evermind_web.formats.evl0 import read_evl0
from evermind_web.formats.lmbc import limbic_tensor_spec, read_lmbc
from evermind_web.formats.lora_blob import read_lora
from evermind_web.formats.moe0 import moe_tensor_spec, read_moe0
from evermind_web.formats.safetensors_io import read_arrays
from evermind_web.formats.sniff import describe, truncated
from evermind_web.interop.package import EvermindModelPackage
from evermind_web.session import container
from evermind_web.store.backup import read_backup
from evermind_web.tokenizer import BPETokenizer
from evermind_web.training import state as training_state

Json = dict[str, Any]
GGUF_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
GGUF_STRING, GGUF_ARRAY = 8, 9
GGUF_SHOWN = 10  # of an array
GGUF_TYPES = {0: "F32", 1: "F16"}


def contents(data: bytes) -> Json:
    """{"kind", "bytes", …} of a file. Raises FormatError naming what the bytes look like where they are not ours."""
    return {"kind": "", "bytes": len(data)} | _reader(data)(data)


def _reader(data: bytes) -> Callable[[bytes], Json]:
    by_magic = {
        b"0LVE": _evl0, b"AROL": _lora, b"EVD0": _delta, b"0EoM": _moe0, b"CBML": _lmbc, b"1MVE": _package,
        b"GGUF": _gguf, b"PK\x03\x04": _zip,
    }  # fmt: skip
    if bytes(data[:4]) in by_magic:
        return by_magic[bytes(data[:4])]
    looks = describe(data)
    if looks == "JSON text":
        return _json
    if looks == "a safetensors file":
        return _safetensors
    if data[:1] == b"\x08" and b"evermind" in data[:64]:
        return _onnx
    raise FormatError(f"not a file of this package{f' (looks like {looks})' if looks else ''}; choose another file")


# ── models ───────────────────────────────────────────────────────────────────
def _evl0(data: bytes) -> Json:
    arch, flat = read_evl0(data)
    return {
        "kind": "EVL0 model checkpoint",
        **_stored(data),
        "crc32": _trailer(data),
        "config": arch._asdict(),
        "parameters": param_count_of(arch),
        "tensors": [{"name": t.name, "shape": list(t.shape)} for t in evermind_tensor_spec(arch)],
        "values": _values(flat),
    }


def _moe0(data: bytes) -> Json:
    dims, flat = read_moe0(data)
    tensors = [{"name": t.name, "shape": list(t.shape)} for t in moe_tensor_spec(*dims[:3])]
    config = dict(zip(("model_dim", "hidden_dim", "num_experts", "top_k"), dims, strict=True))
    return {"kind": "MoE0 mixture checkpoint", **_stored(data), "config": config} | {
        "parameters": flat.size, "tensors": tensors, "values": _values(flat),
    }  # fmt: skip


def _lmbc(data: bytes) -> Json:
    dims, flat = read_lmbc(data)
    tensors = [{"name": t.name, "shape": list(t.shape)} for t in limbic_tensor_spec(*dims)]
    config = dict(zip(("input_dim", "hidden_dim", "state_dim"), dims, strict=True))
    return {"kind": "LMBC limbic checkpoint", **_stored(data), "config": config} | {
        "parameters": flat.size, "tensors": tensors, "values": _values(flat),
    }  # fmt: skip


def _lora(data: bytes) -> Json:
    blob = read_lora(data)
    return {
        "kind": "LORA adapter of the tied embedding",
        "matrix": [blob.rows, blob.cols],
        "rank": blob.rank,
        "alpha": blob.alpha,
        "scale": blob.alpha / blob.rank,
        "parameters": blob.A.size + blob.B.size,
        "values": _values(np.concatenate([blob.B.ravel(), blob.A.ravel()])),
    }


def _delta(data: bytes) -> Json:
    delta = deserialize_row_delta(data)
    rows = [int(r) for r in delta.rows]
    return {"kind": "EVD0 delta", "crc32": _trailer(data), "row_size": delta.row_size, "rows": len(rows)} | {
        "first_rows": rows[:10], "values": _values(delta.data),
    }  # fmt: skip


def _package(data: bytes) -> Json:
    package = EvermindModelPackage.from_blob(data)
    result = package.validate()
    if not result.ok:
        raise FormatError(f"model package: {'; '.join(result.errors)}")
    codec = None if package.codec is None else {"bytes": len(package.codec)}
    inside = contents(package.checkpoint)
    return {"kind": "EVM1 model package", "manifest": dict(package.manifest), "checkpoint": inside, "codec": codec}


def _safetensors(data: bytes) -> Json:
    tensors, metadata = read_arrays(data)
    listed = [{"name": t.name, "dtype": str(t.data.dtype), "shape": list(t.shape)} for t in tensors]
    found: Json = {"kind": "safetensors", "metadata": metadata, "tensors": listed}
    found["parameters"] = sum(int(t.data.size) for t in tensors)
    try:
        manifest = json.loads(metadata.get("manifest", "null"))
    except ValueError:
        return found
    if isinstance(manifest, dict) and manifest.get("format") == training_state.FORMAT:
        _check_state(manifest, {t.name: t.data for t in tensors})
        found |= {"kind": "training state (safetensors)", "metadata": {}, "manifest": manifest}
    return found


def _check_state(manifest: Json, arrays: dict[str, Any]) -> None:
    for name, stored in (manifest.get("crc32") or {}).items():
        if name not in arrays or crc32(np.asarray(arrays[name], "<f4").tobytes()) != stored:
            raise FormatError(f"training state: {name} is damaged (its CRC-32 does not match); use an older copy")


# ── files for other programs ─────────────────────────────────────────────────
def _gguf(data: bytes) -> Json:
    try:
        return _read_gguf(data)
    except (struct.error, UnicodeDecodeError, KeyError, OverflowError, MemoryError, RecursionError) as error:
        raise FormatError(f"GGUF file is damaged or of a kind that is not read here ({error})") from None


def _read_gguf(data: bytes) -> Json:
    at = 24
    version, tensor_count, pair_count = struct.unpack_from("<IQQ", data, 4)
    if max(tensor_count, pair_count) > len(data):
        raise FormatError("GGUF file is damaged: it counts more entries than it has bytes")

    def number(code: str) -> Any:
        nonlocal at
        (value,) = struct.unpack_from(code, data, at)
        at += struct.calcsize(code)
        return value

    def text() -> str:
        nonlocal at
        length = number("<Q")
        if at + length > len(data):
            raise truncated("GGUF file", len(data), at + length, at_least=True)
        at += length
        return data[at - length : at].decode("utf-8")

    def value(kind: int) -> Any:
        nonlocal at
        if kind == GGUF_STRING:
            return text()
        if kind == GGUF_ARRAY:
            item, count = number("<I"), number("<Q")
            if count > len(data) - at:
                raise FormatError("GGUF file is damaged: an array is longer than the file")
            first = [value(item) for _ in range(min(count, GGUF_SHOWN))]
            if count <= GGUF_SHOWN:
                return first
            if item in GGUF_NUMBERS:  # a vocabulary's scores, say: skipped at once
                at += (count - GGUF_SHOWN) * struct.calcsize(GGUF_NUMBERS[item])
            else:
                for _ in range(count - GGUF_SHOWN):
                    value(item)
            return {"count": count, "first": first}
        return number(GGUF_NUMBERS[kind])

    pairs = {}
    for _ in range(pair_count):
        key = text()
        pairs[key] = value(number("<I"))
    tensors, ends = [], [0]
    for _ in range(tensor_count):
        name = text()
        shape = [number("<Q") for _ in range(number("<I"))][::-1]
        kind, offset = number("<I"), number("<Q")
        tensors.append({"name": name, "dtype": GGUF_TYPES.get(kind, f"type {kind}"), "shape": shape})
        ends.append(offset + math.prod(shape) * {0: 4, 1: 2}.get(kind, 0))
    alignment = pairs.get("general.alignment", 32)
    start = -(-at // alignment) * alignment if isinstance(alignment, int) and alignment > 0 else at
    if start + max(ends) > len(data):
        raise truncated("GGUF file", len(data), start + max(ends), at_least=True)
    return {"kind": f"GGUF version {version}", "metadata": pairs, "tensors": tensors}


def _onnx(data: bytes) -> Json:
    return {"kind": "ONNX graph of an evermind model", "note": "open it with onnxruntime to see what is inside"}


def _json(data: bytes) -> Json:
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"JSON file is damaged ({error}); fetch or export it again") from None
    if isinstance(value, dict) and ("vocab" in value or "vocab" in (value.get("model") or {})):
        return _tokenizer(data.decode("utf-8-sig"))
    if isinstance(value, dict) and "peft_type" in value:
        return {"kind": "adapter_config.json (PEFT)", **value}
    if isinstance(value, dict) and {"traits", "hidden"} <= set(value):
        return {"kind": "limbic session", **{k: v for k, v in value.items() if k != "hidden"}}
    if isinstance(value, dict):
        return {"kind": "JSON", "fields": value}
    raise FormatError("this JSON is none of ours: expected a tokenizer.json or an object")


def _tokenizer(text: str) -> Json:
    tokenizer = BPETokenizer.from_str(text)
    by_id = {i: token for token, i in tokenizer.vocab.items()}
    roles = {name: getattr(tokenizer, f"{name}_id") for name in ("bos", "eos", "pad", "unk")}
    return {
        "kind": "tokenizer.json (byte-level BPE)",
        "vocab_size": tokenizer.vocab_size,
        "merges": len(tokenizer.merges),
        "first_merges": tokenizer.merges[:5],
        "special_tokens": {by_id[i]: i for i in sorted(tokenizer.special_ids)},
        "roles": roles,
        "notes": list(tokenizer.notes),
    }


def _zip(data: bytes) -> Json:
    files = stored_zip.read(data, "the zip file")
    try:
        manifest = strict_json.loads(files.get("manifest.json", b"null").decode())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"zip file is damaged ({error}); export it again") from None
    if isinstance(manifest, dict) and manifest.get("format") == container.FORMAT:
        package = container.unpack(data, "the file")
        return {"kind": f"exported {package.kind} (zip)", "name": package.name, "metadata": package.metadata} | {
            "base_fingerprint": package.base_fingerprint,
            "members": {name: contents(member) for name, member in package.files.items()},
        }
    records = [
        {"name": item.name, "kind": item.kind, "bytes": len(item.data), "created": item.created}
        | {"base_fingerprint": item.base_fingerprint, "metadata": item.metadata}
        for item in read_backup(data)
    ]
    return {"kind": "backup of a store (zip)", "version": manifest["version"], "records": records}


# ── what they share ──────────────────────────────────────────────────────────
def _stored(data: bytes) -> Json:
    return {"stored_as": {1: "float32", 2: "fp16"}[struct.unpack_from("<I", data, 4)[0]]}


def _trailer(data: bytes) -> str:
    return f"{struct.unpack('<I', data[-4:])[0]:08x}, verified" if verify_crc_trailer(data).has_trailer else "none"


def _values(flat: Any) -> Json:
    """Range and health of a vector."""
    array = np.asarray(flat, np.float32)
    finite = array[np.isfinite(array)]
    found: Json = {"not_finite": int(array.size - finite.size)}
    if finite.size:
        found |= {"min": float(finite.min()), "max": float(finite.max())}
        found["mean_abs"] = float(np.abs(finite).mean(dtype=np.float64))
    return found
