"""Length by depth as a heat map, one small map for each KV dtype, with one scale for all of them. Pure.

The shade is how likely the right answer's tokens were; the number in a cell says it in percent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from textwrap import wrap
from typing import Any, Final

from gateway.evaluation.report import percent
from gateway.picture import SLATE, text

Row = Mapping[str, Any]

CELL_WIDTH, CELL_HEIGHT = 46, 24  # pixels
MARGIN, LEFT, TOP, BELOW = 16, 48, 44, 40  # round the whole; of one map: for depths, for its title, for lengths
HEAD, FOOT = 44, 44
WIDEST: Final = 1000  # of a row of maps
LEAST_WIDTH: Final = 244  # of a map, so that its title has room
NONE: Final = (248, 250, 252)
FULL: Final = (15, 118, 110)  # gateway.picture.TEAL
DARK: Final = 0.85  # from here on, white letters
STEPS: Final = 20  # of the legend
LEGEND: Final = 200  # pixels


def svg(told: Row) -> str:
    """Draw all maps."""
    lengths, depths = told["lengths"], told["depths"]
    width = max(LEAST_WIDTH, LEFT + CELL_WIDTH * len(lengths) + MARGIN)
    height = TOP + CELL_HEIGHT * len(depths) + BELOW
    columns = max(1, min(len(told["dtypes"]), WIDEST // width))
    rows = -(-len(told["dtypes"]) // columns)
    whole = (2 * MARGIN + max(columns * width, 2 * LEAST_WIDTH), HEAD + rows * height + FOOT)
    title = f"{told['model']}: how likely right answers are, by length of the prompt and depth of the fact"
    parts = [*_head(whole, title)]
    for at, row in enumerate(told["dtypes"]):
        x, y = MARGIN + at % columns * width, HEAD + at // columns * height
        parts += [f'<g transform="translate({x},{y})">', *_map(row, lengths, depths, width), "</g>"]
    parts += _legend(MARGIN + LEFT, HEAD + rows * height + 6)
    return "\n".join([*parts, "</svg>"]) + "\n"


def shade(share: float) -> str:
    """Return the colour of a share."""
    return "#" + bytes(round(low + (high - low) * share) for low, high in zip(NONE, FULL, strict=True)).hex()


def cells(row: Row, lengths: Sequence[int], depths: Sequence[float]) -> Iterator[tuple[int, int, float]]:
    """Place what was measured: (column, row from the top, share)."""
    for cell in row["cells"]:
        yield lengths.index(cell["length"]), depths.index(cell["depth"]), cell["probability"]


def _head(size: tuple[int, int], title: str) -> Iterator[str]:
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" role="img">'
    yield "<style>text { font: 11px system-ui, sans-serif } .name { font-weight: 600 } .small { fill: #475569 }</style>"
    yield f"<title>{escape(title)}</title>"
    yield '<rect width="100%" height="100%" fill="#ffffff"/>'
    lines = wrap(title, size[0] // 6)
    yield from (text(MARGIN, 18 + 14 * at, line, anchor="start") for at, line in enumerate(lines[:2]))


def _map(row: Row, lengths: Sequence[int], depths: Sequence[float], width: int) -> Iterator[str]:
    yield text(LEFT, 16, _name(row), anchor="start").replace("<text ", '<text class="name" ', 1)
    across, down = CELL_WIDTH * len(lengths), CELL_HEIGHT * len(depths)
    if row["refused"] is not None:
        yield f'<rect x="{LEFT}" y="{TOP}" width="{across}" height="{down}" fill="none" stroke="{SLATE}"/>'
        lines = wrap(f"Not measured: {row['refused']}", max(8, (width - LEFT - MARGIN) // 7))
        fitting = lines[: max(1, down // 14)]
        yield from (_small(LEFT + 6, TOP + 16 + 14 * at, line) for at, line in enumerate(fitting))
        return
    yield _small(LEFT, 32, _sums(row))
    for column, line, share in cells(row, lengths, depths):
        x, y = LEFT + column * CELL_WIDTH, TOP + line * CELL_HEIGHT
        colour = "#ffffff" if share >= DARK else "#0f172a"
        where = f"{lengths[column]:,} tokens, {percent(depths[line])} deep: {share:.1%}"
        yield (
            f'<g class="cell"><title>{where}</title><rect x="{x}" y="{y}" width="{CELL_WIDTH}" height="{CELL_HEIGHT}" '
            f'fill="{shade(share)}" stroke="#ffffff"/>'
        )
        middle = text(x + CELL_WIDTH / 2, y + CELL_HEIGHT / 2 + 4, _whole(share))
        yield middle.replace("<text ", f'<text fill="{colour}" ', 1) + "</g>"
    for line, depth in enumerate(depths):
        yield text(LEFT - 6, TOP + (line + 0.5) * CELL_HEIGHT + 4, percent(depth), anchor="end")
    for column, length in enumerate(lengths):
        yield text(LEFT + (column + 0.5) * CELL_WIDTH, TOP + down + 14, _tokens(length))


def _legend(x: int, y: int) -> Iterator[str]:
    """Draw the one scale, and say what the axes are."""
    each = LEGEND / STEPS
    for at in range(STEPS):
        fill = shade((at + 0.5) / STEPS)
        yield f'<rect x="{x + at * each:.1f}" y="{y}" width="{each + 0.5:.1f}" height="10" fill="{fill}"/>'
    yield f'<rect x="{x}" y="{y}" width="{LEGEND}" height="10" fill="none" stroke="#cbd5e1"/>'
    for share in (0.0, 0.5, 1.0):
        yield text(x + share * LEGEND, y + 24, f"{share:.0%}")
    yield _small(x + LEGEND + 24, y + 10, "a right answer's token; down: depth, across: tokens")


def _small(x: float, y: float, words: str) -> str:
    return text(x, y, words, anchor="start").replace("<text ", '<text class="small" ', 1)


def _name(row: Row) -> str:
    stored = row["stored"]
    own = stored is None or stored == row["kv_cache_dtype"]
    return row["kv_cache_dtype"] if own else f"{row['kv_cache_dtype']} ({stored})"


def _sums(row: Row) -> str:
    told = f"chosen {row['chosen']:.0%}"
    if row["at_chance"]:
        told += " (chance)"
    return told if row["perplexity"] is None else f"{told} · perplexity {row['perplexity']:.4g}"


def _whole(share: float) -> str:
    """Write a share in percent, so that nothing short of a whole reads as one."""
    return f"{min(share, 0.999) * 100:.1f}" if share < 1.0 else "100"


def _tokens(length: int) -> str:
    return f"{length // 1024}k" if length % 1024 == 0 else f"{length:,}"
