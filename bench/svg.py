"""Small charts as SVG, readable on a light and on a dark page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from xml.sax.saxutils import escape

Points = Sequence[tuple[float, float]]

STYLE: Final = (
    "<style>text{fill:#333;font:11px sans-serif}.t{font-weight:bold}.g{stroke:#ddd}.i{stroke:#888;stroke-dasharray:4 3}"
    ".c0{stroke:#1668c7}.c1{stroke:#c2410c}.c2{stroke:#4d7c0f}text.c0{fill:#1668c7}text.c1{fill:#c2410c}"
    "text.c2{fill:#4d7c0f}text.c0,text.c1,text.c2{stroke:none}path,polyline{fill:none;stroke-width:1}polyline.c0,"
    "polyline.c1,polyline.c2{stroke-width:2}@media(prefers-color-scheme:dark){text{fill:#ddd}.g{stroke:#444}"
    ".c0{stroke:#6cb0ff}.c1{stroke:#ff9966}.c2{stroke:#9fd356}text.c0{fill:#6cb0ff}text.c1{fill:#ff9966}"
    "text.c2{fill:#9fd356}}</style>"
)
LEFT, TOP, BOTTOM, RIGHT = 46, 24, 34, 24  # margins of a chart


@dataclass
class Chart:
    """Lines by name over one pair of axes, `width` by `height` pixels with its margins."""

    title: str
    across: str  # what x is
    lines: dict[str, Points]
    ideal: Points = ()  # a dashed line without marks
    ticks: Sequence[float] = ()  # on the axis of x
    logarithmic: bool = False  # the axis of x
    low: float = 0.0  # of the axis of y
    high: float | None = None
    width: int = 300
    height: int = 210
    digits: int = 3  # significant, of numbers on the axis of y
    _x: tuple[float, float] = field(init=False)

    def __post_init__(self) -> None:
        every = [p for line in self.lines.values() for p in line] + list(self.ideal)
        xs = [self._scaled(x) for x, _ in every]
        self._x = min(xs), max(xs)
        if self.high is None:
            self.high = 4 * _round(max(y for _, y in every) / 4)

    def _scaled(self, x: float) -> float:
        return math.log(x) if self.logarithmic else x

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Pixels of a point."""
        first, last = self._x
        assert self.high is not None
        part = (self._scaled(x) - first) / ((last - first) or 1)
        down = (self.high - y) / ((self.high - self.low) or 1)
        inner = self.width - LEFT - RIGHT, self.height - TOP - BOTTOM
        return round(LEFT + inner[0] * part, 1), round(TOP + inner[1] * down, 1)

    def draw(self, x: int = 0, y: int = 0) -> str:
        """The chart with its upper left corner there."""
        assert self.high is not None
        out = [f'<g transform="translate({x} {y})"><text class="t" x="{LEFT}" y="14">{escape(self.title)}</text>']
        for i in range(5):
            value = self.low + (self.high - self.low) * i / 4
            _, down = self.place(self._from_scaled(self._x[0]), value)
            number = f"{value:.{self.digits}g}"
            out.append(f'<path class="g" d="M{LEFT} {down}H{self.width - RIGHT}"/>')
            out.append(f'<text x="{LEFT - 5}" y="{down + 4}" text-anchor="end">{number}</text>')
        for tick in self.ticks:
            left, bottom = self.place(tick, self.low)
            out.append(f'<text x="{left}" y="{bottom + 14}" text-anchor="middle">{tick:,.0f}</text>')
        out.append(f'<text x="{LEFT}" y="{self.height - 6}">{escape(self.across)}</text>')
        if self.ideal:
            out.append(f'<polyline class="i" points="{self._path(self.ideal)}"/>')
        for i, (name, line) in enumerate(self.lines.items()):
            out.append(f'<polyline class="c{i}" points="{self._path(line)}"/>')
            out += [f'<path class="c{i}" d="M{a - 2} {b}h4M{a} {b - 2}v4"/>' for a, b in (self.place(*p) for p in line)]
            if len(self.lines) > 1:
                at = f'x="{self.width - RIGHT}" y="{TOP + 14 + 14 * i}" text-anchor="end"'
                out.append(f'<text class="c{i}" {at}>{escape(name)}</text>')
        return "".join([*out, "</g>"])

    def _from_scaled(self, value: float) -> float:
        return math.exp(value) if self.logarithmic else value

    def _path(self, line: Points) -> str:
        return " ".join(f"{a},{b}" for a, b in (self.place(*p) for p in line))


def _round(value: float) -> float:
    """The next number of 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8 or 10 times a power of ten."""
    power = 10 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 20) if power * step >= value)


def document(title: str, charts: Sequence[Chart], columns: int = 1) -> str:
    """Charts of one size in so many columns, as the text of a file."""
    width, height = charts[0].width, charts[0].height
    across, down = min(columns, len(charts)) * width, -(-len(charts) // columns) * height
    parts = [chart.draw(i % columns * width, i // columns * height) for i, chart in enumerate(charts)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {across} {down}" role="img">'
    return "\n".join([f"{head}<title>{escape(title)}</title>{STYLE}", *parts, "</svg>"]) + "\n"
