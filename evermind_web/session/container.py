"""One file that carries a saved model or adapter to another browser: a stored zip with a JSON manifest.

A bare `EVL0` checkpoint has no tokenizer and a bare `LORA` adapter does not name its base, so neither
is enough alone. The members are exactly those files, so any tool that reads them can unpack the zip. An adapter
of more than the embedding is the two files of a PEFT folder.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from typing import Any

from evermind_web import strict_json
from evermind_web.errors import FormatError
from evermind_web.formats import stored_zip
from evermind_web.formats.evl0 import inspect_evl0
from evermind_web.formats.lora_blob import read_lora
from evermind_web.formats.sniff import describe
from evermind_web.session import adapter_file

FORMAT = "evermind"
VERSION = 1
MANIFEST = "manifest.json"
MODEL, TOKENIZER, ADAPTER = "model.evl0", "tokenizer.json", adapter_file.BLOB


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
    text = json.dumps(manifest, indent=1, ensure_ascii=False).encode()
    return stored_zip.write({MANIFEST: text, **dict(sorted(package.files.items()))})


def unpack(data: bytes, filename: str) -> Package:
    """The package in `data`: our zip, a zipped PEFT folder, or a bare checkpoint, adapter or tokenizer file.

    Raises FormatError, naming what the file seems to be, for anything else or anything damaged.
    """
    name = filename.rsplit("/", 1)[-1].split(".", 1)[0] or "imported"
    if not data:
        raise FormatError(f"{filename} is empty. Export or download it again.")
    if data.startswith(b"PK"):
        return _unpack_zip(data, filename, name)
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


def _unpack_zip(data: bytes, filename: str, name: str) -> Package:
    damaged = f"{filename} is damaged or cut off"
    files = stored_zip.read(data, filename)
    if MANIFEST not in files and adapter_file.is_peft(files):
        return Package("adapter", name, {path: files[path] for path in adapter_file.PEFT}, adapter_file.base_of(files))
    if MANIFEST not in files:
        raise FormatError(f"{filename} is a zip, but not one that this page exported: it has no {MANIFEST}.")
    try:
        manifest = strict_json.loads(files.pop(MANIFEST).decode())
        _check_manifest(manifest, filename)
        listed = sorted(m["path"] for m in manifest["members"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{damaged} ({error}). Export or download it again.") from None
    if listed != sorted(files):
        raise FormatError(f"{damaged}: what it holds is not what its manifest lists. Export it again.")
    for member in manifest["members"]:
        content = files[member["path"]]
        if len(content) != member.get("size") or zlib.crc32(content) != member.get("crc32"):
            raise FormatError(f"{damaged}: {member['path']} is not what was exported. Export or download it again.")
    kind = manifest["kind"]
    if not (MODEL in files if kind == "base" else ADAPTER in files or adapter_file.is_peft(files)):
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
