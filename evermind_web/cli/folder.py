"""A model on disk: a folder with `model.evl0`, `tokenizer.json` and, while it may be trained on, `state.safetensors`.

Files are written beside their places and moved there when all are written: a crash leaves the old or the new ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evermind_web.backend.base import Backend
from evermind_web.cli.options import UsageError
from evermind_web.errors import FormatError, InvalidArgumentError
from evermind_web.lora import LoraModel
from evermind_web.lora.peft_io import CONFIG_FILE, WEIGHTS_FILE
from evermind_web.model import EvermindLM
from evermind_web.session.texts import read_text
from evermind_web.tokenizer import BPETokenizer

MODEL, TOKENIZER, STATE, RUN = "model.evl0", "tokenizer.json", "state.safetensors", "run.json"


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files by name, all or none; the last one is moved to its place last."""
    folder.mkdir(parents=True, exist_ok=True)
    beside = {name: folder / f"{name}.tmp" for name in files}
    try:
        for name, data in files.items():
            with beside[name].open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for name, written in beside.items():
            written.replace(folder / name)
    finally:
        for written in beside.values():
            written.unlink(missing_ok=True)


def write_file(path: Path, data: bytes) -> None:
    """Write `data` to `path`, all or nothing."""
    write_files(path.parent, {path.name: data})


def read_texts(paths: list[str]) -> list[str]:
    """The texts in these files. Raises OSError, InvalidArgumentError for what is not text, UsageError for nothing."""
    texts = [read_text(Path(path).read_bytes(), path) for path in paths]
    for path, text in zip(paths, texts, strict=True):
        if not text.strip():
            raise UsageError(f"{path} is empty: expected UTF-8 text; name a file that holds some")
    return texts


def load_tokenizer(folder: Path) -> BPETokenizer:
    """The folder's tokenizer."""
    return BPETokenizer.from_file(_existing(folder, TOKENIZER))


def load_model(folder: Path, backend: Backend) -> tuple[EvermindLM, BPETokenizer]:
    """The folder's model and tokenizer. Raises OSError, FormatError, or InvalidArgumentError if they do not fit."""
    tokenizer = load_tokenizer(folder)
    model = EvermindLM.from_checkpoint(_existing(folder, MODEL).read_bytes(), backend)
    model.check_codec(tokenizer)
    return model, tokenizer


async def load_adapters(model: EvermindLM, wanted: Sequence[str], force: bool = False) -> LoraModel:
    """Adapters on a model, mixed: each a path, or path=weight. See `read_adapter` for what a path may be."""
    adapted, weights = LoraModel(model), {}
    for text in wanted:
        path, weight = split_weight(text)
        data, fingerprint = read_adapter(Path(path))
        await adapted.load_adapter_async(path, data, fingerprint, force)
        weights[path] = weight
    adapted.set_adapters(weights)
    return adapted


def split_weight(text: str) -> tuple[str, float]:
    """("me.lora", 0.5) of "me.lora=0.5"; the weight is 1 where none is given."""
    path, sign, weight = text.rpartition("=")
    try:
        return (path, float(weight)) if sign else (text, 1.0)
    except ValueError:
        return text, 1.0


def read_adapter(path: Path) -> tuple[bytes | dict[str, bytes], str | None]:
    """A LORA file with the fingerprint in the file beside it (`.json`), or the two files of a PEFT folder."""
    if path.is_dir():
        return {name: _existing(path, name).read_bytes() for name in (CONFIG_FILE, WEIGHTS_FILE)}, None
    notes = read_json(notes_of(path)) if notes_of(path).exists() else {}
    return path.read_bytes(), notes.get("base_fingerprint")


async def write_adapter(adapted: LoraModel, name: str, path: Path, fp16: bool = False) -> None:
    """A LORA file where the path ends in .lora, else a PEFT folder; both with the base's fingerprint."""
    if path.suffix == ".lora":
        notes = json_bytes({"base_fingerprint": await adapted.base.fingerprint_async()})
        write_files(path.parent, {notes_of(path).name: notes, path.name: adapted.save_lora_blob(name)})
        return
    write_files(path, await adapted.save_adapter_async(name, fp16))


def notes_of(adapter: Path) -> Path:
    """Where the base fingerprint of an adapter file is kept."""
    return adapter.with_name(adapter.name + ".json")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises FormatError for anything else."""
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise FormatError(f"{path} is not JSON ({error}); it was changed or damaged") from None
    if not isinstance(value, dict):
        raise FormatError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def json_bytes(value: dict[str, Any]) -> bytes:
    """`value` as indented JSON."""
    return json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n"


def _existing(folder: Path, name: str) -> Path:
    if not (folder / name).exists():
        raise InvalidArgumentError(f"{folder} has no {name}; give a folder that this program wrote")
    return folder / name
