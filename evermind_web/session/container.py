"""One file that carries a saved model or adapter to another browser: a stored zip with a JSON manifest.

A bare `EVL0` checkpoint has no tokenizer and a bare `LORA` adapter does not name its base, so neither
is enough alone. The members are exactly those files, so any tool that reads them can unpack the zip.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from dataclasses import dataclass, field
from typing import Any

from evermind_web import strict_json
from evermind_web.errors import ConfigMismatchError, FormatError
from evermind_web.formats.evl0 import inspect_evl0
from evermind_web.formats.lora_blob import read_lora
from evermind_web.formats.sniff import describe

FORMAT = "evermind"
VERSION = 1
MANIFEST = "manifest.json"
MODEL, TOKENIZER, ADAPTER = "model.evl0", "tokenizer.json", "adapter.lora"


@dataclass
class Package:
    """What an imported file holds. `base_fingerprint` is "" where the file does not say."""

    kind: str  # "base", "adapter" or "tokenizer"
    name: str
    files: dict[str, bytes]
    base_fingerprint: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)


def pack(package: Package) -> bytes:
    """`package` as the bytes of a stored zip, the same bytes for the same content."""
    members = [
        {"path": path, "size": len(data), "crc32": zlib.crc32(data)} for path, data in sorted(package.files.items())
    ]
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "kind": package.kind,
        "name": package.name,
        "base_fingerprint": package.base_fingerprint,
        "metadata": package.metadata,
        "members": members,
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        text = json.dumps(manifest, indent=1, ensure_ascii=False).encode()
        for path, data in [(MANIFEST, text), *sorted(package.files.items())]:
            archive.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), data)
    return out.getvalue()


def unpack(data: bytes, filename: str) -> Package:
    """The package in `data`: our zip, or a bare checkpoint, adapter or tokenizer file.

    Raises FormatError, naming what the file seems to be, for anything else or anything damaged.
    """
    name = filename.rsplit("/", 1)[-1].split(".", 1)[0] or "imported"
    if not data:
        raise FormatError(f"{filename} is empty. Export or download it again.")
    if data.startswith(b"PK"):
        return _unpack_zip(data, filename)
    looks = describe(data)
    if looks.startswith("an EVL0"):
        inspect_evl0(data)
        return Package("base", name, {MODEL: data})
    if looks.startswith("a LORA"):
        read_lora(data)
        return Package("adapter", name, {ADAPTER: data})
    if looks == "JSON text":
        return Package("tokenizer", name, {TOKENIZER: data})
    if "HTML" in looks:
        raise FormatError(
            f"{filename} is a web page, not a model: the download probably ended at an error page (404). "
            "Download the file itself again."
        )
    guess = f" (it looks like {looks})" if looks else ""
    raise FormatError(
        f"{filename} is not a model, adapter or tokenizer of this page{guess}. "
        "Choose a file that was saved here with Export, an .evl0 checkpoint or a .lora adapter."
    )


def _unpack_zip(data: bytes, filename: str) -> Package:
    damaged = f"{filename} is damaged or cut off"
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if MANIFEST not in archive.namelist():
                raise FormatError(f"{filename} is a zip, but not one that this page exported: it has no {MANIFEST}.")
            # Members are stored, so none can be larger than the file: a zip bomb is refused before it is read.
            infos = archive.infolist()
            stored = all(i.compress_type == zipfile.ZIP_STORED for i in infos)
            if not stored or sum(i.file_size for i in infos) > len(data):
                raise FormatError(f"{filename} was packed again by another program. Import the exported file itself.")
            manifest = strict_json.loads(archive.read(MANIFEST).decode())
            _check_manifest(manifest, filename)
            paths = [m["path"] for m in manifest["members"]]
            if sorted([MANIFEST, *paths]) != sorted(i.filename for i in infos):  # also one that is named twice
                raise FormatError(f"{damaged}: what it holds is not what its manifest lists. Export it again.")
            files = {path: archive.read(path) for path in paths}
    except (
        zipfile.BadZipFile,
        EOFError,
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
        NotImplementedError,
    ) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{damaged} ({error}). Export or download it again.") from None
    for member in manifest["members"]:
        content = files[member["path"]]
        if len(content) != member.get("size") or zlib.crc32(content) != member.get("crc32"):
            raise FormatError(f"{damaged}: {member['path']} is not what was exported. Export or download it again.")
    kind = manifest["kind"]
    if (MODEL if kind == "base" else ADAPTER) not in files:
        raise FormatError(f"{damaged}: the {kind} is missing from it. Export or download it again.")
    return Package(kind, manifest["name"], files, manifest["base_fingerprint"], manifest["metadata"])


def _check_manifest(manifest: Any, filename: str) -> None:
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise FormatError(f"{filename} is a zip, but not one that this page exported.")
    if manifest.get("version") != VERSION:
        raise FormatError(
            f"{filename} has version {manifest.get('version')} of the file format; this page reads version {VERSION}. "
            "Use a newer page to open it."
        )
    kind, name, fingerprint = manifest.get("kind"), manifest.get("name"), manifest.get("base_fingerprint")
    named = isinstance(name, str) and name and isinstance(fingerprint, str)
    if kind not in ("base", "adapter") or not named or not isinstance(manifest.get("metadata"), dict):
        raise FormatError(f"{filename} has a manifest that this page cannot read. Export it again.")


def check_adapter_shape(data: bytes, vocab_size: int, d_model: int) -> None:
    """Raise ConfigMismatchError unless the `LORA` blob `data` fits an embedding (vocab_size, d_model)."""
    blob = read_lora(data)
    if (blob.rows, blob.cols) != (vocab_size, d_model):
        raise ConfigMismatchError(
            f"this adapter belongs to another model: it fits an embedding of {blob.rows}×{blob.cols}, "
            f"this model has {vocab_size}×{d_model}. Load the model that it was trained on."
        )
