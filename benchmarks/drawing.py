"""Curves as an SVG for light and for dark pages: axes with units, each line named where it ends. Pure.

Floors are dashed. Rule: nothing is told by colour alone, and nothing is fetched.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH, HEIGHT = 720, 360  # pixels
LEFT, RIGHT, TOP, BOTTOM = 64, 168, 44, 52
APART = 15  # pixels between two names
MOST_TICKS = 6
LIGHT: Final = ("#0f766e", "#b45309", "#4338ca", "#be185d")
DARK: Final = ("#2dd4bf", "#fbbf24", "#a5b4fc", "#f9a8d4")
STYLE = (
    "<style>text{font:12px system-ui,sans-serif;fill:#334155}.page{fill:#ffffff}.rule{stroke:#e2e8f0}"
    ".line{fill:none;stroke-width:2}.floor{stroke-dasharray:6 4}"
    + "".join(f".c{at}{{stroke:{hue}}}.n{at}{{fill:{hue}}}" for at, hue in enumerate(LIGHT))
    + "@media (prefers-color-scheme:dark){text{fill:#cbd5e1}.page{fill:#0f172a}.rule{stroke:#334155}"
    + "".join(f".c{at}{{stroke:{hue}}}.n{at}{{fill:{hue}}}" for at, hue in enumerate(DARK))
    + "}</style>"
)


@dataclass(frozen=True, slots=True)
class Line:
    """One curve; `floor`: what could not be undercut."""

    name: str
    points: Sequence[tuple[float, float]]  # along the axis
    floor: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over one axis, which is marked where something was measured."""

    title: str
    x: str  # what it is, and in what unit
    y: str
    lines: Sequence[Line]
    doubling: bool = False  # along: equal steps are doublings
    decades: bool = False  # upright: equal steps are factors


def svg(chart: Chart) -> str:
    """Draw one chart."""
    scale = _Scale(chart)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(chart.title)}</title>",
        STYLE,
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
        _text(LEFT, 22, chart.title, anchor="start"),
        _text(LEFT, TOP - 6, chart.y, anchor="start"),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, chart.x),
        *_grid(chart, scale),
        *(part for at, line in enumerate(chart.lines) for part in _drawn(line, at, scale)),
        *_names(chart.lines, scale),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


class _Scale:
    """Where a value lies on the page."""

    def __init__(self, chart: Chart) -> None:
        along = [x for line in chart.lines for x, _ in line.points]
        upright = [y for line in chart.lines for _, y in line.points]
        self.doubling, self.decades = chart.doubling, chart.decades
        self.left, self.right = self._x(min(along)), self._x(max(along))
        self.ticks = factors(min(upright), max(upright)) if chart.decades else even(max(upright))
        self.low, self.high = self._y(self.ticks[0]), self._y(self.ticks[-1])

    def x(self, value: float) -> float:
        share = (self._x(value) - self.left) / (self.right - self.left or 1.0)
        return LEFT + (WIDTH - LEFT - RIGHT) * share

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (self._y(value) - self.low) / (self.high - self.low)

    def _x(self, value: float) -> float:
        return math.log2(value) if self.doubling else value

    def _y(self, value: float) -> float:
        return math.log10(value) if self.decades else value


def even(most: float) -> list[float]:
    """Return evenly spaced ticks of 1, 2 or 5 times a power of ten, from zero to above `most`."""
    rough = most / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [step * at for at in range(math.ceil(most / step) + 1)]


def factors(least: float, most: float) -> list[float]:
    """Return ticks of 1, 2 and 5 times powers of ten, from below `least` to above `most`."""
    first, last = math.floor(math.log10(least)), math.ceil(math.log10(most))
    every = [factor * 10.0**power for power in range(first, last + 1) for factor in (1, 2, 5)]
    low = max(tick for tick in every if tick <= least)
    high = min(tick for tick in every if tick >= most and tick > low)
    return [tick for tick in every if low <= tick <= high]


def _grid(chart: Chart, scale: _Scale) -> Iterable[str]:
    for tick in scale.ticks:
        y = scale.y(tick)
        yield f'<line class="rule" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
        yield _text(LEFT - 8, y + 4, f"{tick:,g}" if tick < 1 else f"{tick:,.0f}", anchor="end")
    for x in sorted({x for line in chart.lines for x, _ in line.points}):
        yield _text(scale.x(x), HEIGHT - BOTTOM + 18, f"{x:,.0f}")


def _drawn(line: Line, at: int, scale: _Scale) -> Iterable[str]:
    places = [(scale.x(x), scale.y(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    floor = " floor" if line.floor else ""
    yield f'<polyline class="line c{at}{floor}" points="{path}"><title>{escape(line.name)}</title></polyline>'
    if not line.floor:
        yield from (f'<circle class="n{at}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places)


def _names(lines: Sequence[Line], scale: _Scale) -> Iterable[str]:
    """Name each line right of its end, those that would touch a little lower."""
    above = -math.inf
    for end, at in sorted((scale.y(line.points[-1][1]), at) for at, line in enumerate(lines)):
        above = max(end + 4, above + APART)
        yield _text(WIDTH - RIGHT + 8, above, lines[at].name, anchor="start", kind=f"n{at}")


def _text(x: float, y: float, words: str, *, anchor: str = "middle", kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
