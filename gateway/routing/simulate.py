"""A trace replayed over simulated replicas, by the very code that routes in service. Pure: time is the trace's.

A replica is a cache of bounded size with a TTL, and one lane on which prompts are computed one after another at a fixed
rate; answers are written beside it. What routing believes and what a replica holds are two things here as well. Rules:
at least one token of each prompt is computed, as engines do to have logits to begin with; what is alive is alive while
`now < deadline`, to the millisecond.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random

import xxhash

from gateway.routing.router import Choice, Policy, Router
from gateway.routing.wanted import Wanted
from prefix_store.residency import Residency
from prefix_store.residency_node import NOTHING

_WORD = (1 << 64) - 1
_GRID = 1 << 20


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace: when it comes in seconds, its tokens, those of its answer, and its blocks."""

    at: float
    tokens: int
    output: int
    path: bytes  # packed links of its blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What every replica can do."""

    block_tokens: int = 512
    prefill_rate: float = 8_000.0  # prompt tokens a second
    token_s: float = 0.03  # between two tokens of an answer
    capacity_blocks: int = 2_000
    ttl_s: float = 300.0


@dataclass(slots=True)
class Outcome:
    """What a policy came to. Times are seconds."""

    policy: str
    requests: int = 0
    tokens: int = 0
    read: int = 0
    captured: int = 0
    available: int = 0
    first_token_s: array[float] = field(default_factory=lambda: array("d"))
    busy_s: dict[str, float] = field(default_factory=dict)

    @property
    def read_ratio(self) -> float | None:
        """Tokens read, of all; None where there were none."""
        return self.read / self.tokens if self.tokens else None

    @property
    def imbalance(self) -> float | None:
        """How much longer the busiest replica computed than the mean one; 1 is even."""
        mean = sum(self.busy_s.values()) / len(self.busy_s) if self.busy_s else 0.0
        return max(self.busy_s.values()) / mean if mean else None

    def first_token(self, *shares: float) -> list[float | None]:
        """Return quantiles of the time to the first token, by the nearest rank; None of nothing."""
        ranked = sorted(self.first_token_s)
        last = len(ranked) - 1
        return [ranked[min(last, int(share * len(ranked)))] if ranked else None for share in shares]


def path_of_ids(ids: Iterable[int], root: bytes = b"") -> bytes:
    """Return the chain over a trace's block ids; `root` keeps apart what never shares a prefix."""
    digest, link, links = xxhash.xxh3_64_digest, root, []
    for one in ids:
        link = digest(link + (one & _WORD).to_bytes(8, "little"))
        links.append(link)
    return b"".join(links)


def seconds_of(milliseconds: float) -> float:
    """Return a time on a grid on which floats add without rounding, so that a TTL ends at its very millisecond."""
    return round(milliseconds / 1000 * _GRID) / _GRID


class Simulation:
    """One policy over one trace."""

    def __init__(self, policy: Policy, replicas: int, machine: Machine, *, seed: int = 0) -> None:
        """Start with empty replicas."""
        self.outcome = Outcome(policy)
        self._machine = machine
        self._names = [f"r{number}" for number in range(replicas)]
        self.router = Router(policy, chance=Random(seed))  # noqa: S311 - a simulation repeats itself
        self._truth = Residency()
        for name in self._names:
            self._truth.bound(name, machine.capacity_blocks)
            self.router.residency.bound(name, machine.capacity_blocks)
        self._free_at = dict.fromkeys(self._names, 0.0)
        self._events: list[tuple[float, int, bool, Choice, Wanted, int]] = []
        self._sent = 0
        self.outcome.busy_s = dict.fromkeys(self._names, 0.0)

    @property
    def held_blocks(self) -> int:
        """How many blocks all replicas together hold, those that expired unseen included."""
        return sum(self._truth.blocks(name) for name in self._names)

    def feed(self, arrival: Arrival) -> None:
        """Send one request. Requests come in the order of their times."""
        self._until(arrival.at)
        machine = self._machine
        blocks = len(arrival.path) // 8
        ends = [min(arrival.tokens, machine.block_tokens * (number + 1)) for number in range(blocks)]
        wanted = Wanted(path=arrival.path, ends=ends, tokens=arrival.tokens, ttl_s=machine.ttl_s)
        choice = self.router.choose(wanted, self._names, arrival.at)
        name = choice.replica
        held = self._truth.match(arrival.path, arrival.at, [name]).get(name, NOTHING).blocks
        read = min(wanted.tokens_at(held), max(0, arrival.tokens - 1))
        self._truth.note(name, arrival.path, arrival.at + machine.ttl_s, arrival.at)
        work = (arrival.tokens - read) / machine.prefill_rate
        first = max(arrival.at, self._free_at[name]) + work
        self._free_at[name] = first
        self._sent += 1
        heapq.heappush(self._events, (first, self._sent, False, choice, wanted, read))
        self._count(arrival, choice, read, first - arrival.at, work)

    def _count(self, arrival: Arrival, choice: Choice, read: int, first_token_s: float, work: float) -> None:
        told = self.outcome
        told.requests += 1
        told.tokens += arrival.tokens
        told.read += read
        told.captured += choice.captured
        told.available += choice.available
        told.first_token_s.append(first_token_s)
        told.busy_s[choice.replica] += work
        ends = arrival.at + first_token_s + arrival.output * self._machine.token_s
        heapq.heappush(self._events, (ends, self._sent, True, choice, _EMPTY, read))

    def _until(self, now: float) -> None:
        """Let happen what happens before `now`."""
        while self._events and self._events[0][0] <= now:
            at, _, over, choice, wanted, read = heapq.heappop(self._events)
            if over:
                self.router.loads.take(choice.ticket)
            else:
                self.router.answering(choice)
                self._learn(choice, wanted, at, read)

    def _learn(self, choice: Choice, wanted: Wanted, at: float, read: int) -> None:
        """Tell the router what the answer says, while its answer still counts as work."""
        self.router.learn(choice, wanted, at, read=read)


SWEPT = 16  # nodes looked at for each request of the ideal
_EMPTY = Wanted(path=b"", ends=(), tokens=0, ttl_s=0.0)


def ideal(arrivals: Iterable[Arrival], machine: Machine) -> Outcome:
    """Return what one replica without a bound and without a queue would do: the most that routing can reach."""
    told = Outcome("ideal")
    held = Residency()
    held.bound("all", 1 << 62)
    for arrival in arrivals:
        blocks = held.match(arrival.path, arrival.at).get("all", NOTHING).blocks
        read = min(blocks * machine.block_tokens, max(0, arrival.tokens - 1))
        held.sweep(arrival.at, SWEPT)
        held.note("all", arrival.path, arrival.at + machine.ttl_s, arrival.at)
        told.requests += 1
        told.tokens += arrival.tokens
        told.read += read
        told.captured += read
        told.available += read
        told.first_token_s.append((arrival.tokens - read) / machine.prefill_rate)
    return told


def faster(arrivals: Iterable[Arrival], times: float) -> Iterator[Arrival]:
    """Yield a trace that comes so many times as fast."""
    for one in arrivals:
        yield Arrival(seconds_of(1000 * one.at / times), one.tokens, one.output, one.path)
