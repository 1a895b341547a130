"""What personalising is worth: bits per byte before and after, for adapters of several kinds and full fine-tuning.

In CPython:

    python bench/personalize.py --base base.evl0 --tokenizer tokenizer.json --texts FOLDER [--backend wgpu]

In a page, on WebGPU: `--site FOLDER` lays the built page (`make dist`), this script, base and texts into FOLDER; in
personalize.html, once `ready` is true, `await personalize({...})` gives the same JSON. Options are those of `Options`.

The rules: the held-out part is scored twice, before and after, and decides nothing. Early stopping, and whether an
adapter is kept at all, look at a slice at the end of the training part. The test-only text is only scored.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from evermind_web import (
    BPETokenizer,
    EvermindLM,
    EvermindLMTrainer,
    Example,
    LoraModel,
    __version__,
    request_backend,
)
from evermind_web.batch import check_item, token_weights
from evermind_web.language_model import LanguageModel
from evermind_web.session.core import Session
from evermind_web.session.model_set import ModelSet, fingerprint_of
from evermind_web.session.recipes import Recipe
from evermind_web.session.texts import scored_windows

PERSONAL = ("shakespeare", "alice", "time-machine")
TEST_ONLY = "dorian-gray"
SMALL = 5000  # bytes of the small case


# ── texts ────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Parts:
    """What is learned from, the slice of it that stops the learning, and what is held out."""

    train: str
    slice: str
    held_out: str

    @property
    def size(self) -> int:
        """Bytes that are learned from, the slice included."""
        return len((self.train + self.slice).encode("utf-8"))


def cut_bytes(text: str, first: int, last: int | None = None) -> str:
    """Bytes first…last of a text's UTF-8, without broken characters at the ends."""
    return text.encode("utf-8")[first:last].decode("utf-8", errors="ignore")


def parts_of(name: str, text: str, small: bool = False) -> Parts:
    """shakespeare: first 200 KB, held out the last 50 KB; others: first 80 %, held out the rest. small: 5 KB of it."""
    size = len(text.encode("utf-8"))
    train = cut_bytes(text, 0, 200_000 if name == "shakespeare" else size * 8 // 10)
    held_out = cut_bytes(text, size - 50_000 if name == "shakespeare" else size * 8 // 10)
    if small:
        train = cut_bytes(train, 0, SMALL)
    size = len(train.encode("utf-8"))
    border = size * (8 if small else 9) // 10
    return Parts(cut_bytes(train, 0, border), cut_bytes(train, border), held_out)


class Encoded:
    """A tokenizer that remembers what it encoded: the same few texts come again with every method."""

    def __init__(self, tokenizer: BPETokenizer) -> None:
        self.decode = tokenizer.decode
        self.encode = cache(tokenizer.encode)


def reach_of(model: LanguageModel) -> int:
    """How many tokens back a model can see."""
    return model.config.num_layers * (model.config.conv_kernel - 1)


async def bits_per_byte(model: LanguageModel, tokenizer: BPETokenizer | Encoded, text: str) -> float:
    """Of a text, scored as if it were read from its beginning to its end."""
    ids = tokenizer.encode(text)
    items = [check_item(window, model.config.vocab_size) for window in scored_windows(ids, reach_of(model))]
    nats = await model.evaluate_items(items, token_weights(items)) * (len(ids) - 1)
    size = len(text.encode("utf-8")) - len(tokenizer.decode(ids[:1]).encode("utf-8"))
    return nats / math.log(2) / size


# ── recipes ──────────────────────────────────────────────────────────────────
# "page" is what the page's own session does with a text; the others are its recipe with changes, "full" on all weights.
RECIPES = {
    "page": Recipe(),
    "embedding": Recipe(("token_embedding",), r=16, rank_pattern={}, lr=0.004),
    "all-linear": Recipe(),
    "full": Recipe((), lr=0.001),
}

# What `--grid` tries around each recipe; the best on the slice wins.
GRID: dict[str, list[dict[str, Any]]] = {
    "page": [{}],
    "embedding": [{"r": r, "lr": lr} for r in (4, 16) for lr in (0.003, 0.01, 0.03)],
    "all-linear": [{"lr": lr, "lora_dropout": p} for lr in (0.002, 0.005, 0.01) for p in (0.0, 0.1)],
    "full": [{"lr": lr} for lr in (0.0003, 0.001, 0.003)],
}


@dataclass
class Result:
    """One row of the table. Bits per byte; `kept` is False where the slice got no better, so that nothing was kept."""

    text: str
    train_bytes: int
    method: str
    before: float
    after: float
    slice_before: float
    slice_after: float
    kept: bool
    seconds: float
    steps: int
    adapter_bytes: int
    base_unchanged: bool
    test_only_before: float
    test_only_off: float
    recipe: dict[str, Any]

    @property
    def change(self) -> float:
        """Percent; negative is better."""
        return 100 * (self.after / self.before - 1)


@dataclass(frozen=True)
class Options:
    """texts, methods: by name. small: the case of 5 KB, besides the whole one. grid: try `GRID`, report slices only.

    test_only_bytes: how much of the test-only text is scored. recipes: changes to `RECIPES`, by method and field.
    length: of the method "page", as its user chooses it.
    """

    texts: tuple[str, ...] = PERSONAL
    methods: tuple[str, ...] = tuple(RECIPES)
    whole: bool = True
    small: bool = True
    grid: bool = False
    test_only_bytes: int = 60_000
    length: str = "normal"
    recipes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    backend: str = "numpy"

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Options:
        """From JSON. Raises ValueError for a name that is none."""
        unknown = set(values) - {f.name for f in fields(cls)}
        if unknown:
            raise ValueError(f"no such option: {', '.join(sorted(unknown))}")
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})

    def recipe(self, method: str) -> Recipe:
        """The recipe with its changes."""
        changed = {k: tuple(v) if isinstance(v, list) else v for k, v in self.recipes.get(method, {}).items()}
        return replace(RECIPES[method], **changed)


# ── one measurement ──────────────────────────────────────────────────────────
class Bench:
    """A base with its tokenizer on a backend."""

    def __init__(self, base: bytes, tokenizer: BPETokenizer, backend: Any, test_only: str, length: str) -> None:
        self.base, self.codec, self.tokenizer, self.backend = base, tokenizer, Encoded(tokenizer), backend
        self.test_only, self.length = test_only, length
        self.model = EvermindLM.from_checkpoint(base, backend=backend)
        self._known: dict[str, float] = {}

    async def before(self, text: str) -> float:
        """Bits per byte of the base, measured once a text."""
        if text not in self._known:
            self._known[text] = await bits_per_byte(self.model, self.tokenizer, text)
        return self._known[text]

    async def measure(self, name: str, parts: Parts, method: str, recipe: Recipe, final: bool = True) -> Result:
        """Train and score. final=False leaves the held-out part alone."""
        fingerprint = await self.model.fingerprint_async()
        tuned = (Page if method == "page" else Adapter if recipe.targets else Full)(self, recipe)
        started = time.perf_counter()
        steps = await tuned.fit(parts)
        seconds = time.perf_counter() - started
        slices = await self.before(parts.slice), await bits_per_byte(tuned.model, self.tokenizer, parts.slice)
        kept = slices[1] < slices[0]
        before = await self.before(parts.held_out) if final else math.nan
        after = await bits_per_byte(tuned.model, self.tokenizer, parts.held_out) if final and kept else before
        tuned.switch_off()
        off = await bits_per_byte(self.model, self.tokenizer, self.test_only) if final else math.nan
        result = Result(
            name, parts.size, method, before, after, *slices, kept, seconds, steps,
            await tuned.size(), await self.model.fingerprint_async() == fingerprint,
            await self.before(self.test_only) if final else math.nan, off, asdict(tuned.recipe),
        )  # fmt: skip
        tuned.dispose()
        return result

    def lesson(self, parts: Parts, recipe: Recipe) -> tuple[list[Example], list[Example], dict[str, Any]]:
        """Windows to learn from, those that say when to stop, and the options of a fit."""
        windows = recipe.windows(self.tokenizer.encode(parts.train))
        validation = list(scored_windows(self.tokenizer.encode(parts.slice), reach_of(self.model)))
        return windows, validation, recipe.options(len(windows))


class Count:
    """Counts steps."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, _: object) -> None:
        self.steps += 1


class Page:
    """What the page does: its session splits the text, chooses the rate, stops, and keeps the adapter as bytes."""

    def __init__(self, bench: Bench, recipe: Recipe) -> None:
        self.length, self.recipe, self.session = bench.length, recipe, Session(bench.backend)
        self.current = ModelSet(bench.model, bench.codec, bench.base, fingerprint_of(bench.base), {})
        self.session.adopt(self.current)
        self.model: LanguageModel = bench.model

    async def fit(self, parts: Parts) -> int:
        """Learn; returns the steps."""
        result = await self.session.personalize(parts.train + parts.slice, "mine", {"length": self.length})
        self.recipe, self.model = Recipe(**result["recipe"]), self.current.writer({"mine": 1.0})
        return int(result["steps"])

    def switch_off(self) -> None:
        """The bare base from now on."""
        self.session.set_adapter(None)

    async def size(self) -> int:
        """Bytes of the adapter as it is saved."""
        return len(self.current.adapter("mine").data)

    def dispose(self) -> None:
        """Give the memory back, but the base's."""
        self.current.forget_writers()


class Adapter:
    """An adapter on the base, which stays as it is."""

    def __init__(self, bench: Bench, recipe: Recipe) -> None:
        self.bench, self.recipe, self.model = bench, recipe, LoraModel(bench.model)
        self.model.add_adapter("mine", recipe.adapter(bench.model.config))

    async def fit(self, parts: Parts) -> int:
        """Train with early stopping; returns the steps."""
        windows, validation, options = self.bench.lesson(parts, self.recipe)
        count = Count()
        await self.model.fit_async(windows, validation=validation, on_step=count, **options)
        return count.steps

    def switch_off(self) -> None:
        """The bare base from now on."""
        self.model.set_adapter(None)

    async def size(self) -> int:
        """Bytes of the adapter's files, fp16."""
        return sum(len(data) for data in (await self.model.save_adapter_async("mine", fp16=True)).values())

    def dispose(self) -> None:
        """Give the memory back."""
        self.model.dispose()


class Full:
    """All weights of a copy of the base."""

    def __init__(self, bench: Bench, recipe: Recipe) -> None:
        self.bench, self.recipe = bench, recipe
        self.model = EvermindLM.from_checkpoint(bench.base, backend=bench.backend)

    async def fit(self, parts: Parts) -> int:
        """Train with early stopping; returns the steps."""
        windows, validation, options = self.bench.lesson(parts, self.recipe)
        count, trainer = Count(), EvermindLMTrainer(self.model, **options)
        await trainer.fit_async(windows, count, validation=validation)
        trainer.dispose()
        return count.steps

    def switch_off(self) -> None:
        """A copy has no switch."""

    async def size(self) -> int:
        """Bytes of a whole fp16 checkpoint: what would have to be kept."""
        return len(await self.model.export_weights_async(fp16=True))

    def dispose(self) -> None:
        """Give the memory back."""
        self.model.dispose()


# ── the whole table ──────────────────────────────────────────────────────────
async def run(
    base: bytes, tokenizer_json: str, texts: Mapping[str, str], options: Options, say: Any = print
) -> dict[str, Any]:
    """All rows, as JSON. say(line) is called after each."""
    backend = await request_backend(options.backend)
    test_only = cut_bytes(texts[TEST_ONLY], 0, options.test_only_bytes)
    bench = Bench(base, BPETokenizer.from_str(tokenizer_json), backend, test_only, options.length)
    if options.texts and options.methods and (options.whole or options.small):
        await bench.before(parts_of(options.texts[0], texts[options.texts[0]]).slice)  # compile kernels before timing
    rows: list[Result] = []
    for name in options.texts:
        for small in [s for s, wanted in ((False, options.whole), (True, options.small)) if wanted]:
            parts = parts_of(name, texts[name], small)
            for method in options.methods:
                for change in GRID[method] if options.grid else [{}]:
                    recipe = replace(options.recipe(method), **change)
                    rows.append(await bench.measure(name, parts, method, recipe, final=not options.grid))
                    say(f"{line(rows[-1])}{' ' + json.dumps(change) if change else ''}")
    return {
        "version": __version__, "backend": backend.name, "adapter_name": backend.adapter_name,
        "base_fingerprint": await bench.model.fingerprint_async(), "parameters": bench.model.num_parameters,
        "rows": [asdict(row) | {"change_percent": row.change} for row in rows],
    }  # fmt: skip


def line(r: Result) -> str:
    """A row for people."""
    held_out = f"{r.before:.4f} → {r.after:.4f} ({r.change:+.1f} %)"
    return (
        f"{r.text:13}{r.train_bytes:8} B {r.method:11} held-out {held_out}  slice {r.slice_before:.4f} → "
        f"{r.slice_after:.4f}{'' if r.kept else ' not kept'}  {r.adapter_bytes / 1000:.0f} KB  {r.seconds:.1f} s  "
        f"{r.steps} steps{'' if r.base_unchanged and same(r.test_only_before, r.test_only_off) else '  BASE CHANGED'}"
    )


def same(a: float, b: float) -> bool:
    """Equal bits, or both not measured."""
    return a == b or (math.isnan(a) and math.isnan(b))


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The published table."""
    titles = ("Text", "Learned from", "What", "Held-out bits/byte", "Change", "Size", "Seconds")
    head = [f"| {' | '.join(titles)} |", "| --- " * len(titles) + "|"]
    body = (
        f"| {r['text']} | {r['train_bytes'] / 1000:.0f} KB | {r['method']} | {r['before']:.3f} → {r['after']:.3f} | "
        f"{r['change_percent']:+.1f} % | {r['adapter_bytes'] / 1000:.0f} KB | {r['seconds']:.1f} |"
        for r in rows
    )
    return "\n".join([*head, *body])


async def in_page(folder: str, options_json: str) -> str:
    """What personalize.mjs calls: files lie in Pyodide's file system."""
    options = Options.of({"backend": "webgpu"} | json.loads(options_json))
    wanted = {*options.texts, TEST_ONLY}
    here = Path(folder)
    texts = {name: (here / f"{name}.txt").read_text(encoding="utf-8") for name in wanted}
    tokenizer = (here / "tokenizer.json").read_text(encoding="utf-8")
    return json.dumps(await run((here / "base.evl0").read_bytes(), tokenizer, texts, options))


def lay_site(site: Path, arguments: argparse.Namespace) -> None:
    """The built page with this benchmark beside it."""
    here = Path(__file__).parent
    dist = here.parent / "dist"
    shutil.copytree(dist, site, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.map", "models", "samples"))
    for name in ("personalize.html", "personalize.mjs", "personalize.py"):
        shutil.copy(here / name, site / name)
    data = site / "personalize"
    data.mkdir(exist_ok=True)
    shutil.copy(arguments.base, data / "base.evl0")
    shutil.copy(arguments.tokenizer, data / "tokenizer.json")
    for name in (*PERSONAL, TEST_ONLY):
        shutil.copy(arguments.texts / f"{name}.txt", data / f"{name}.txt")
    print(f"{site}: serve it and open personalize.html; in its console: await personalize({{…}})")


def main() -> None:
    """See the module text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, help="EVL0 checkpoint")
    parser.add_argument("--tokenizer", type=Path, required=True, help="its tokenizer.json")
    parser.add_argument("--texts", type=Path, required=True, help="folder with shakespeare.txt, alice.txt …")
    parser.add_argument("--backend", default="numpy", choices=("numpy", "wgpu"))
    parser.add_argument("--options", type=json.loads, default={}, metavar="JSON", help="see Options")
    parser.add_argument("--grid", action="store_true", help="try settings, judged on the slice")
    parser.add_argument("--site", type=Path, help="lay the page into this folder instead of measuring here")
    parser.add_argument("-o", "--output", type=Path, help="JSON with all rows")
    arguments = parser.parse_args()
    if arguments.site:
        lay_site(arguments.site, arguments)
        return
    options = Options.of({"backend": arguments.backend, "grid": arguments.grid} | arguments.options)
    texts = {n: (arguments.texts / f"{n}.txt").read_text(encoding="utf-8") for n in {*options.texts, TEST_ONLY}}
    tokenizer = arguments.tokenizer.read_text(encoding="utf-8")
    result = asyncio.run(run(arguments.base.read_bytes(), tokenizer, texts, options))
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(markdown(result["rows"]))


if __name__ == "__main__":
    main()
