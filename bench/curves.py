"""`curves()`: how the cost of a step and of a token grows, one dimension at a time, from a model like size M.

`bench/draw_curves.py` makes the picture.
"""

from __future__ import annotations

from typing import Any, Final

from bench.measure import decode, shape_of, train

VALUES: Final = {  # of what varies
    "tokens": (256, 512, 1024, 2048, 4096, 8192),  # in a step
    "layers": (1, 2, 3, 4, 6, 8, 12),
    "active experts": (1, 2, 3, 4, 6, 8),
    "experts": (2, 4, 8, 16, 32, 64),
    "context": (10, 100, 1000, 10_000),
    "vocabulary": (2048, 8192, 32_768),
}
LETTERS_OF: Final = {"layers": "L", "active experts": "k", "experts": "E", "vocabulary": "V"}
KEPT: Final = ("ms_per_step", "ms_best", "ms_worst", "tok_s", "dispatches", "parameters", "gpu_bytes", "loss_first",
               "loss_last", "all_logits_bytes", "max_diff_numpy", "wrong")  # fmt: skip


async def curves(spec: dict[str, Any]) -> dict[str, Any]:
    """size, backend, batch, seqLen, steps, only → {curve: [{x, ms, …}, …], …}; ms of a step, for contexts of a token.

    only: {curve: values of x} for some curves, or with other values.
    """
    base = {"size": "M", "batch": 32, "seqLen": 64, "steps": 100} | spec
    out: dict[str, Any] = {"shape": shape_of(base), "tokens_a_step": base["batch"] * base["seqLen"]}
    for name, values in spec.get("only", VALUES).items():
        out[name] = [await _point(base, name, x) for x in values]
    return out


async def _point(spec: dict[str, Any], curve: str, x: int) -> dict[str, Any]:
    if curve == "context":
        return await _token(spec, x)
    letter, unit = ("batch", spec["seqLen"]) if curve == "tokens" else (LETTERS_OF[curve], 1)
    row = await train(spec | {letter: x // unit})
    if curve == "vocabulary":
        row["all_logits_bytes"] = 4 * spec["batch"] * spec["seqLen"] * x
    return {"x": x, "ms": row["ms_per_step"]} | {name: row[name] for name in KEPT if name in row}


async def _token(spec: dict[str, Any], context: int) -> dict[str, Any]:
    row = await decode(spec | {"tokens": 500, "context": context})
    return {"x": context, "ms": round(1000 / row["tok_s"], 5)} | {name: row[name] for name in KEPT if name in row}
