"""Many requests, in order: what an unlimited memory could have read of them, and what stood in its way.

Owns what is remembered of the log while it is read. Rules: tenants and models share nothing; what could be read is the
longest beginning in common with any earlier request; each request is compared with the latest of its cache key, else
with the earlier one that it has most parts in common with, of the last few hundred, else with the last few.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, Final

from gateway.doctor.bodies import Api, Body, load, read
from gateway.doctor.errors import Unusable
from gateway.doctor.pair import Break, broken
from gateway.doctor.seen import Seen, see
from gateway.prompt import Renderer
from prefix_store.chain import HASH_BYTES, TOKEN_BYTES, Namespace, chain, root

BLOCK_TOKENS: Final = 16
MOST_REMEMBERED: Final = 512  # requests of one tenant and model to compare with
MOST_TRIED: Final = 8  # of them, where none has a part in common
_INDEX: Final = re.compile(r"(?<=\[)\d+(?=\])|(?<=\.)\d+(?=\.|$)")


@dataclass(slots=True, kw_only=True)
class Breaker:
    """One cause over all requests: a reason at a place that looks like something."""

    reason: str
    place: str
    looks_like: str
    requests: int = 0
    lost: int = 0
    example: str = ""  # the first request that it broke
    before: str = ""
    after: str = ""
    advice: str = ""


@dataclass(slots=True, kw_only=True)
class Report:
    """What a log comes to. Sums are tokens."""

    requests: int = 0
    prompt: int = 0
    reachable: int = 0  # an unlimited memory had read these
    hits: int = 0  # requests of which at least one block could be read
    lost: int = 0  # could be read besides, if what changes stood behind what stays
    breakers: dict[tuple[str, str, str], Breaker] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)  # why, a line each

    @property
    def worst(self) -> list[Breaker]:
        """The breakers, dearest first."""
        return sorted(self.breakers.values(), key=lambda one: -one.lost)

    def add(self, seen: Seen, reached: int, found: Break | None) -> None:
        """Count one request."""
        self.requests += 1
        self.prompt += seen.made.tokens
        self.reachable += reached
        self.hits += reached >= BLOCK_TOKENS
        if found is None or not found.lost:
            return
        self.lost += found.lost
        key = (found.reason, _INDEX.sub("*", found.message), found.looks_like)
        breaker = self.breakers.setdefault(
            key,
            Breaker(
                reason=key[0],
                place=key[1],
                looks_like=key[2],
                example=seen.body.name,
                before=found.before,
                after=found.after,
                advice=found.advice,
            ),
        )
        breaker.requests += 1
        breaker.lost += found.lost


class Memory:
    """Every prompt so far, of one tenant and model, as far as its beginnings matter."""

    def __init__(self) -> None:
        """Begin empty."""
        self._next: defaultdict[bytes, list[bytes]] = defaultdict(list)  # hash of a beginning → what followed, sorted
        self._root = root(Namespace(tenant="", model="", weights="", kv_dtype="", block_tokens=BLOCK_TOKENS))

    def take(self, tokens: bytes) -> int:
        """Remember a prompt. Return how many of its tokens an earlier one began with."""
        stride = BLOCK_TOKENS * TOKEN_BYTES
        hashes = chain(self._root, tokens, BLOCK_TOKENS)
        links = [self._root, *(hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES))]
        reached, open_ = 0, True
        for place, link in enumerate(links):
            block = tokens[place * stride : (place + 1) * stride]
            followers = self._next[link]
            at = bisect_left(followers, block)
            if open_:
                near = [_common(one, block) for one in followers[max(0, at - 1) : at + 1]]
                same = max(near, default=0)
                reached += same
                open_ = same == BLOCK_TOKENS
            if block and (at == len(followers) or followers[at] != block):
                followers.insert(at, block)
        return reached


class Recent:
    """The last requests of one tenant and model, to compare with."""

    def __init__(self, most: int) -> None:
        """Begin empty; remember at `most` so many."""
        self._most = most
        self._seen: OrderedDict[int, Seen] = OrderedDict()
        self._holders: defaultdict[bytes, set[int]] = defaultdict(set)  # content of a part → who had it
        self._latest: dict[bytes, int] = {}  # by cache key
        self._count = 0

    def nearest(self, seen: Seen) -> list[Seen]:
        """Return the requests to compare with: one, or the very last ones where none has a part in common."""
        keyed = self._latest.get(seen.made.partition, 0) if seen.made.partition else 0
        if keyed in self._seen:
            return [self._seen[keyed]]
        shared: Counter[int] = Counter()
        for part in seen.made.parts:
            if part.kind != "opening":
                for holder in self._holders.get(part.content, ()):
                    shared[holder] += part.end - part.begin
        best = max(shared, key=lambda holder: (shared[holder], holder), default=None)
        if best is None:
            return [self._seen[one] for one in islice(reversed(self._seen), MOST_TRIED)]
        return [self._seen[best]]

    def add(self, seen: Seen) -> None:
        """Remember a request, and forget the oldest where there are too many."""
        self._count += 1
        self._seen[self._count] = seen
        self._latest[seen.made.partition] = self._count
        for part in seen.made.parts:
            self._holders[part.content].add(self._count)
        if len(self._seen) > self._most:
            oldest, gone = self._seen.popitem(last=False)
            for part in gone.made.parts:
                self._holders[part.content].discard(oldest)
                if not self._holders[part.content]:
                    self._holders.pop(part.content)


def look(renderer: Renderer, lines: Iterable[bytes], *, api: Api | None = None, most: int = MOST_REMEMBERED) -> Report:
    """Look at a log: a body a line, or an object with `at`, `tenant` and `body`. Raises Unusable if no line is one."""
    report = Report()
    memories: defaultdict[tuple[str, str], Memory] = defaultdict(Memory)
    recent: defaultdict[tuple[str, str], Recent] = defaultdict(lambda: Recent(most))
    for seen in _requests(renderer, lines, api, report):
        whose = (seen.ask.tenant, seen.ask.model)
        reached = min(memories[whose].take(seen.prompt.tokens), max(0, seen.made.tokens - 1))
        breaks = [broken(seen, earlier, reached=reached) for earlier in recent[whose].nearest(seen)]
        report.add(seen, reached, max(breaks, key=lambda one: one.lost, default=None))
        recent[whose].add(seen)
    if not report.requests:
        raise Unusable(report.unreadable[0] if report.unreadable else "the log holds no request")
    return report


def _requests(renderer: Renderer, lines: Iterable[bytes], api: Api | None, report: Report) -> Iterator[Seen]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield see(renderer, _body(load(line, f"line {number}"), f"line {number}", api))
        except Unusable as error:
            report.unreadable.append(str(error))


def _body(entry: Any, name: str, api: Api | None) -> Body:
    if not isinstance(entry, dict) or not isinstance(entry.get("body"), dict):
        return read(entry, name, api=api)
    at = entry.get("at")
    if isinstance(at, int | float):
        name = f"{name}, {datetime.fromtimestamp(at).astimezone().isoformat(timespec='seconds')}"
    elif isinstance(at, str):
        name = f"{name}, {at}"
    return read(entry["body"], name, api=api, tenant=str(entry.get("tenant", "default")))


def _common(one: bytes, other: bytes) -> int:
    if one == other:
        return len(one) // TOKEN_BYTES
    return len(os.path.commonprefix([one, other])) // TOKEN_BYTES  # noqa: RUF071 - bytes are meant
