"""From text files to batches of token windows: which tokens a step sees follows from recipe and step number alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evermind_web.bench import token_byte_lengths
from evermind_web.errors import InvalidArgumentError
from evermind_web.tokenizer import BPETokenizer
from evermind_web.torch.recipe import Recipe
from evermind_web.torch.subword import SubwordSampler

Ids = NDArray[Any]
VERSION = 1  # of the prepared files


@dataclass(frozen=True)
class Corpus:
    """Training ids (a memory map), held-out pieces by kind, and the tokenizer.

    held_out: "validation" (the end of each training text), "unseen" (whole texts that choices may look at) and "test"
    (whole texts that are only scored); each a list of id arrays.
    """

    tokenizer: BPETokenizer
    train: Ids
    held_out: dict[str, list[Ids]]
    token_bytes: NDArray[np.int64]
    digest: str
    documents: list[str]


def prepare(
    texts: Sequence[Path], unseen: Sequence[Path], test: Sequence[Path], recipe: Recipe, folder: Path,
    tokenizer_file: Path | None = None, write: bool = True,
) -> Corpus:  # fmt: skip
    """Read the texts, train the tokenizer on the training parts unless a file is given, encode, and keep it in folder.

    What is there already is taken if it was made from the same texts and settings. write=False only reads it.
    """
    contents = {
        kind: [_read(p) for p in paths] for kind, paths in (("train", texts), ("unseen", unseen), ("test", test))
    }
    if not contents["train"]:
        raise InvalidArgumentError("no text to train on; name at least one file")
    digest = _digest(contents, recipe, tokenizer_file)
    parts = [split_end(text, recipe.val_fraction) for text in contents["train"]]
    documents = [kept for kept, _ in parts]
    done = folder / "corpus.json"
    if not done.exists() or json.loads(done.read_text(encoding="utf-8"))["digest"] != digest:
        if not write:
            raise InvalidArgumentError(f"{folder} was not prepared for these texts; let the first process prepare it")
        folder.mkdir(parents=True, exist_ok=True)
        done.unlink(missing_ok=True)
        tokenizer = BPETokenizer.from_file(tokenizer_file) if tokenizer_file else _trained(documents, recipe)
        _encode_all(tokenizer, documents, [end for _, end in parts], contents, folder)
        done.write_text(json.dumps({"digest": digest}), encoding="utf-8")
    tokenizer = BPETokenizer.from_file(folder / "tokenizer.json")
    lengths = token_byte_lengths(tokenizer)
    assert lengths is not None
    held_out: dict[str, list[Ids]] = {}
    with np.load(folder / "held_out.npz") as arrays:
        for name in arrays.files:
            held_out.setdefault(name.split("-")[0], []).append(arrays[name])
    train = np.load(folder / "train.npy", mmap_mode="r")
    return Corpus(tokenizer, train, held_out, lengths, digest, documents)


def split_end(text: str, fraction: float) -> tuple[str, str]:
    """The text in two: what is trained on, and the last `fraction`, cut at an empty line where there is one."""
    cut = len(text) - int(len(text) * fraction)
    border = text.rfind("\n\n", 0, cut)
    cut = border + 2 if border > len(text) // 2 else cut
    return text[:cut], text[cut:] if fraction > 0 else ""


class Windows:
    """Batches of windows (B, T+1): a pass over the text in a new order, from a new start, each epoch."""

    def __init__(self, train: Ids, recipe: Recipe, epoch_ids: Callable[[int], Ids] | None = None) -> None:
        """epoch_ids: another stream for each epoch, as a SubwordSampler gives."""
        self._recipe = recipe
        self._epoch_ids = epoch_ids or (lambda _: train)
        self.steps_per_epoch = max(1, (len(train) - 1) // recipe.window // recipe.batch)
        if len(train) < 2 * recipe.window:
            raise InvalidArgumentError(
                f"the training text has {len(train)} tokens, a window {recipe.window}: "
                "give more text or a smaller --window"
            )
        self._epoch = -1
        self._stream: Ids = train
        self._starts: NDArray[np.int64] = np.zeros(0, np.int64)

    def batch(self, step: int, rank: int = 0, world: int = 1) -> NDArray[np.int64]:
        """Windows number rank, rank + world, … of step `step` (from 0)."""
        epoch, within = divmod(step, self.steps_per_epoch)
        self._enter(epoch)
        size = self._recipe.batch
        rows = np.arange(within * size + rank, (within + 1) * size, world) % len(self._starts)
        starts = self._starts[rows]
        return np.asarray(self._stream[starts[:, None] + np.arange(self._recipe.window + 1)], np.int64)

    def _enter(self, epoch: int) -> None:
        if epoch == self._epoch:
            return
        self._epoch, self._stream = epoch, self._epoch_ids(epoch)
        rng = np.random.default_rng([self._recipe.seed, epoch, 3])
        window = self._recipe.window
        offset = int(rng.integers(0, window))
        count = max(1, (len(self._stream) - 1 - offset) // window)
        self._starts = offset + window * rng.permutation(count).astype(np.int64)


def windows_of(corpus: Corpus, recipe: Recipe) -> Windows:
    """The batches of a recipe, with other spellings each epoch where it asks for them."""
    if not recipe.subword_dropout:
        return Windows(corpus.train, recipe)
    sampler = SubwordSampler(corpus.tokenizer, corpus.documents, recipe.subword_dropout, recipe.seed)
    return Windows(corpus.train, recipe, lambda epoch: sampler.epoch(recipe.seed, epoch))


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path} is not UTF-8 text; convert it first") from error


def _digest(contents: dict[str, list[str]], recipe: Recipe, tokenizer_file: Path | None) -> str:
    tokenizer = tokenizer_file.read_text(encoding="utf-8") if tokenizer_file else recipe.vocab_size
    about = json.dumps([VERSION, contents, recipe.val_fraction, tokenizer])
    return hashlib.sha256(about.encode("utf-8", "surrogatepass")).hexdigest()


def _trained(documents: list[str], recipe: Recipe) -> BPETokenizer:
    tokenizer = BPETokenizer()
    tokenizer.train(documents, vocab_size=recipe.vocab_size)
    return tokenizer


def _encode_all(
    tokenizer: BPETokenizer, documents: list[str], ends: list[str], contents: dict[str, list[str]], folder: Path
) -> None:
    dtype = np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<i4")
    tokenizer.save(folder / "tokenizer.json")
    train = [np.array(tokenizer.encode(text, add_bos=True, add_eos=True), dtype) for text in documents]
    np.save(folder / "train.npy", np.concatenate(train))
    held_out = {"validation": [end for end in ends if end], "unseen": contents["unseen"], "test": contents["test"]}
    arrays = {
        f"{kind}-{i}": np.array(tokenizer.encode(text), dtype)
        for kind, pieces in held_out.items()
        for i, text in enumerate(pieces)
    }
    np.savez(folder / "held_out.npz", **arrays)  # type: ignore[arg-type]
