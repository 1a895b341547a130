"""Curves of pretraining runs as an SVG: held-out bits per byte on the left, the training loss on the right.

    python -m tools.pretrain_curves curves.svg RUN.results.jsonl NAME=curve.jsonl …

The first file has a line per run as tools.pretrain_distil writes it; each curve.jsonl belongs to the run NAME.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

COLOURS = ("#0b6e4f", "#c8553d", "#3d5a80", "#8d6a9f", "#6b705c", "#b08900")
WIDTH, HEIGHT, LEFT, TOP = 300, 220, 46, 26
POINTS = 90  # of a training curve

Line = list[tuple[float, float]]


def smoothed(path: Path) -> Line:
    """Means of equal stretches of a curve.jsonl: (step, loss)."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    size = max(1, len(rows) // POINTS)
    parts = [rows[i : i + size] for i in range(0, len(rows), size)]
    return [(part[-1]["step"], sum(row["loss"] for row in part) / len(part)) for part in parts]


def panel(x: int, title: str, lines: dict[str, Line], low: float, high: float, order: list[str]) -> list[str]:
    """One panel at x: lines cut off at `high`, an axis each way."""
    last = max(step for line in lines.values() for step, _ in line)

    def place(step: float, value: float) -> tuple[float, float]:
        across, down = step / last * WIDTH, (high - min(value, high)) / (high - low) * HEIGHT
        return round(x + LEFT + across, 1), round(TOP + down, 1)

    out = [f'<text x="{x + LEFT}" y="16" font-weight="bold">{title}</text>']
    for i in range(5):
        value = low + (high - low) * i / 4
        left, y = place(0, value)
        out.append(f'<path d="M{left} {y}h{WIDTH}" stroke="#ddd"/>')
        out.append(f'<text x="{left - 4}" y="{y + 4}" text-anchor="end">{value:.2f}</text>')
        step = last * i / 4
        out.append(f'<text x="{place(step, low)[0]}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{step:.0f}</text>')
    for name, line in lines.items():
        colour = COLOURS[order.index(name) % len(COLOURS)]
        points = " ".join(f"{a},{b}" for a, b in (place(*point) for point in line if point[1] <= high))
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        out += [f'<circle cx="{p.split(",")[0]}" cy="{p.split(",")[1]}" r="2" fill="{colour}"/>'
                for p in points.split() if len(line) < POINTS // 2]  # fmt: skip
    return out


def picture(results: list[dict[str, object]], curves: dict[str, Path]) -> str:
    """The SVG."""
    held: dict[str, Line] = {}
    for run in results:
        evaluations = run["evaluations"]
        assert isinstance(evaluations, list)
        held[str(run["name"])] = [(e["step"], e["validation"]) for e in evaluations]
    training = {name: smoothed(path) for name, path in curves.items()}
    order = sorted(held | training)
    width, height = 2 * (WIDTH + LEFT) + 40, TOP + HEIGHT + 48
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
           'font-size="11" fill="#222">', f'<rect width="{width}" height="{height}" fill="#fff"/>']  # fmt: skip
    out += panel(0, "Validation, bits per byte, by step", held, 1.45, 1.65, order)
    out += panel(WIDTH + LEFT + 20, "Training loss with dropout, nats per token", training, 2.6, 5.0, order)
    for i, name in enumerate(order):
        x, y = LEFT + i * 125, TOP + HEIGHT + 36
        out.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{COLOURS[i % len(COLOURS)]}"/>')
        out.append(f'<text x="{x + 14}" y="{y}">{name}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main() -> None:
    """See the top of this file."""
    target, results, *pairs = sys.argv[1:]
    runs = [json.loads(line) for line in Path(results).read_text(encoding="utf-8").splitlines()]
    curves = {name: Path(path) for name, _, path in (pair.partition("=") for pair in pairs)}
    Path(target).write_text(picture(runs, curves), encoding="utf-8")


if __name__ == "__main__":
    main()
