"""A model on disk: a folder with `model.evl0`, `tokenizer.json` and, while it may be trained on, `state.safetensors`.

Files are written beside their places and moved there when all are written: a crash leaves the old or the new ones.
Where it comes while they are moved, a list of them lies in the folder, and whoever reads it next moves the rest.
Who reads several files gets them all as they were at one moment (`steady`), whatever another process does meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from evermind_web.backend.base import Backend
from evermind_web.cli.options import UsageError
from evermind_web.errors import EvermindError, FormatError, InvalidArgumentError, StorageError
from evermind_web.lora import LoraModel
from evermind_web.lora.peft_io import CONFIG_FILE, WEIGHTS_FILE
from evermind_web.model import EvermindLM
from evermind_web.session.texts import read_text
from evermind_web.store.folder import sync_folder, try_lock
from evermind_web.tokenizer import BPETokenizer

T = TypeVar("T")
MODEL, TOKENIZER, STATE, RUN = "model.evl0", "tokenizer.json", "state.safetensors", "run.json"
MOVING = ".moving*.json"  # one list a write, so that nobody removes that of another
READS = 5


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files by name, all or none."""
    folder.mkdir(parents=True, exist_ok=True)
    settle(folder)
    _refuse_folders(folder / name for name in files)
    token = secrets.token_hex(4)
    beside, moving = {f".{name}.{token}.tmp": name for name in files}, f".moving.{token}"
    try:
        for temporary, name in beside.items():
            _write_through(folder / temporary, files[name])
        _write_through(folder / f"{moving}.tmp", json_bytes(beside))
        (folder / f"{moving}.tmp").replace(folder / f"{moving}.json")  # this is the moment it happens
    finally:
        settle(folder)
        for temporary in (*beside, f"{moving}.tmp"):
            (folder / temporary).unlink(missing_ok=True)


def settle(folder: Path) -> None:
    """Move the files of writes that were cut short to their places."""
    for listed in sorted(folder.glob(MOVING)):
        try:
            moving = read_json(listed)
        except FileNotFoundError:  # its writer was faster
            continue
        sync_folder(folder)
        for temporary, name in moving.items():
            if not isinstance(name, str) or {temporary, name} != {Path(temporary).name, Path(name).name}:
                raise FormatError(f"{listed} names {name!r}, which is no file of this folder; delete that list")
            with contextlib.suppress(FileNotFoundError):  # it was moved before
                (folder / temporary).replace(folder / name)
        sync_folder(folder)
        listed.unlink(missing_ok=True)


def steady(read: Callable[[], T], *paths: Path, home: Path | None = None) -> T:
    """What `read` makes of these files, all as they were at one moment; home: the folder to settle first.

    Raises what `read` raises, or StorageError where they go on changing.
    """
    for _ in range(READS):
        before, problem = _marks(paths, home), None
        try:
            found = read()
        except (OSError, EvermindError) as error:
            problem = error
        if before == _marks(paths, home):
            if problem:
                raise problem
            return found
    raise StorageError(f"{paths[0]} changes while it is read; try again when it is written")


def _marks(paths: Iterable[Path], home: Path | None) -> list[tuple[int, ...]]:
    """What differs once a file was written or replaced; nothing for what is no file, such as a pipe."""
    if home:
        settle(home)
    found = list[tuple[int, ...]]()
    for path in paths:
        try:
            at = path.stat()
        except OSError:
            found.append((0,))
        else:
            found.append((at.st_ino, at.st_size, at.st_mtime_ns) if path.is_file() else ())
    return found


def read_bytes(path: Path) -> bytes:
    """The bytes of one file. Raises as `steady`."""
    return steady(path.read_bytes, path)


def _write_through(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _refuse_folders(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))


def _sweep(folder: Path) -> None:
    """Remove what runs that were killed had not written to the end; safe only while no other run writes here."""
    settle(folder)
    for name in (MODEL, TOKENIZER, STATE, RUN, "moving"):
        for left in folder.glob(f".{name}.*.tmp"):
            left.unlink()


@contextlib.contextmanager
def claimed(target: Path, folder: bool) -> Iterator[None]:
    """Hold the place of what a run will write, a folder or a file, so that no other run writes there meanwhile.

    Raises OSError, before hours of work are done in vain, if nothing can be written there; InvalidArgumentError if
    another run holds it. A folder that was made for nothing is removed.
    """
    home, lock = (target, ".lock") if folder else (target.parent, f".{target.name}.lock")
    _refuse_folders(() if folder else (target,))
    made = not home.exists()
    home.mkdir(parents=True, exist_ok=True)
    try:
        with (home / lock).open("ab") as file:
            if not try_lock(file):
                raise InvalidArgumentError(f"another run is writing {target}; wait for it, or name another place")
            if folder:
                _sweep(home)
            try:
                yield
            finally:
                with contextlib.suppress(OSError):  # Windows keeps what is open
                    (home / lock).unlink()
    finally:
        if made:
            with contextlib.suppress(OSError):  # there is something in it
                home.rmdir()


def write_file(path: Path, data: bytes) -> None:
    """Write `data` to `path`, all or nothing."""
    write_files(path.parent, {path.name: data})


def read_texts(paths: list[str]) -> list[str]:
    """The texts in these files. Raises OSError, InvalidArgumentError for what is not text, UsageError for nothing."""
    texts = [read_text(read_bytes(Path(path)), path) for path in paths]
    for path, text in zip(paths, texts, strict=True):
        if not text.strip():
            raise UsageError(f"{path} is empty: expected UTF-8 text; name a file that holds some")
    return texts


def load_model(folder: Path, backend: Backend) -> tuple[EvermindLM, BPETokenizer]:
    """The folder's model and tokenizer. Raises OSError, FormatError, or InvalidArgumentError if they do not fit."""

    def read() -> tuple[BPETokenizer, bytes]:
        return BPETokenizer.from_file(_existing(folder, TOKENIZER)), _existing(folder, MODEL).read_bytes()

    tokenizer, weights = steady(read, folder / TOKENIZER, folder / MODEL, home=folder)
    model = EvermindLM.from_checkpoint(weights, backend)
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
        names = (CONFIG_FILE, WEIGHTS_FILE)
        files = (path / name for name in names)
        return steady(lambda: {name: _existing(path, name).read_bytes() for name in names}, *files, home=path), None

    def read() -> tuple[bytes, str | None]:
        notes = read_json(notes_of(path)) if notes_of(path).exists() else {}
        return path.read_bytes(), notes.get("base_fingerprint")

    return steady(read, path, notes_of(path), home=path.parent)


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
