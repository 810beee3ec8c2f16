"""A plan as a picture, a page below the other: what K and V take, what stays resident, how near the roofs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from gateway.picture import EDGE, HEIGHT, SLATE, TEAL, WIDTH, across, pages, text, up

Row = Mapping[str, Any]

GREY: Final = "#cbd5e1"


def svg(told: Row) -> str:
    """Draw the plan."""
    most = max(one["bytes_per_token"] for one in told["kv"]["variants"])
    below = [
        (f"{told['model']}: bytes of a token's K and V, of {most:,}", _bars(told["kv"]["variants"], most)),
        (_residents(told["retention"]), _resident(told["retention"]["classes"])),
    ]
    machine = told["machine"]
    if machine is not None:
        place = machine["device"] or "the machine given"
        title = f"Decoding token {told['kv']['length']:,} on {place}, by batch: share of its compute and bandwidth"
        below.append((title, _roofs(machine["decode"])))
    return pages(below)


def _bars(variants: Sequence[Row], most: int) -> list[str]:
    parts = []
    for at, one in enumerate(variants):
        parts += _bar(at, len(variants), one["bytes_per_token"] / most, TEAL if one["own"] else GREY)
        x = across(at + 1, len(variants) + 2)
        parts.append(text(x, HEIGHT - EDGE + 16, one["heads"]))
        parts.append(text(x, HEIGHT - EDGE + 32, one["dtype"]))
    return parts


def _residents(retention: Row) -> str:
    rate = retention["rate"] * retention["new_share"]
    return f"Prefixes of {retention['kept_tokens']:,} tokens resident at {rate:g} new ones a second, share of the pool"


def _resident(classes: Sequence[Row]) -> list[str]:
    parts = []
    for at, one in enumerate(classes):
        room = one["held"]["room"]
        share = one["resident"] / room if room else None
        parts += _bar(at, len(classes), share, TEAL)
        x = across(at + 1, len(classes) + 2)
        parts.append(text(x, HEIGHT - EDGE + 16, one["class"]))
        parts.append(text(x, HEIGHT - EDGE + 32, one["held"]["verdict"]))
    return parts


def _bar(at: int, count: int, share: float | None, fill: str) -> list[str]:
    """Draw a share, up to a whole; None: there is nothing that it would be a share of."""
    drawn = 1.0 if share is None else min(1.0, share)
    x, width, top = across(at + 1, count + 2), (WIDTH - 2 * EDGE) / (2 * count + 2), up(drawn)
    box = f'x="{x - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" height="{up(0) - top:.1f}"'
    return [f'<rect {box} fill="{fill}"/>', text(x, top - 6, "-" if share is None else f"{share:,.0%}")]


def _roofs(decode: Sequence[Row]) -> list[str]:
    parts = []
    places = [across(at + 1, len(decode) + 2) for at in range(len(decode))]
    for name, words, colour in (("compute_share", "compute", TEAL), ("memory_share", "bandwidth", SLATE)):
        parts.append(text(WIDTH - EDGE, up(decode[-1][name]) - 6, words, anchor="end"))
        for (x, one), (next_x, following) in pairwise(zip(places, decode, strict=True)):
            parts.append(
                f'<line x1="{x:.1f}" y1="{up(one[name]):.1f}" x2="{next_x:.1f}" y2="{up(following[name]):.1f}" '
                f'stroke="{colour}" stroke-width="2"/>'
            )
    for x, one in zip(places, decode, strict=True):
        parts.append(text(x, HEIGHT - EDGE + 16, f"{one['batch']}"))
        parts.append(text(x, HEIGHT - EDGE + 32, f"{one['tokens_per_s']:,.0f}/s"))
    return parts
