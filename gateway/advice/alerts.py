"""What is going wrong with the cache, seen in the exchanges as they end. Pure: time is given with each of them.

Owns counts by minute, and how often each beginning of a prompt was used, of the last hours; both bounded. Rules: an
alert says since when, what was seen, and what to do; small numbers are no alert; names and counts, never text.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.advice.trace import Group

MINUTE_S = 60
KEEP_MINUTES = 90
MOST_GROUPS = 64
MOST_PREFIXES = 4096
RECENT_S = 300  # what a fall is seen in
FALL = 0.2  # of all prompt tokens
FALL_TO = 0.6  # of the ratio before
FEWEST_RECENT, FEWEST_BEFORE = 20, 50  # requests
REUSED = 20  # uses that make a prefix one that many rely on
SHARE = 0.3  # of its group's requests while it was used
QUIET_GAPS, QUIET_S = 10, 300  # how long it must have been away: so many of its usual gaps, and so long
TROUBLE_S = 900  # in which broken promises and bouncing are counted
BOUNCING, BOUNCED = 10, 0.2  # requests, and the share of prompt tokens that was there and had been evicted


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One exchange as alerts are made of it. `beginnings` are keyed hashes with the tokens that each stands for."""

    at: float
    group: Group
    prompt: int
    read: int
    broken: int = 0  # tokens missed because a promise was broken
    evicted: int = 0  # tokens missed because they had been evicted
    beginnings: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One thing that is wrong."""

    id: str
    severity: Literal["warn", "page"]
    title: str
    since: float
    detail: str
    what_to_do: str
    tenant: str | None
    model: str | None


@dataclass(slots=True)
class _Prefix:
    group: Group
    tokens: int
    first: float
    last: float
    uses: int = 1


class Watch:
    """Notes exchanges and says what is wrong."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._minutes: dict[Group, deque[tuple[float, Counter[str]]]] = {}
        self._prefixes: OrderedDict[int, _Prefix] = OrderedDict()

    def note(self, seen: Seen) -> None:
        """Take note of one exchange; beyond so many groups, of the whole gateway no more than before."""
        minutes = self._minutes.get(seen.group)
        if minutes is None:
            if len(self._minutes) >= MOST_GROUPS:
                return
            minutes = self._minutes[seen.group] = deque(maxlen=KEEP_MINUTES)
        start = seen.at // MINUTE_S * MINUTE_S
        if not minutes or minutes[-1][0] < start:
            minutes.append((start, Counter()))
        minutes[-1][1].update(
            requests=1,
            prompt=seen.prompt,
            read=seen.read,
            broken=seen.broken,
            evicted=seen.evicted,
            bounced=seen.evicted > 0,
        )
        for hashed, tokens in seen.beginnings:
            self._use(hashed, tokens, seen)

    def alerts(self, now: float) -> list[Alert]:
        """Return what is wrong at `now`, what began last first."""
        found = [alert for group in self._minutes for alert in self._of(group, now)]
        return sorted(found, key=lambda alert: (-alert.since, alert.id))

    def _use(self, hashed: int, tokens: int, seen: Seen) -> None:
        prefix = self._prefixes.get(hashed)
        if prefix is None:
            self._prefixes[hashed] = _Prefix(seen.group, tokens, seen.at, seen.at)
            if len(self._prefixes) > MOST_PREFIXES:
                self._prefixes.popitem(last=False)
            return
        prefix.uses += 1
        prefix.last = max(prefix.last, seen.at)
        self._prefixes.move_to_end(hashed)

    def _sum(self, group: Group, begin: float, end: float) -> Counter[str]:
        """Sum the minutes that begin in a span."""
        sums: Counter[str] = Counter()
        for start, counts in self._minutes[group]:
            if begin <= start < end:
                sums.update(counts)
        return sums

    def _of(self, group: Group, now: float) -> Iterator[Alert]:
        yield from self._fall(group, now)
        yield from self._stopped(group, now)
        yield from self._trouble(group, now)

    def _fall(self, group: Group, now: float) -> Iterator[Alert]:
        """Compare the last minutes with all before; the fall began with the first minute that stayed low."""
        edge = (now - RECENT_S) // MINUTE_S * MINUTE_S
        recent, before = self._sum(group, edge, now), self._sum(group, 0, edge)
        if recent["requests"] < FEWEST_RECENT or before["requests"] < FEWEST_BEFORE:
            return
        then, low = _ratio(recent), _ratio(before)
        was, stands = low, then
        if stands > was - FALL or stands > was * FALL_TO:
            return
        since = edge
        for start, counts in reversed(self._minutes[group]):
            if counts["prompt"] and _ratio(counts) > (was + stands) / 2:
                break
            since = start
        yield Alert(
            id=f"fall|{group.tenant}|{group.model}",
            severity="page",
            title=f"Read ratio of {group.tenant} on {group.model} fell from {was:.1%} to {stands:.1%}",
            since=since,
            detail=f"{recent['requests']} requests since against {before['requests']} before",
            what_to_do="Look at the reasons of the misses; `keepwarm doctor` finds what changes in two request bodies.",
            tenant=group.tenant,
            model=group.model,
        )

    def _stopped(self, group: Group, now: float) -> Iterator[Alert]:
        """Find the longest prefix that many requests used and none does now, while requests go on and read less."""
        gone: _Prefix | None = None
        for prefix in self._prefixes.values():
            if prefix.group != group or prefix.uses < REUSED:
                continue
            usual = (prefix.last - prefix.first) / (prefix.uses - 1)
            if now - prefix.last < max(QUIET_S, QUIET_GAPS * usual):
                continue
            if gone is None or (prefix.last, prefix.tokens) > (gone.last, gone.tokens):
                gone = prefix
        if gone is None:
            return
        during = self._sum(group, gone.first // MINUTE_S * MINUTE_S, gone.last)
        after = self._sum(group, gone.last, now)
        if after["requests"] < FEWEST_RECENT or gone.uses < SHARE * during["requests"]:
            return
        if _ratio(after) > FALL_TO * _ratio(during):
            return
        yield Alert(
            id=f"stopped|{group.tenant}|{group.model}",
            severity="warn",
            title=f"A prefix of {group.tenant} on {group.model} stopped hitting",
            since=gone.last,
            detail=(
                f"its first {gone.tokens:,} tokens began {gone.uses} requests and none of the "
                f"{after['requests']} since; the read ratio went from {_ratio(during):.1%} to {_ratio(after):.1%}"
            ),
            what_to_do="See what the application puts first since then: a time, an id or another set of tools.",
            tenant=group.tenant,
            model=group.model,
        )

    def _trouble(self, group: Group, now: float) -> Iterator[Alert]:
        edge = (now - TROUBLE_S) // MINUTE_S * MINUTE_S
        sums = self._sum(group, edge, now)
        if sums["broken"]:
            yield Alert(
                id=f"broken|{group.tenant}|{group.model}",
                severity="page",
                title=f"Promises to {group.tenant} on {group.model} were broken",
                since=self._first(group, "broken", edge),
                detail=f"{sums['broken']:,} tokens were promised and had to be computed again",
                what_to_do="Give the cache more room (--kv-bytes), or lower the policy's promise_budget.",
                tenant=group.tenant,
                model=group.model,
            )
        if sums["bounced"] >= BOUNCING and sums["evicted"] >= BOUNCED * sums["prompt"]:
            yield Alert(
                id=f"bouncing|{group.tenant}|{group.model}",
                severity="warn",
                title=f"{group.tenant} is bouncing prefixes on {group.model}",
                since=self._first(group, "bounced", edge),
                detail=(
                    f"{sums['evicted']:,} of {sums['prompt']:,} prompt tokens had been evicted and were written "
                    f"again, in {sums['bounced']} of {sums['requests']} requests"
                ),
                what_to_do="Its prompts do not fit its share: raise pool_share or --kv-bytes, or shorten its TTL.",
                tenant=group.tenant,
                model=group.model,
            )

    def _first(self, group: Group, count: str, edge: float) -> float:
        return next(start for start, counts in self._minutes[group] if start >= edge and counts[count])


def _ratio(counts: Counter[str]) -> float:
    return counts["read"] / counts["prompt"] if counts["prompt"] else 0.0
