"""What each policy read against the ideal, as a picture: characters for a terminal, SVG for a file. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.picture import EDGE, HEIGHT, SLATE, TEAL, WIDTH, across, bar, page, text, up

Row = Mapping[str, Any]


def lines(rows: Sequence[Row]) -> list[str]:
    """Draw one line a policy: █ what was read, ▒ what some replica was believed to hold beyond it."""
    return [f"{_name(row):>12} {bar(_read(row), max(_read(row), _available(row)))} {_read(row):6.1%}" for row in rows]


def svg(rows: Sequence[Row], ideal: float, title: str) -> str:
    """Draw a bar for each policy, what was available as its outline, and the ideal as a line through all of them."""
    parts = []
    for at, row in enumerate(rows):
        x, width = across(at + 1, len(rows) + 2), (WIDTH - 2 * EDGE) / (2 * len(rows) + 2)
        for share, fill in ((_available(row), "none"), (_read(row), TEAL)):
            top = up(share)
            parts.append(
                f'<rect x="{x - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" height="{up(0) - top:.1f}" '
                f'fill="{fill}" stroke="{TEAL}"/>'
            )
        first = row["first_token_s"]
        parts.append(text(x, up(max(_read(row), _available(row))) - 6, f"{_read(row):.1%}"))
        parts.append(text(x, HEIGHT - EDGE + 16, _name(row)))
        parts.append(text(x, HEIGHT - EDGE + 32, f"p50 {_seconds(first['p50'])} · p99 {_seconds(first['p99'])}"))
    parts.append(
        f'<line x1="{EDGE}" y1="{up(ideal):.1f}" x2="{WIDTH - EDGE}" y2="{up(ideal):.1f}" stroke="{SLATE}" '
        'stroke-dasharray="6 4"/>'
    )
    parts.append(text(WIDTH - EDGE, up(ideal) - 6, f"ideal {ideal:.1%}", anchor="end"))
    return page(title, parts)


def _name(row: Row) -> str:
    return str(row["policy"]).replace("_", " ")


def _read(row: Row) -> float:
    return float(row["read_ratio"] or 0.0)


def _available(row: Row) -> float:
    return float(row["available_tokens"] / row["tokens"] if row["tokens"] else 0.0)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"
