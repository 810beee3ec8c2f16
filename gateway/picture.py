"""What pictures of shares have in common: bars of characters for a terminal, axes and page of an SVG. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

BAR: Final = 40  # columns of a whole
WIDTH, HEIGHT, EDGE = 640, 320, 48  # pixels
TEAL: Final = "#0f766e"
SLATE: Final = "#64748b"


def bar(low: float, high: float) -> str:
    """Draw a share: █ up to `low`, ▒ from there to `high`."""
    low_columns, high_columns = round(low * BAR), round(high * BAR)
    return f"{'█' * low_columns + '▒' * (high_columns - low_columns):<{BAR}}"


def page(title: str, parts: Iterable[str]) -> str:
    """Return an SVG whose upright axis goes from 0 to 100 %."""
    return "\n".join([*_head(title), *parts, "</svg>"]) + "\n"


def pages(below: Sequence[tuple[str, Iterable[str]]]) -> str:
    """Return one SVG with several such pages, by title and parts, one below the other."""
    inner = (
        page(title, parts).replace("<svg ", f'<svg y="{at * HEIGHT}" width="{WIDTH}" height="{HEIGHT}" ', 1)
        for at, (title, parts) in enumerate(below)
    )
    box = f"0 0 {WIDTH} {HEIGHT * len(below)}"
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img">\n{"".join(inner)}</svg>\n'


def text(x: float, y: float, words: str, *, anchor: str = "middle") -> str:
    """Write words."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def across(at: int, count: int) -> float:
    """Return where the `at`-th of `count` evenly spaced things stands."""
    return EDGE + (WIDTH - 2 * EDGE) * (at / (count - 1) if count > 1 else 0.5)


def up(share: float) -> float:
    """Return the height of a share."""
    return HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * share


def _head(title: str) -> Iterable[str]:
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    yield "<style>text { font: 11px system-ui, sans-serif }</style>"
    yield f"<title>{escape(title)}</title>"
    yield '<rect width="100%" height="100%" fill="#ffffff"/>'
    yield f'<text x="{EDGE}" y="20">{escape(title)}</text>'
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = up(share)
        yield f'<line x1="{EDGE}" y1="{y:.1f}" x2="{WIDTH - EDGE}" y2="{y:.1f}" stroke="#d4d4d8"/>'
        yield f'<text x="{EDGE - 6}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>'
