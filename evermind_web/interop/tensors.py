"""A model as named tensors, and back: what every exchange format has in common."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from evermind_web.checks import checked
from evermind_web.environment import run_blocking
from evermind_web.errors import FormatError
from evermind_web.formats.arch import Arch, evermind_tensor_spec, iter_tensor_spec, param_count_of
from evermind_web.formats.safetensors_io import Named, NamedTensor, read_metadata, safetensors_to_tensors
from evermind_web.model import EvermindLM
from evermind_web.params import F32, check_arch

TOP_K_KEY = "evermind.top_k"  # in the metadata of our safetensors files; no shape tells it
DEFAULT_TOP_K = 2
HEADS = ("lm_head.weight", "output.weight")  # what other programs call an output head


@checked
def arch_of(lm: EvermindLM) -> Arch:
    """The seven numbers of a model's shape."""
    return Arch.of(lm.config)


@checked
def param_count(lm: EvermindLM) -> int:
    """Number of weights."""
    return param_count_of(lm.config)


def cut_packed(arch: Arch, packed: F32) -> list[NamedTensor]:
    """The packed weight vector as named tensors in canonical order (views)."""
    tensors, start = [], 0
    for spec in evermind_tensor_spec(arch):
        part = packed[start : start + spec.size].reshape(spec.shape)
        tensors.append(NamedTensor(spec.name, spec.shape, part))
        start += spec.size
    return tensors


@checked
async def named_tensors_async(lm: EvermindLM) -> list[NamedTensor]:
    """All weights, `.name .shape .data` (float32 copies), in canonical order."""
    return cut_packed(arch_of(lm), await lm.packed_weights_async())


def named_tensors(lm: EvermindLM) -> list[NamedTensor]:
    """Blocking twin of `named_tensors_async`."""
    return run_blocking(named_tensors_async(lm))


# ── import ───────────────────────────────────────────────────────────────────
@checked
def infer_arch_from_tensors(tensors: Iterable[Named], top_k: int | None = None) -> Arch:
    """The architecture that the names and shapes of tensors imply.

    No shape tells how many experts a token uses: top_k, or 2 where it is not given, limited to the number of experts.
    FormatError names the tensor that is missing or has a wrong rank.
    """
    shapes = {tensor.name: tuple(tensor.shape) for tensor in tensors}

    def matrix(name: str, squeezed: bool = False) -> tuple[int, int]:
        shape = shapes.get(name)
        if shape is None:
            raise FormatError(f"import: there is no tensor {name!r}; give rename= if the file uses other names")
        shape = tuple(n for i, n in enumerate(shape) if n != 1 or i in (0, len(shape) - 1)) if squeezed else shape
        if len(shape) != 2:
            raise FormatError(f"import: tensor {name!r} has shape {shapes[name]}, expected a matrix")
        return shape

    vocab_size, d_model = matrix("token_embedding.weight")
    layers = _count(shapes, r"layers\.([0-9]{1,9})\.")
    if not layers:
        raise FormatError("import: there are no layers.<n>. tensors; a model without layers cannot be imported")
    _, conv_kernel = matrix("layers.0.conv.weight", squeezed=True)
    hidden_dim, _ = matrix("layers.0.moe.shared.w1")
    experts = _count(shapes, r"layers\.0\.moe\.experts\.([0-9]{1,9})\.")
    used = min(DEFAULT_TOP_K if top_k is None else top_k, max(1, experts))
    return Arch(vocab_size, d_model, layers, conv_kernel, hidden_dim, experts, used)


@checked
def import_evermind_tensors(
    tensors: Iterable[Named],
    top_k: int | None = None,
    arch: Any = None,
    rename: Callable[[str], str | None] | None = None,
    backend: Any = None,
) -> EvermindLM:
    """A model with these weights.

    rename: maps each tensor's name to ours, or to None to leave the tensor out. arch: the shape, if it is not to be
    inferred. top_k: experts per token, which no shape tells (default 2, with a warning where that is a guess).
    FormatError for a missing tensor, a name used twice or a wrong shape (sizes of 1 are overlooked); a tensor that
    the model has no place for is left out with a warning.
    """
    found: dict[str, Named] = {}
    for tensor in tensors:
        name = tensor.name if rename is None else rename(tensor.name)
        if name in found:
            raise FormatError(f"import: two tensors are named {name!r}; let rename= tell them apart")
        if name is not None:
            found[name] = tensor
    if arch is None:
        renamed = [NamedTensor(name, tuple(t.shape), np.empty(0)) for name, t in found.items()]
        shape = infer_arch_from_tensors(renamed, top_k)
        if top_k is None and shape.num_experts > 1:
            warnings.warn(f"nothing says how many experts a token uses; assuming top_k={shape.top_k}", stacklevel=2)
    else:
        shape = Arch.of(arch) if top_k is None else Arch.of(arch)._replace(top_k=top_k)
    check_arch(shape)
    _drop_tied_head(found)
    # One by one: a file may claim any number of experts, and the first that is missing ends it.
    parts = [_take(found, spec.name, spec.shape) for spec in iter_tensor_spec(shape)]
    if found:
        warnings.warn(f"import: no place for {len(found)} tensors, such as {next(iter(found))!r}", stacklevel=2)
    model = EvermindLM(**shape._asdict(), backend=backend)
    model.load_packed(np.concatenate(parts))
    return model


@checked
def import_evermind(
    data: bytes,
    top_k: int | None = None,
    arch: Any = None,
    rename: Callable[[str], str | None] | None = None,
    backend: Any = None,
) -> EvermindLM:
    """A model from a safetensors file; options and errors as in `import_evermind_tensors`.

    Files that this package wrote say themselves how many experts a token uses.
    """
    tensors = safetensors_to_tensors(data)
    stored = read_metadata(data).get(TOP_K_KEY, "")
    if top_k is None and arch is None and re.fullmatch("[0-9]{1,9}", stored):
        top_k = int(stored)
    return import_evermind_tensors(tensors, top_k, arch, rename, backend)


def _count(names: Iterable[str], pattern: str) -> int:
    """One more than the largest number that the pattern finds at the start of a name; 0 where it finds none."""
    found = [int(match[1]) for name in names if (match := re.match(pattern, name))]
    return max(found, default=-1) + 1


def _drop_tied_head(found: dict[str, Named]) -> None:
    """Leave out a head of its own that equals the embedding, which is our head too; any other is refused."""
    for name in HEADS:
        head, embedding = found.get(name), found.get("token_embedding.weight")
        if head is None or embedding is None:
            continue
        ours, theirs = (np.asarray(t.data, np.float32).ravel() for t in (embedding, head))
        if not np.array_equal(ours, theirs):
            raise FormatError(
                f"import: {name!r} differs from 'token_embedding.weight', which is the output head of this model too; "
                "a model with a head of its own cannot be imported (rename= may leave the tensor out)"
            )
        del found[name]


def _take(found: dict[str, Named], name: str, shape: tuple[int, ...]) -> F32:
    """The tensor's values, flat; it is removed from found."""
    tensor = found.pop(name, None)
    if tensor is None:
        raise FormatError(
            f"import: tensor {name!r} {list(shape)} is missing; give rename= if the file uses other names"
        )
    values = np.asarray(tensor.data, np.float32).ravel()
    if [n for n in tensor.shape if n != 1] != [n for n in shape if n != 1] or values.size != int(np.prod(shape)):
        raise FormatError(
            f"import: tensor {name!r} has shape {list(tensor.shape)} and {values.size} values, expected {list(shape)}"
        )
    return values
