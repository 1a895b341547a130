"""What the benchmark page measures of evermind_web, in its worker: training, decoding, and how long a start takes.

Every number comes with a check: the loss before and after, and how far a tiny training run is from NumPy's.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evermind_web import request_backend
from evermind_web.backend import simd
from evermind_web.backend.base import Backend
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.backend.reference import linalg
from evermind_web.batch import check_item, cut_windows
from evermind_web.lora import EvermindLMLoRA
from evermind_web.lora.training import AdapterTraining
from evermind_web.model import EvermindLM
from evermind_web.optim import AdamWOptions
from evermind_web.training import EvermindLMTrainer, Example, StepInfo, TrainingOptions
from evermind_web.training.loop import Loop, Steppable

LETTERS: Final = ("V", "D", "L", "K", "H", "E", "k")
SIZES = {  # in these letters
    "tiny": (64, 32, 2, 3, 48, 4, 2),
    "S": (512, 64, 2, 3, 128, 4, 2),
    "M": (2048, 128, 4, 3, 256, 8, 2),
    "L": (4096, 256, 6, 3, 512, 8, 2),
    "XL": (16384, 512, 10, 3, 1024, 8, 2),  # 103M: more than one binding of 128 MiB
}
COUNTS = ("crossings", "submits", "dispatches", "bind_groups")
SEGMENTS = 10  # the warm steps are timed in so many parts; the median of these is what is reported
WARM_ROUND, WARM_STEPS, WARM_S = 32, 400, 1.5  # steps of one round of warming up; at most so many, or so long
SETTLED = 0.03  # two rounds that differ by less end it
TOLERANCE = 1e-4  # of a result against NumPy's, relative to the largest value

_backends: dict[str, Backend] = {}
_checked: dict[tuple[str, str], float] = {}


async def backend_named(name: str) -> Backend:
    """One backend of a kind for the whole page; "numpy-alone" is NumPy without the SIMD kernels."""
    if name not in _backends:
        _backends[name] = await request_backend("numpy" if name.startswith("numpy") else name)
    if name.startswith("numpy"):
        linalg.use(simd.Arranged() if name == "numpy-alone" else simd.faster())
    return _backends[name]


def shape_of(spec: dict[str, Any]) -> tuple[int, ...]:
    """V, D, L, K, H, E, k of spec["size"], S if none is named; each may be given on its own, under its letter."""
    named = zip(LETTERS, SIZES[spec.get("size", "S")], strict=True)
    return tuple(int(spec.get(letter, value)) for letter, value in named)


def examples(vocab: int, batch: int, length: int) -> list[Example]:
    """`batch` windows of `length` tokens, each with a target: a noisy cycle, so that there is something to learn."""
    random = np.random.default_rng(0)
    out = []
    for start in random.integers(0, vocab, batch):
        ids = (start + np.arange(length + 1) * 7 + random.integers(0, 3, length + 1)) % vocab
        out.append(Example(ids[:-1], ids[1:]))
    return out


def stats_of(backend: Backend) -> dict[str, int]:
    """Counters of the device; none on NumPy."""
    stats = getattr(backend, "stats", None)
    return dict(stats()) if stats else {}


def per_step(before: dict[str, int], after: dict[str, int], steps: int) -> dict[str, float]:
    """How often each thing happened in a step."""
    return {name: round((after[name] - before[name]) / steps, 3) for name in COUNTS if name in after}


class Clock:
    """Times of the steps as they are reported, several at once on a GPU."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.losses: list[float] = []

    def __call__(self, info: StepInfo) -> None:
        self.at.append(time.perf_counter())
        self.losses.append(info.loss)

    def parts(self) -> list[float]:
        """Milliseconds of a step in each of several parts of the run. A part ends where a chunk was reported."""
        ends = [i for i in range(len(self.at) - 1) if self.at[i + 1] - self.at[i] > 1e-4] + [len(self.at) - 1]
        ends = ends[len(ends) // 4 :]  # chunks grow at first
        marks = ends[:: max(1, (len(ends) - 1) // SEGMENTS)]
        if len(marks) < 2:
            marks = [0, max(1, len(self.at) - 1)][: len(self.at)]
        return [1000 * (self.at[b] - self.at[a]) / (b - a) for a, b in itertools.pairwise(marks)]


class Run:
    """One training run: of all weights, or with mode "lora" of an adapter on the embedding."""

    def __init__(self, model: EvermindLM, data: Sequence[Example], spec: dict[str, Any]) -> None:
        self.model, self.data = model, data
        self.adamw = {"lr": spec.get("lr", 1e-3), "eps": spec.get("eps", 1e-8)}
        self.options = {"accum_steps": len(data), "checkpoint": bool(spec.get("checkpoint"))}
        self.lora = EvermindLMLoRA(model, rank=8) if spec.get("mode") == "lora" else None
        self.trainer = None if self.lora else EvermindLMTrainer(model, epochs=1, **self.adamw, **self.options)

    async def fit(self, steps: int) -> Clock:
        """Train that many steps on the same batch."""
        clock = Clock()
        if self.trainer is not None:
            self.trainer.options = replace(self.trainer.options, epochs=steps)
            await self.trainer.fit_async(self.data, on_step=clock)
        elif self.lora is not None:
            await self.lora.fit_async(self.data, epochs=steps, on_step=clock, **self.adamw, **self.options)
        return clock

    async def settle(self, first: int) -> int:
        """Warm up: `first` steps, then more until the time of a step stays the same; returns how many there were."""
        done, last, until = first, 0.0, time.perf_counter() + WARM_S
        await self.fit(first)
        while done < WARM_STEPS and time.perf_counter() < until:
            now = statistics.median((await self.fit(WARM_ROUND)).parts())
            done += WARM_ROUND
            if abs(now - last) < SETTLED * now:
                break
            last = now
        return done

    def python_us(self, steps: int = 300) -> float:
        """Microseconds of Python for a replayed step, with a device that takes submits and does nothing."""
        if self.trainer is not None:
            return python_us(self.trainer, self.trainer.options, self.data, steps)
        assert self.lora is not None
        options = TrainingOptions(accum_steps=len(self.data))
        job = AdapterTraining(self.lora, self.lora._weights, AdamWOptions(**self.adamw), options, ())
        try:
            return python_us(job, options, self.data, steps)
        finally:
            job.free()

    def dispose(self) -> None:
        """Give everything back, the model too."""
        for part in (self.trainer, self.lora, self.model):
            if part is not None:
                part.dispose()


async def train(spec: dict[str, Any]) -> dict[str, Any]:
    """size, batch, seqLen, steps, backend, mode "full" or "lora" → a row of the table."""
    name, batch, length = spec.get("backend", "webgpu"), spec.get("batch", 8), spec.get("seqLen", 64)
    steps, mode = max(2, spec.get("steps", 60)), spec.get("mode", "full")  # one step has no time between steps
    backend = await backend_named(name)
    difference = await check(name, mode)
    model = EvermindLM(*shape_of(spec), seed=1, backend=backend)
    run = Run(model, examples(model.config.vocab_size, batch, length), spec)
    started = time.perf_counter()
    first = await run.fit(1)
    first_step_ms = 1000 * (time.perf_counter() - started)
    warm = await run.settle(spec.get("warm", 4))
    before, started = stats_of(backend), time.perf_counter()
    with timed_submits(backend) as submits:
        clock = await run.fit(steps)
    wall, after = time.perf_counter() - started, stats_of(backend)
    parts, tokens = clock.parts(), batch * length
    ms = statistics.median(parts)
    row = {
        "backend": name, "adapter": backend.adapter_name, "mode": mode, "size": spec.get("size", "S"), "batch": batch,
        "seqLen": length, "steps": steps, "warm_steps": warm, "parameters": model.num_parameters,
        "tok_s": round(1000 * tokens / ms), "tok_s_wall": round(steps * tokens / wall), "ms_per_step": round(ms, 4),
        "ms_best": round(min(parts), 4), "ms_worst": round(max(parts), 4), "first_step_ms": round(first_step_ms),
        "loss_first": first.losses[0], "loss_last": clock.losses[-1], **compared(difference),
        "gpu_bytes": after.get("buffer_bytes", 0) + after.get("scratch_bytes", 0),
        **per_step(before, after, steps),
    }  # fmt: skip
    if submits:
        row["submit_us"] = round(1e6 * statistics.median(submits), 1)
    if after:
        row["python_us"] = round(run.python_us(), 1)
    run.dispose()
    return row


async def start(spec: dict[str, Any]) -> dict[str, Any]:
    """size, backend → milliseconds from nothing to the device, a step of training and a token; call it first of all."""
    started = time.perf_counter()
    backend = await backend_named(spec.get("backend", "webgpu"))
    marks = [time.perf_counter()]
    compiled = stats_of(backend).get("pipelines", 0)
    run = Run(model := EvermindLM(*shape_of(spec), seed=1, backend=backend), examples(shape_of(spec)[0], 8, 64), spec)
    marks.append(time.perf_counter())
    await run.fit(1)
    marks.append(time.perf_counter())
    _, token, _ = await _written(model, [1, 2, 3], 2, 1, {"temperature": 1.0, "seed": 5})
    run.dispose()
    device, made, step = (1000 * (b - a) for a, b in itertools.pairwise([started, *marks]))
    return {
        "adapter": backend.adapter_name, "size": spec.get("size", "S"), "pipelines_before": compiled,
        "device_ms": round(device), "model_ms": round(made), "first_step_ms": round(step),
        "first_token_ms": round(1000 * token),
    }  # fmt: skip


def python_us(job: Steppable, options: TrainingOptions, data: Sequence[Example], steps: int) -> float:
    """See `Run.python_us`."""
    backend: Any = job.backend
    items = [check_item(s, int(max(s.tokens.max(), s.targets.max())) + 1) for s in data]
    windows = cut_windows(items, len(items))
    loop, ring = Loop(job, options), backend.alloc((backend.steps_per_read, 4))
    loop._total = 4 * steps
    real, backend.device.submit = backend.device.submit, lambda records, staging: None
    try:
        loop._queue(windows, 0, ring, 0)
        rounds = []
        for _ in range(3):
            started = time.perf_counter()
            for i in range(steps):
                loop._queue(windows, i, ring, i % backend.steps_per_read)
            rounds.append((time.perf_counter() - started) / steps)
    finally:
        backend.device.submit = real
    backend.free(ring)
    return 1e6 * min(rounds)


@contextmanager
def timed_submits(backend: Any) -> Iterator[list[float]]:
    """Seconds of each submit meanwhile: the call into JavaScript, and the encoding of all its commands."""
    taken: list[float] = []
    device = getattr(backend, "device", None)
    if device is None:
        yield taken
        return
    real = device.submit

    def submit(records: Any, staging: Any) -> None:
        started = time.perf_counter()
        real(records, staging)
        taken.append(time.perf_counter() - started)

    device.submit = submit
    try:
        yield taken
    finally:
        device.submit = real


async def decode(spec: dict[str, Any]) -> dict[str, Any]:
    """size, tokens, context, sequences, backend, sampling (more settings) → new tokens a second, without the prompt."""
    name, size = spec.get("backend", "webgpu"), spec.get("size", "S")
    count, sequences = spec.get("tokens", 256), spec.get("sequences", 1)
    backend = await backend_named(name)
    model = EvermindLM(*shape_of(spec), seed=1, backend=backend)
    prompt = np.random.default_rng(1).integers(0, model.config.vocab_size, spec.get("context", 10)).tolist()
    settings = {"temperature": 1.0, "seed": 5, **spec.get("sampling", {})}
    await _written(model, prompt, min(count, 16), sequences, settings)
    rates = []
    for _ in range(spec.get("repeats", 3)):
        before = stats_of(backend)
        made, first, seconds = await _written(model, prompt, count, sequences, settings)
        rates.append((made / seconds, first))
    after = stats_of(backend)
    row = {
        "backend": name, "adapter": backend.adapter_name, "size": size, "tokens": count, "sequences": sequences,
        "context": len(prompt), "tok_s": round(statistics.median(rate for rate, _ in rates)),
        "first_token_ms": round(1000 * statistics.median(first for _, first in rates), 2),
        **compared(await check_text(name)), **per_step(before, after, count),
    }  # fmt: skip
    model.dispose()
    return row


async def _written(
    model: EvermindLM, prompt: list[int], count: int, sequences: int, settings: dict[str, Any]
) -> tuple[int, float, float]:
    """Tokens after the first chunk, seconds until the first token, seconds for the rest."""
    started = time.perf_counter()
    marks: list[tuple[int, float]] = []
    made = 0
    if sequences == 1:
        async for _ in model.stream_async(prompt, max_new_tokens=count, **settings):
            made += 1
            if made == 1:
                marks.append((made, time.perf_counter()))
    else:
        async for chunk in model._chunks(prompt, {"max_new_tokens": count, **settings}, sequences):
            made += sum(len(ids) for ids in chunk.ids)
            if not marks:
                marks.append((made, time.perf_counter()))
    assert made == count * sequences, f"expected {count * sequences} tokens, got {made}"
    return made - marks[0][0], marks[0][1] - started, max(time.perf_counter() - marks[0][1], 1e-9)


# ── checks ───────────────────────────────────────────────────────────────────
def compared(difference: float) -> dict[str, Any]:
    """The entry `max_diff_numpy` of a row, None if it is not finite, and `wrong` if it is not NumPy's."""
    fine = {} if difference <= TOLERANCE else {"wrong": True}
    return {"max_diff_numpy": difference if math.isfinite(difference) else None, **fine}


async def check(name: str, mode: str = "full") -> float:
    """How far three steps of a tiny model move its weights (or its adapter) otherwise than in NumPy in float64:

    the largest difference of a change, relative to the largest change.
    """
    if (name, mode) not in _checked:
        _checked[name, mode] = await _tiny_difference(name, mode)
    return _checked[name, mode]


async def check_text(name: str) -> float:
    """0 if a tiny model writes the same tokens as in NumPy in float64, drawn with the same seed, else 1."""
    if (name, "text") not in _checked:
        texts = []
        for backend in (NumpyBackend(np.float64), await backend_named(name)):
            model = EvermindLM(*SIZES["tiny"], seed=1, backend=backend)
            texts.append(await model.generate_async([1, 2, 3], max_new_tokens=32, temperature=1.0, seed=5))
            model.dispose()
        _checked[name, "text"] = float(texts[0] != texts[1])
    return _checked[name, "text"]


async def _tiny_difference(name: str, mode: str) -> float:
    exact, ours = [await _tiny_change(b, mode) for b in (NumpyBackend(np.float64), await backend_named(name))]
    return float(np.abs(exact - ours).max() / np.abs(exact).max())


async def _tiny_change(backend: Backend, mode: str) -> NDArray[np.float64]:
    spec = {"mode": mode, "lr": 0.02, "eps": 1e-3}  # with less the sign of a gradient that is nearly 0 would decide
    run = Run(EvermindLM(*SIZES["tiny"], seed=1, backend=backend), examples(64, 4, 24), spec)
    before = await _weights(run)
    await run.fit(3)
    change = await _weights(run) - before
    run.dispose()
    return change


async def _weights(run: Run) -> NDArray[np.float64]:
    if run.lora is None:
        return (await run.model.packed_weights_async()).astype(np.float64)
    return np.concatenate([run.lora.adapter.B.ravel(), run.lora.adapter.A.ravel()]).astype(np.float64)


# ── calls ────────────────────────────────────────────────────────────────────
CALLS: Final = {  # what the page may call, and the module that has it
    "train": "measure",
    "decode": "measure",
    "start": "measure",
    "kernels": "operations",
    "curves": "curves",
}


async def answer(function: str, text: str) -> str:
    """JSON in, JSON out."""
    module = importlib.import_module(f"bench.{CALLS[function]}")
    return json.dumps(await getattr(module, function)(json.loads(text)))


if __name__ == "__main__":  # python -m bench.measure train '{"size": "S", "backend": "wgpu"}'
    import sys

    print(asyncio.run(answer(sys.argv[1], sys.argv[2])))
