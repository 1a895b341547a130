"""Convert a model (EVL0, safetensors, GGUF, ONNX, Hugging Face, EVM1, PyTorch; float32, fp16) or an adapter."""

from __future__ import annotations

import argparse
import io
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from evermind_web.backend.request import request_backend
from evermind_web.cli import folder
from evermind_web.cli.options import UsageError
from evermind_web.errors import EvermindError, FormatError, InvalidArgumentError
from evermind_web.formats.sniff import describe
from evermind_web.interop.export import export_evermind_async, export_gguf_async, export_onnx_async, fp16_losses
from evermind_web.interop.export import export_safetensors_async as export_safetensors
from evermind_web.interop.package import EvermindModelPackage
from evermind_web.interop.tensors import import_evermind, named_tensors_async
from evermind_web.model import EvermindLM
from evermind_web.tokenizer import BPETokenizer

NAME = "convert"
FORMATS = {
    ".evl0": "evl0", ".safetensors": "safetensors", ".gguf": "gguf", ".onnx": "onnx", ".evm1": "evm1",
    ".pt": "torch", ".pth": "torch", "": "huggingface",
}  # fmt: skip
READ = "an EVL0, safetensors, EVM1 or PyTorch file, or a folder with one of them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    parser.add_argument("source", type=Path, metavar="SOURCE", help=READ)
    parser.add_argument("target", type=Path, metavar="TARGET", help="file or folder to write")
    parser.add_argument(
        "--base", type=Path, metavar="DIR", help="SOURCE is an adapter of this model: .lora ↔ PEFT folder"
    )
    parser.add_argument("--to", choices=sorted(set(FORMATS.values())), help="format; default: by the target's ending")
    parser.add_argument("--fp16", action="store_true", help="store half precision, rounded to nearest")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="tokenizer.json; default: beside the source")
    parser.add_argument("--top-k", type=int, help="experts of a token, where the source does not say")
    parser.add_argument("--name", default="Evermind", help="name written into GGUF, EVM1 and the model card")


async def run(arguments: argparse.Namespace) -> None:
    """Read, and write."""
    if arguments.base is not None:
        await _adapter(arguments)
        return
    kind = arguments.to or FORMATS.get(arguments.target.suffix)
    if kind is None:
        endings = ", ".join(ending for ending in FORMATS if ending)
        raise InvalidArgumentError(
            f"no format goes by the ending {arguments.target.suffix!r}; give --to, or one of {endings}"
        )
    source, target = file_of(arguments.source), arguments.target
    if _holds_a_model(target, source.resolve()):
        raise UsageError(f"{target} already holds a model, which would be written over; name another TARGET")
    model = read_model(source, arguments.top_k, await request_backend("numpy"))
    if kind == "huggingface":
        await _write_folder(model, arguments)
    else:
        folder.write_file(arguments.target, await _encoded(model, kind, arguments))
    if arguments.fp16 and kind not in ("onnx", "torch"):
        lost = sum(fp16_losses(await named_tensors_async(model)).values())
        if lost:
            print(f"{lost:,} small weights became 0 in fp16", file=sys.stderr)
    precision = "fp16" if arguments.fp16 and kind != "onnx" else "float32"
    print(f"wrote {arguments.target}: {kind}, {precision}, {model.num_parameters:,} weights")


def _holds_a_model(target: Path, source: Path) -> bool:
    """Whether the target is the source, or the folder or a file of it, or of a model that `train` wrote."""
    place = target.resolve()
    if place in (source, source.parent) or (target / folder.MODEL).exists():
        return True
    of_a_model = (place.parent / folder.RUN).exists() or (place.parent == source.parent and place.exists())
    return of_a_model and place.name in (folder.MODEL, folder.TOKENIZER, folder.STATE, folder.RUN)


async def _adapter(arguments: argparse.Namespace) -> None:
    if arguments.target.resolve() == arguments.source.resolve():
        raise UsageError(f"{arguments.target} is SOURCE itself, which would be written over; name another TARGET")
    base, _ = folder.load_model(arguments.base, await request_backend("numpy"))
    adapted = await folder.load_adapters(base, [str(arguments.source)])
    await folder.write_adapter(adapted, str(arguments.source), arguments.target, arguments.fp16)
    print(f"wrote {arguments.target}")


# ── reading ──────────────────────────────────────────────────────────────────
def read_model(path: Path, top_k: int | None, backend: Any) -> EvermindLM:
    """The model in a file. Raises FormatError, OSError."""
    if path.suffix in (".pt", ".pth"):
        checkpoint: bytes = _torch().convert_file(path, _top_k(path, top_k))
        return EvermindLM.from_checkpoint(checkpoint, backend)
    data = folder.read_bytes(path)
    looks = describe(data)
    if looks == "a safetensors file":
        return import_evermind(data, top_k=_top_k(path, top_k), backend=backend)
    if looks == "an EVM1 model package":
        return EvermindModelPackage.from_blob(data).load_lm(backend)
    if looks == "an EVL0 model checkpoint":
        return EvermindLM.from_checkpoint(data, backend)
    raise FormatError(f"{path} holds no language model{f' (looks like {looks})' if looks else ''}; expected {READ}")


def file_of(source: Path) -> Path:
    """The file itself, or the first one of a folder that holds a model. Raises InvalidArgumentError."""
    if not source.is_dir():
        return source
    folder.settle(source)
    for name in (folder.MODEL, "model.safetensors", "pytorch_model.pt"):
        if (source / name).exists():
            return source / name
    raise InvalidArgumentError(f"{source} holds no {folder.MODEL} and no model.safetensors; name the file itself")


def _top_k(path: Path, given: int | None) -> int | None:
    """Experts of a token as config.json beside the file has it, where it was not given."""
    config = path.with_name("config.json")
    if given is None and config.exists():
        value = folder.read_json(config).get("num_experts_per_tok")
        return value if isinstance(value, int) else None
    return given


# ── writing ──────────────────────────────────────────────────────────────────
async def _encoded(model: EvermindLM, kind: str, arguments: argparse.Namespace) -> bytes:
    fp16, name = arguments.fp16, arguments.name
    if kind == "evl0":
        return await model.export_weights_async(fp16)
    if kind == "safetensors":
        return await export_safetensors(model, fp16)
    if kind == "gguf":
        return await export_gguf_async(model, name, fp16)
    if kind == "onnx":
        return await export_onnx_async(model)
    if kind == "evm1":
        return (await EvermindModelPackage.from_lm_async(model, name, "1", {}, fp16)).to_blob()
    return _torch_file(model.config, await model.packed_weights_async())


async def _write_folder(model: EvermindLM, arguments: argparse.Namespace) -> None:
    tokenizer = _tokenizer_of(arguments.source, arguments.tokenizer)
    model.check_codec(tokenizer)
    options = {"tokenizer": tokenizer, "fp16": arguments.fp16, "name": arguments.name}
    result = await export_evermind_async(model, "huggingface", **options)
    files = {f.path: f.data.encode() if isinstance(f.data, str) else f.data for f in result.files}
    folder.write_files(arguments.target, files)


def _tokenizer_of(source: Path, given: Path | None) -> BPETokenizer:
    path = given or (source if source.is_dir() else source.parent) / folder.TOKENIZER
    if not path.exists():
        raise InvalidArgumentError(
            f"a Hugging Face folder needs the tokenizer, and there is no {path}; give --tokenizer"
        )
    return BPETokenizer.from_file(path)


def _torch_file(arch: Any, packed: Any) -> bytes:
    """A state dict as `torch.save` writes it."""
    state, torch, out = _torch().state_from_packed(arch, packed), import_module("torch"), io.BytesIO()
    torch.save({name: torch.from_numpy(values.copy()) for name, values in state.items()}, out)
    return out.getvalue()


def _torch() -> Any:
    """evermind_web.torch.convert, where PyTorch is there."""
    try:
        return import_module("evermind_web.torch.convert")
    except ImportError as error:
        raise EvermindError(f"PyTorch files need PyTorch ({error}); install it with pip install torch") from None
