"""What workers say to operators, put together as one gateway's answer. Pure.

Owns what upstreams were asked by workers that are gone. Rules: counts are the sum over every life; a state is the
gravest that a worker sees; what all workers read in the same place is shown once.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gateway.timeline import MOST

Json = dict[str, Any]

COUNTS: Final = (
    "requests",
    "failures",
    "available_tokens",
    "captured_tokens",
    "delivered_tokens",
    "prompt_tokens",
)  # of an upstream, since it was configured
NOW: Final = ("open", "load_tokens")  # each worker's own part
STATES: Final = ("draining", "unwell", "open", "trial", "aside", "well", "bundled")  # the gravest first
PLACE: Final = re.compile(r"[0-9a-f]{1,32}-[0-9]{1,19}")
MOST_PLACES: Final = 4_096


class Upstreams:
    """The newest list of every worker, and the counts of those that are gone."""

    def __init__(self) -> None:
        """Begin with no worker."""
        self._living: dict[int, Json] = {}
        self._gone: dict[str, dict[str, int]] = {}

    def told(self, life: int, answer: Json) -> None:
        """Hear a worker's newest answer."""
        self._living[life] = answer

    def ended(self, life: int) -> None:
        """Hear that a worker is no more."""
        for one in self._living.pop(life, {}).get("upstreams", ()):
            sums = self._gone.setdefault(one["name"], dict.fromkeys(COUNTS, 0))
            for count in COUNTS:
                sums[count] += one[count]

    def merged(self) -> Json:
        """Return the answer of all. An upstream that no living worker has any more is not shown."""
        seen: dict[str, list[Json]] = {}
        routing: Json = {}
        for answer in self._living.values():
            routing |= answer["routing"]
            for one in answer["upstreams"]:
                seen.setdefault(one["name"], []).append(one)
        self._gone = {name: sums for name, sums in self._gone.items() if name in seen or not self._living}
        return {"upstreams": [self._one(name, seen[name]) for name in sorted(seen)], "routing": routing}

    def _one(self, name: str, told: Sequence[Json]) -> Json:
        gravest = min(told, key=lambda one: STATES.index(one["state"]) if one["state"] in STATES else 0)
        gone = self._gone.get(name, {})
        sums: dict[str, Any] = {count: sum(one[count] for one in told) for count in (*COUNTS, *NOW)}
        sums |= {count: sums[count] + gone.get(count, 0) for count in COUNTS}
        prompt = sums["prompt_tokens"]
        return {
            **gravest,
            **sums,
            "resident_tokens": max(one["resident_tokens"] for one in told),
            "delivered_ratio": sums["delivered_tokens"] / prompt if prompt else None,
        }


def places(text: str) -> dict[str, str]:
    """Read the place of every worker's ring from the `next` of an answer. Raises ValueError."""
    parts = text.split(".")
    if len(parts) > MOST_PLACES or not all(PLACE.fullmatch(part) for part in parts):
        raise ValueError(text)
    return {part.partition("-")[0]: part for part in parts}


def requests(parts: Sequence[Json], limit: int) -> Json:
    """Return the latest of all, the one that ended last first. `next` holds a place for every worker.

    A part is what one worker has: `requests` with their `places`, `more` whether there are others behind them, `from`
    the place where it began, `kept` and `since`. One that began to work after the place that was asked for has no
    `from` and adds nothing but its count.
    """
    taken = [0] * len(parts)
    shown: list[Json] = []
    while len(shown) < limit:
        heads = [n for n, part in enumerate(parts) if taken[n] < len(part["requests"])]
        if not heads:
            break
        newest = max(heads, key=lambda n: _ended(parts[n]["requests"][taken[n]]))
        shown.append(parts[newest]["requests"][taken[newest]])
        taken[newest] += 1
    more = any(part["more"] or taken[n] < len(part["requests"]) for n, part in enumerate(parts))
    borders = [part["places"][taken[n] - 1] if taken[n] else part["from"] for n, part in enumerate(parts)]
    known = [border for border in borders if border is not None]
    since = [part["since"] for part in parts if part["since"] is not None]
    return {
        "requests": shown,
        "next": ".".join(known) if more else None,
        "kept": sum(part["kept"] for part in parts),
        "since": min(since, default=None),
    }


def happenings(answers: Iterable[Json], own: Iterable[Json]) -> Json:
    """Return what happened: what workers read in the audit trail, once, and what the parent saw of them."""
    found: dict[tuple[object, ...], Json] = {}
    cut = False
    for answer in answers:
        cut = cut or bool(answer["cut"])
        for one in answer["events"]:
            if one["kind"] not in {"start", "restart"}:
                found[_same(one)] = one
    told = sorted([*found.values(), *own], key=lambda one: one["at"])
    return {"events": told[-MOST:], "cut": cut or len(told) > MOST}


class Once:
    """Tells what several workers tell, once."""

    def __init__(self, most: int = MOST) -> None:
        """Remember the latest `most`."""
        self._seen: deque[tuple[object, ...]] = deque(maxlen=most)

    def new(self, happening: Mapping[str, object]) -> bool:
        """Whether it was not told before."""
        same = _same(happening)
        if same in self._seen:
            return False
        self._seen.append(same)
        return True


def _same(happening: Mapping[str, object]) -> tuple[object, ...]:
    return tuple(happening.get(name) for name in ("at", "kind", "title", "subject"))


def _ended(request: Json) -> float:
    return float(request["at"]) + float(request["seconds"] or 0.0)
