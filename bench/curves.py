"""`curves()`: how the cost of a step and of a token grows, one dimension at a time, from a model like size M.

`bench/draw_curves.py` makes the picture.
"""

from __future__ import annotations

from typing import Any, Final

from bench.measure import decode, shape_of, train

WIDE: Final = 32  # sequences of 64 tokens where tokens are not what varies: enough that arithmetic outweighs launches
LENGTH: Final = 64
CURVES: Final[dict[str, tuple[str, tuple[int, ...]]]] = {  # letter of what varies, and its values
    "tokens": ("batch", (4, 8, 16, 32, 64, 128)),  # times LENGTH
    "layers": ("L", (1, 2, 3, 4, 6, 8, 12)),
    "active experts": ("k", (1, 2, 3, 4, 6, 8)),
    "experts": ("E", (2, 4, 8, 16, 32, 64)),
}
CONTEXTS: Final = (10, 100, 1000, 10_000)
LARGE_VOCABULARY: Final = 32_768
KEPT: Final = ("ms_per_step", "ms_best", "ms_worst", "tok_s", "dispatches", "parameters", "gpu_bytes", "loss_first",
               "loss_last", "max_diff_numpy", "wrong")  # fmt: skip


async def curves(spec: dict[str, Any]) -> dict[str, Any]:
    """size, backend, steps, only → {curve: [{x, ms, …}, …], …}; ms of a step, for contexts of a token."""
    size = {"size": "M", "backend": "webgpu", "steps": 100} | spec
    only = spec.get("only", [*CURVES, "context", "vocabulary"])
    out: dict[str, Any] = {"shape": shape_of(size), "length": LENGTH, "batch": WIDE}
    for name, (letter, values) in CURVES.items():
        if name in only:
            out[name] = [await _step(size | {"batch": WIDE, letter: value}, value) for value in values]
    for point in out.get("tokens", []):
        point["x"] *= LENGTH
    if "context" in only:
        out["context"] = [await _token(size, context) for context in CONTEXTS]
    if "vocabulary" in only:
        tokens = WIDE * LENGTH
        row = await _step(size | {"batch": WIDE, "V": LARGE_VOCABULARY}, LARGE_VOCABULARY)
        out["vocabulary"] = [row | {"tokens": tokens, "all_logits_bytes": 4 * tokens * LARGE_VOCABULARY}]
    return out


async def _step(spec: dict[str, Any], x: int) -> dict[str, Any]:
    row = await train(spec | {"seqLen": LENGTH})
    return {"x": x, "ms": row["ms_per_step"]} | {name: row[name] for name in KEPT if name in row}


async def _token(spec: dict[str, Any], context: int) -> dict[str, Any]:
    row = await decode(spec | {"tokens": 500, "context": context})
    return {"x": context, "ms": round(1000 / row["tok_s"], 5)} | {name: row[name] for name in KEPT if name in row}
