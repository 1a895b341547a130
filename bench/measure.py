"""What the benchmark page measures of evermind_web, in its worker: training, decoding, single operations.

Every number comes with a check: the loss before and after, and how far a tiny training run is from NumPy's.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from evermind_web import ops, request_backend
from evermind_web.backend import simd
from evermind_web.backend.base import Backend, Buf
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.backend.reference import linalg
from evermind_web.layout import moe_layout
from evermind_web.lora import EvermindLMLoRA
from evermind_web.model import EvermindLM
from evermind_web.training import EvermindLMTrainer, Example, StepInfo

SIZES = {  # V, D, L, K, H, E, k
    "tiny": (64, 32, 2, 3, 48, 4, 2),
    "S": (512, 64, 2, 3, 128, 4, 2),
    "M": (2048, 128, 4, 3, 256, 8, 2),
    "L": (4096, 256, 6, 3, 512, 8, 2),
}
COUNTS = ("crossings", "submits", "dispatches", "bind_groups")
SEGMENTS = 10  # the warm steps are timed in so many parts; the median of these is what is reported

_backends: dict[str, Backend] = {}
_checked: dict[str, float] = {}


async def backend_named(name: str) -> Backend:
    """One backend of a kind for the whole page; "numpy-alone" is NumPy without the SIMD kernels."""
    if name not in _backends:
        _backends[name] = await request_backend("numpy" if name.startswith("numpy") else name)
    if name.startswith("numpy"):
        linalg.use(simd.Arranged() if name == "numpy-alone" else simd.faster())
    return _backends[name]


def model_of(size: str, backend: Backend) -> EvermindLM:
    """A fresh model."""
    return EvermindLM(*SIZES[size], seed=1, backend=backend)


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

    def ms_per_step(self) -> float:
        """Median over parts of the run of the time of a step. A part ends where a chunk of steps was reported."""
        ends = [i for i in range(len(self.at) - 1) if self.at[i + 1] - self.at[i] > 1e-4] + [len(self.at) - 1]
        ends = ends[len(ends) // 4 :]  # chunks grow at first
        stride = max(1, (len(ends) - 1) // SEGMENTS)
        marks = ends[::stride]
        parts = [(self.at[b] - self.at[a]) / (b - a) for a, b in itertools.pairwise(marks)]
        return 1000 * (statistics.median(parts) if parts else (self.at[-1] - self.at[0]) / max(1, len(self.at) - 1))


async def train(spec: dict[str, Any]) -> dict[str, Any]:
    """size, batch, seqLen, steps, backend, mode "full" or "lora" → a row of the table."""
    name, batch, length = spec.get("backend", "webgpu"), spec.get("batch", 8), spec.get("seqLen", 64)
    size, steps, mode = spec.get("size", "S"), spec.get("steps", 60), spec.get("mode", "full")
    backend = await backend_named(name)
    difference = await check(name)
    model = model_of(size, backend)
    data = examples(model.config.vocab_size, batch, length)
    options = {"accum_steps": batch, "checkpoint": bool(spec.get("checkpoint"))}
    lora = EvermindLMLoRA(model, rank=8) if mode == "lora" else None
    trainer = None if lora else EvermindLMTrainer(model, lr=spec.get("lr", 1e-3), epochs=1, **options)
    started = time.perf_counter()
    first = Clock()
    await _fit(trainer, lora, data, 1, first, options)
    first_step_ms = 1000 * (time.perf_counter() - started)
    await _fit(trainer, lora, data, spec.get("warm", 4), Clock(), options)
    before, clock = stats_of(backend), Clock()
    started = time.perf_counter()
    with timed_submits(backend) as submits:
        await _fit(trainer, lora, data, steps, clock, options)
    wall, after = time.perf_counter() - started, stats_of(backend)
    ms, tokens = clock.ms_per_step(), batch * length
    row = {
        "backend": name, "adapter": backend.adapter_name, "mode": mode, "size": size, "batch": batch, "seqLen": length,
        "steps": steps, "parameters": model.num_parameters, "tok_s": round(1000 * tokens / ms),
        "tok_s_wall": round(steps * tokens / wall), "ms_per_step": round(ms, 4), "first_step_ms": round(first_step_ms),
        "loss_first": first.losses[0], "loss_last": clock.losses[-1], "max_diff_numpy": difference,
        "gpu_bytes": after.get("buffer_bytes", 0) + after.get("scratch_bytes", 0),
        **per_step(before, after, steps),
    }  # fmt: skip
    if submits:
        row["submit_us"] = round(1e6 * statistics.median(submits), 1)
    if trainer is not None and after:
        row["python_us"] = round(python_us(trainer, data), 1)
    for part in (trainer, lora, model):
        if part is not None:
            part.dispose()
    return row


async def _fit(
    trainer: EvermindLMTrainer | None,
    lora: EvermindLMLoRA | None,
    data: Sequence[Example],
    steps: int,
    clock: Clock,
    options: dict[str, Any],
) -> None:
    if trainer is not None:
        trainer.options = _with_epochs(trainer, steps)
        await trainer.fit_async(data, on_step=clock)
    elif lora is not None:
        await lora.fit_async(data, epochs=steps, on_step=clock, lr=1e-3, **options)


def _with_epochs(trainer: EvermindLMTrainer, epochs: int) -> Any:
    from dataclasses import replace

    return replace(trainer.options, epochs=epochs)


def python_us(trainer: EvermindLMTrainer, data: Sequence[Example], steps: int = 300) -> float:
    """Microseconds of Python for a replayed step, with a device that takes submits and does nothing."""
    from evermind_web.batch import check_item, cut_windows
    from evermind_web.training.loop import Loop

    backend: Any = trainer.backend
    items = [check_item(s, trainer.model.config.vocab_size) for s in data]
    windows = cut_windows(items, len(items))
    loop, ring = Loop(trainer, trainer.options), backend.alloc((backend.steps_per_read, 4))
    loop._total = 2 * steps
    loop._queue(windows, 0, ring, 0)
    real, backend.device.submit = backend.device.submit, lambda records, staging: None
    try:
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
    """size, tokens, context, sequences, backend → new tokens a second, counted in Python, without the prompt."""
    name, size = spec.get("backend", "webgpu"), spec.get("size", "S")
    count, sequences = spec.get("tokens", 256), spec.get("sequences", 1)
    backend = await backend_named(name)
    model = model_of(size, backend)
    prompt = np.random.default_rng(1).integers(0, model.config.vocab_size, spec.get("context", 10)).tolist()
    settings = {"temperature": 1.0, "seed": 5}
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
        "max_diff_numpy": await check(name), **per_step(before, after, count),
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
async def check(name: str) -> float:
    """Largest difference from NumPy in float64, relative to the largest weight, after three steps of a tiny model."""
    if name not in _checked:
        _checked[name] = await _tiny_difference(name)
    return _checked[name]


async def _tiny_difference(name: str) -> float:
    weights = []
    for backend in (NumpyBackend(np.float64), await backend_named(name)):
        model = model_of("tiny", backend)
        trainer = EvermindLMTrainer(model, lr=1e-3, eps=1e-3, epochs=3, accum_steps=4)
        await trainer.fit_async(examples(64, 4, 24))
        weights.append(await model.packed_weights_async())
        trainer.dispose()
        model.dispose()
    return float(np.abs(weights[0] - weights[1]).max() / np.abs(weights[0]).max())


# ── single operations ────────────────────────────────────────────────────────
WORTH_S = 0.03  # what the runs of one measurement take at least
MOST_REPEATS = 4096


class Operation:
    """One operation of `ops` on random data, many times in one submit."""

    def __init__(
        self, backend: Backend, op: str, letters: dict[str, int], scalars: dict[str, int], flops: float
    ) -> None:
        self.backend, self.op, self.scalars, self.flops = backend, ops.OPS[op], scalars, flops
        self.letters = letters | scalars
        self.bufs: list[Buf] = []
        random = np.random.default_rng(3)
        self.ins = [self._filled(arg, random) for arg in self.op.ins]
        self.outs = [self._new(arg) for arg in self.op.outs]

    def _new(self, arg: ops.Arg) -> Buf:
        self.bufs.append(self.backend.alloc([ops.extent_of(dim, self.letters) for dim in arg.dims], arg.dtype))
        return self.bufs[-1]

    def _filled(self, arg: ops.Arg, random: np.random.Generator) -> Buf:
        buf = self._new(arg)
        if arg.dtype == "int32":
            top = self.letters["V"] if arg.name in ("tokens", "targets") else 1
            self.backend.write(buf, random.integers(0, top, buf.shape).astype(np.int32))
        elif arg.name == "hyper":
            self.backend.write(buf, ops.hyper_vector({}))
        else:
            self.backend.write(buf, random.normal(0, 0.05, buf.shape).astype(np.float32))
        return buf

    def run(self) -> None:
        """Queue it once."""
        self.op(self.backend, self.ins, self.outs, **self.scalars)

    async def seconds(self, repeats: int) -> float:
        """For `repeats` runs and one read."""
        started = time.perf_counter()
        for _ in range(repeats):
            self.backend.replay(("bench", self.outs[0].id), self.run)
        await self.backend.read(self.outs[-1] if self.outs[-1].size < 4096 else self.small)
        return time.perf_counter() - started

    async def row(self, repeats: int, rounds: int) -> dict[str, Any]:
        """Milliseconds of one run: the time that more runs take, so that the read cancels out."""
        self.small = self.backend.alloc((1,))
        self.bufs.append(self.small)
        await self.seconds(2)
        # A read takes milliseconds, give or take one: what is measured has to be well above that.
        while repeats < MOST_REPEATS and await self.seconds(2 * repeats) - await self.seconds(repeats) < WORTH_S:
            repeats *= 2
        times = [await self.seconds(2 * repeats) - await self.seconds(repeats) for _ in range(rounds)]
        ms = 1000 * statistics.median(times) / repeats
        for buf in self.bufs:
            self.backend.free(buf)
        shape = " ".join(f"{name}={value}" for name, value in self.letters.items() if name not in ("M", "P", "G"))
        row = {"op": self.op.name, "shape": shape, "ms": round(ms, 4)}
        return row | ({"tflops": round(self.flops / ms / 1e9, 2)} if self.flops and ms > 0 else {})


def operations(size: str, rows: int) -> list[tuple[str, dict[str, int], dict[str, int], float]]:
    """What a training step of this size runs: (operation, letters, scalars, floating-point operations)."""
    V, D, _, K, H, E, k = SIZES[size]
    block = moe_layout(D, H, E).size
    moe = {"N": rows, "D": D, "M": block}
    experts = {"H": H, "E": E, "k": k}
    head = {"N": rows, "V": V, "D": D}
    expert = 4.0 * rows * (k + 1) * D * H
    return [
        ("rmsnorm_fwd", {"N": rows, "D": D}, {}, 0),
        ("conv_norm_fwd", {"N": rows, "D": D, "K": K}, {}, 0),
        ("moe_fwd", moe, experts, expert),
        ("conv_bwd", {"N": rows, "D": D, "K": K}, {}, 0),
        ("head_logits", head, {}, 2.0 * rows * V * D),
        ("head_xent_bwd", head, {}, 6.0 * rows * V * D),
        ("embed_bwd", head, {}, 0),
        ("adamw", {"P": block, "G": block // 64}, {"half": 0}, 0),
    ]


async def kernels(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """size, rows, backend → one row an operation at the model's own shapes."""
    backend = await backend_named(spec.get("backend", "webgpu"))
    out = []
    for rows in spec.get("rows", [512, 4096]):
        for op, letters, scalars, flops in operations(spec.get("size", "L"), rows):
            operation = Operation(backend, op, letters, scalars, flops)
            out.append(await operation.row(spec.get("repeats", 20), spec.get("rounds", 5)))
    return out


FUNCTIONS = {"train": train, "decode": decode, "kernels": kernels}


async def answer(function: str, text: str) -> str:
    """JSON in, JSON out."""
    return json.dumps(await FUNCTIONS[function](json.loads(text)))


if __name__ == "__main__":  # python -m bench.measure train '{"size": "S", "backend": "wgpu"}'
    import sys

    print(asyncio.run(answer(sys.argv[1], sys.argv[2])))
