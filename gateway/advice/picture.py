"""The read ratio by TTL as a picture: characters for a terminal, SVG for a file. Pure.

Rule: the error band is drawn with the curve; nothing is drawn where there is no point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from gateway.advice.advise import label

Point = Mapping[str, float]

BAR = 40  # columns of a whole
WIDTH, HEIGHT, EDGE = 640, 320, 48  # pixels
TEAL = "#0f766e"


def lines(curve: Sequence[Point]) -> list[str]:
    """Draw one line a point: █ up to the lower bound, ▒ up to the upper one."""
    drawn = []
    for point in curve:
        low, high = round(point["low"] * BAR), round(point["high"] * BAR)
        bar = "█" * low + "▒" * (high - low)
        drawn.append(f"{label(point['ttl_s']):>5} {bar:<{BAR}} {point['read_ratio']:6.1%}")
    return drawn


def svg(curve: Sequence[Point], title: str) -> str:
    """Draw the curve over evenly spaced TTLs, with its band."""
    places = [_across(at, len(curve)) for at in range(len(curve))]
    upper = [f"{x:.1f},{_up(point['high']):.1f}" for x, point in zip(places, curve, strict=True)]
    lower = [f"{x:.1f},{_up(point['low']):.1f}" for x, point in zip(places, curve, strict=True)]
    middle = [f"{x:.1f},{_up(point['read_ratio']):.1f}" for x, point in zip(places, curve, strict=True)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<style>text { font: 11px system-ui, sans-serif }</style>",
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{EDGE}" y="20">{escape(title)}</text>',
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _up(share)
        parts.append(f'<line x1="{EDGE}" y1="{y:.1f}" x2="{WIDTH - EDGE}" y2="{y:.1f}" stroke="#d4d4d8"/>')
        parts.append(f'<text x="{EDGE - 6}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    if curve:
        band = " ".join([*upper, *reversed(lower)])
        parts.append(f'<polygon points="{band}" fill="{TEAL}" fill-opacity="0.25"/>')
        parts.append(f'<polyline points="{" ".join(middle)}" fill="none" stroke="{TEAL}" stroke-width="2"/>')
    for x, point in zip(places, curve, strict=True):
        name = escape(label(point["ttl_s"]))
        parts.append(f'<circle cx="{x:.1f}" cy="{_up(point["read_ratio"]):.1f}" r="3" fill="{TEAL}"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - EDGE + 18}" text-anchor="middle">{name}</text>')
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _across(at: int, count: int) -> float:
    return EDGE + (WIDTH - 2 * EDGE) * (at / (count - 1) if count > 1 else 0.5)


def _up(share: float) -> float:
    return HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * share
