"""`python -m bench.draw_curves [CURVES.json PICTURE.svg]`: what `curves()` of the benchmark page measured, drawn.

The file holds the value of the expression `curves()`, or rows {"expression": …, "value": …} with one among them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from bench.svg import Chart, Points, document
from tools.common import ROOT

RESULTS: Final = ROOT / "bench" / "results" / "curves-h200.json"
PICTURE: Final = ROOT / "docs" / "images" / "curves.svg"
PROPORTIONAL, ONE_MORE, FLAT = "y ∝ x", "y ∝ x + 1", "y the same"
PANELS: Final = {  # curve: title, what x is, the ideal, which is dashed
    "tokens": ("ms a step by tokens", "tokens in a step", PROPORTIONAL),
    "layers": ("ms a step by layers", "layers", PROPORTIONAL),
    "active experts": ("ms a step by active experts", "experts for each token, besides the shared one", ONE_MORE),
    "experts": ("ms a step by experts in all", "experts, 2 of them for each token", FLAT),
    "context": ("ms a token written, by context", "tokens before it", FLAT),
    "vocabulary": ("ms a step by vocabulary", "tokens in the vocabulary", ""),
}


def read(path: Path) -> dict[str, Any]:
    """The curves in a file.

    Raises:
        ValueError: it holds none.
    """
    found = json.loads(path.read_text(encoding="utf-8"))
    rows = found if isinstance(found, list) else [{"value": found}]
    merged: dict[str, Any] = {}
    for row in rows:
        value = row.get("value", row)
        if isinstance(value, dict):
            merged |= {name: value[name] for name in PANELS if name in value}
    if not merged:
        raise ValueError(f"{path}: expected one of {', '.join(PANELS)}, which curves() returns; found none")
    return merged


def chart(name: str, rows: list[dict[str, Any]]) -> Chart:
    """One panel."""
    title, across, ideal = PANELS[name]
    line = [(row["x"], row["ms"]) for row in rows]
    (first, low), (last, high) = line[0], line[-1]
    dashed: Points = ()
    if ideal == PROPORTIONAL:
        dashed = [(0, 0), (last, high)]
    elif ideal == ONE_MORE:
        dashed = [(0, high / (last + 1)), (last, high)]
    elif ideal == FLAT:
        dashed = [(first, low), (last, low)]
    ticks = [x for x, _ in line]
    linear = ideal in (PROPORTIONAL, ONE_MORE)
    if linear:  # those at the left lie too close
        ticks = [x for x in ticks if x >= last / 8]
    return Chart(title, across, {name: line}, dashed, ticks, logarithmic=not linear)


def main() -> int:
    """Read, draw, write."""
    source, target = map(Path, sys.argv[1:]) if len(sys.argv) == 3 else (RESULTS, PICTURE)
    found = read(source)
    charts = [chart(name, found[name]) for name in PANELS if found.get(name)]
    target.write_text(document("Cost of a step and of a token, one dimension at a time", charts, 3), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
