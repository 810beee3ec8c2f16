"""The read ratio by TTL as a picture: characters for a terminal, SVG for a file. Pure.

Rule: the error band is drawn with the curve; nothing is drawn where there is no point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.advice.advise import label
from gateway.picture import EDGE, HEIGHT, TEAL, across, bar, page, text, up

Point = Mapping[str, float]


def lines(curve: Sequence[Point]) -> list[str]:
    """Draw one line a point: █ up to the lower bound, ▒ up to the upper one."""
    return [
        f"{label(point['ttl_s']):>5} {bar(point['low'], point['high'])} {point['read_ratio']:6.1%}" for point in curve
    ]


def svg(curve: Sequence[Point], title: str) -> str:
    """Draw the curve over evenly spaced TTLs, with its band."""
    places = [across(at, len(curve)) for at in range(len(curve))]
    upper, lower, middle = (
        [f"{x:.1f},{up(point[name]):.1f}" for x, point in zip(places, curve, strict=True)]
        for name in ("high", "low", "read_ratio")
    )
    parts = []
    if curve:
        band = " ".join([*upper, *reversed(lower)])
        parts.append(f'<polygon points="{band}" fill="{TEAL}" fill-opacity="0.25"/>')
        parts.append(f'<polyline points="{" ".join(middle)}" fill="none" stroke="{TEAL}" stroke-width="2"/>')
    for x, point in zip(places, curve, strict=True):
        parts.append(f'<circle cx="{x:.1f}" cy="{up(point["read_ratio"]):.1f}" r="3" fill="{TEAL}"/>')
        parts.append(text(x, HEIGHT - EDGE + 18, label(point["ttl_s"])))
    return page(title, parts)
