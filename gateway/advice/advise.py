"""Curves into advice: what another TTL, capacity or eviction order would have given, and how sure that is. Pure.

Rules: nothing is advised from fewer than `LEAST_REQUESTS` requests, nor a TTL longer than the traffic that was seen,
nor a gain that its own error could explain. A longer TTL is the shortest that brings `ENOUGH` of what can be had; a
shorter one loses less than `TRIFLE` of the prompts' tokens, its error included. Money only where there are rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from gateway.advice.replay import Replay
from gateway.advice.trace import Group
from prefix_store.classes import CLASSES
from prefix_store.retention import format_duration, parse_duration
from prefix_store.reuse import ENDLESS, PARTS, Estimate, Reuse, Use, Whole, scaled

LADDER_S = tuple(map(parse_duration, ("1m", "5m", "15m", "30m", "1h", "4h", "24h")))
GRID_S = (
    *(1, 2, 5, 10, 20, 30, 45, 60, 90, 120, 180, 240, 300, 420, 600, 900, 1200, 1800, 2700),
    *(3600, 5400, 7200, 10_800, 14_400, 21_600, 28_800, 43_200, 86_400),
)
STEPS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)  # of the present capacity
LEAST_REQUESTS = 100
ENOUGH = 0.8  # of the gain that can be had
WORTH = 0.01  # of the prompts' tokens: a smaller gain is not worth a change
TRIFLE = 0.005  # of the prompts' tokens: a smaller loss is not felt
MS = 1000.0
MINUTE_S = 60
GB_HOUR = 1e9 * 3600 * MS  # bytes × milliseconds

Kind = Literal["ttl", "capacity", "order"]


class Rates(Protocol):
    """What tokens cost."""

    @property
    def currency(self) -> str | None:
        """Such as USD, or None where no rates are set."""

    def worth(self, model: str, read_tokens: float) -> float | None:
        """Return what is saved by reading so many tokens instead of computing them; None without a rate for `model`."""


class Unpriced:
    """No rates are set."""

    currency: str | None = None

    def worth(self, model: str, read_tokens: float) -> float | None:  # noqa: ARG002 - whatever it is, it has no price
        """Return None."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """How much there is room for; None where it is not known."""

    blocks: int | None = None
    block_tokens: int = 16
    bytes_per_token: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """Money saved, or lost where it is negative."""

    currency: str
    amount: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One change and what it would have brought over the sample. `error` is of `read_tokens_delta`, in tokens."""

    kind: Kind
    tenant: str | None
    model: str | None
    now: str
    advised: str
    read_now: float
    read_then: float
    read_tokens_delta: int
    error: int
    gb_hours_delta: float | None
    net: Net | None
    sentence: str


def capacities(blocks: int | None) -> tuple[float, ...]:
    """Return the capacities that are looked at beside the present one."""
    return () if blocks is None else tuple(float(math.floor(blocks * step)) for step in STEPS if blocks * step >= 1)


def pass_over(pool: Pool, ttls_s: Iterable[float], *, most: int | None = None) -> Reuse:
    """Return the empty curves of a cache of that size; the present TTLs are edges, so they are counted exactly."""
    edges = {s * MS for s in (*GRID_S, *LADDER_S, *ttls_s) if s < ENDLESS}
    more = {} if most is None else {"most": most}
    room = ENDLESS if pool.blocks is None else float(pool.blocks)
    return Reuse(ttls=edges, capacities=capacities(pool.blocks), capacity=room, **more)


class Trial:
    """The sampled traffic replayed in miniature under both orders (Waldspurger et al., ATC 2017)."""

    def __init__(self, pool: Pool, rate: float) -> None:
        """Make both caches, as much smaller as the sample is thinner."""
        room = ENDLESS if pool.blocks is None else max(1.0, math.floor(pool.blocks * rate))
        self._lru, self._lfu = Replay(capacity=room), Replay(capacity=room, order="lfu")
        self._rate, self._parts = rate, [0.0] * PARTS

    def feed(self, use: Use) -> None:
        """Play one prompt."""
        recent, frequent = self._lru.feed(use), self._lfu.feed(use)
        for block in use.blocks[min(recent, frequent) : max(recent, frequent)]:
            weight = use.covered % use.block_tokens if block == use.short else use.block_tokens
            self._parts[block % PARTS] += weight if frequent > recent else -weight

    @property
    def gained(self) -> Estimate:
        """How many more tokens LFU would have read."""
        return scaled(self._parts, self._rate)


class Adviser:
    """Advice from curves."""

    def __init__(
        self, reuse: Reuse, ttl_s: Callable[[Group], float], pool: Pool, rates: Rates, trial: Trial | None = None
    ) -> None:
        """Take the curves, the TTL of each group now, the room there is and what tokens cost."""
        self._reuse, self._ttl_s, self._pool, self._rates, self._trial = reuse, ttl_s, pool, rates, trial
        self._span_s = 0.0 if reuse.first is None or reuse.last is None else (reuse.last - reuse.first) / MS

    @property
    def ladder_s(self) -> tuple[float, ...]:
        """The TTLs of which the traffic seen can tell something."""
        return tuple(s for s in LADDER_S if s <= self._span_s)

    def groups(self, tenant: str | None, model: str | None) -> tuple[Group, ...]:
        """Return whose traffic was seen, of that tenant and model."""
        known = (group for group in self._reuse.groups if isinstance(group, Group))
        return tuple(g for g in known if tenant in {None, g.tenant} and model in {None, g.model})

    def advice(self, groups: Sequence[Group]) -> list[Advice]:
        """Return what is worth doing, the largest gain first."""
        found = [self._of_ttl(group) for group in groups]
        if self._pool.blocks is not None and self._reuse.whole(groups).requests >= LEAST_REQUESTS:
            found += [self._of_capacity(groups, self._pool.blocks), self._of_order(groups)]
        return sorted((one for one in found if one is not None), key=lambda one: -one.read_tokens_delta)

    def _of_ttl(self, group: Group) -> Advice | None:
        whole, now_s = self._reuse.whole([group]), self._ttl_s(group)
        if whole.requests < LEAST_REQUESTS:
            return None
        changes = {s: self._reuse.gained([group], now_s * MS, s * MS) for s in self.ladder_s if s != now_s}
        then_s = chosen(changes, now_s, whole.tokens)
        if then_s is None:
            return None
        kept = self.gb_hours([group], then_s), self.gb_hours([group], now_s)
        return self._told(
            "ttl",
            group,
            whole,
            (label(now_s), label(then_s)),
            self._reuse.read([group], now_s * MS),
            changes[then_s],
            None if kept[0] is None or kept[1] is None else kept[0] - kept[1],
        )

    def _of_capacity(self, groups: Sequence[Group], blocks: int) -> Advice | None:
        whole = self._reuse.whole(groups)
        changes = {b: self._reuse.gained_within(groups, blocks, b) for b in capacities(blocks) if b != blocks}
        then = chosen(changes, blocks, whole.tokens)
        if then is None:
            return None
        per_token, more = self._pool.bytes_per_token, (then - blocks) * self._pool.block_tokens
        held = None if per_token is None else more * per_token * self._span_s * MS / GB_HOUR
        words = f"{blocks:,} blocks", f"{then:,.0f} blocks"
        now = self._reuse.read_within(groups, blocks)
        return self._told("capacity", None, whole, words, now, changes[then], held)

    def _of_order(self, groups: Sequence[Group]) -> Advice | None:
        if self._trial is None or set(groups) != set(self.groups(None, None)):
            return None  # one pool has one order, whoever asks
        whole, gained = self._reuse.whole(groups), self._trial.gained
        if chosen({1.0: gained}, 0.0, whole.tokens) is None:
            return None
        now = self._reuse.read_within(groups, self._pool.blocks or ENDLESS)
        return self._told("order", None, whole, ("lru", "lfu"), now, gained, 0.0)

    def _told(
        self,
        kind: Kind,
        group: Group | None,
        whole: Whole,
        words: tuple[str, str],
        now: Estimate,
        change: Estimate,
        gb_hours: float | None,
    ) -> Advice:
        then = min(max(now.tokens + change.tokens, 0.0), whole.tokens)
        money = self._net(group, change.tokens)
        read_now, read_then = now.tokens / whole.tokens, then / whole.tokens
        whose = "everyone" if group is None else f"{group.tenant}, {group.model}"
        grown = f" ({change.tokens / now.tokens:+.1%} read tokens)" if now.tokens else ""
        parts = [
            f"{whose}: {words[0]} → {words[1]}: {read_now:.1%} → {read_then:.1%} of prompt tokens read{grown}",
            "GB·h not known" if gb_hours is None else f"{gb_hours:+,.3g} GB·h",
            *([] if money is None else [f"net {money.amount:+,.2f} {money.currency}"]),
            f"± {change.error / whole.tokens:.1%}, from {whole.requests:,} requests in {span(self._span_s)}",
        ]
        return Advice(
            kind=kind,
            tenant=None if group is None else group.tenant,
            model=None if group is None else group.model,
            now=words[0],
            advised=words[1],
            read_now=read_now,
            read_then=read_then,
            read_tokens_delta=round(change.tokens),
            error=math.ceil(change.error),
            gb_hours_delta=gb_hours,
            net=money,
            sentence="; ".join(parts),
        )

    def _net(self, group: Group | None, tokens: float) -> Net | None:
        currency = self._rates.currency
        amount = None if group is None else self._rates.worth(group.model, tokens)
        return None if currency is None or amount is None else Net(currency=currency, amount=amount)

    # ---- curves ----

    def gb_hours(self, groups: Sequence[Group], ttl_s: float) -> float | None:
        """Return what a TTL keeps over the whole sample, no more than the room there is; None without a size."""
        per_token, last = self._pool.bytes_per_token, self._reuse.last
        if per_token is None or last is None:
            return None
        kept = self._reuse.kept(groups, ttl_s * MS, last)
        if self._pool.blocks is not None:
            kept = min(kept, self._pool.blocks * self._pool.block_tokens * self._span_s * MS)
        return kept * per_token / GB_HOUR

    def curve(self, groups: Sequence[Group]) -> list[dict[str, float | None]]:
        """Return the read ratio by TTL, with its error band."""
        whole = self._reuse.whole(groups)
        points = sorted({*self.ladder_s, *(float(s) for s in GRID_S if s <= self._span_s)}) if whole.tokens else []
        return [
            {"ttl_s": s, **band(self._reuse.read(groups, s * MS), whole.tokens), "gb_hours": self.gb_hours(groups, s)}
            for s in points
        ]

    def capacity_curve(self, groups: Sequence[Group]) -> list[dict[str, float | None]]:
        """Return the read ratio by blocks, with its error band."""
        whole = self._reuse.whole(groups)
        points = capacities(self._pool.blocks) if whole.tokens else ()
        return [{"blocks": b, **band(self._reuse.read_within(groups, b), whole.tokens)} for b in points]

    def told(self, tenant: str | None, model: str | None) -> dict[str, Any]:
        """Return all of it, as the operators' API has it but for the alerts."""
        groups = self.groups(tenant, model)
        whole, reuse = self._reuse.whole(groups), self._reuse
        sample = {
            "requests": whole.requests,
            "tokens": whole.tokens,
            "from": None if reuse.first is None else reuse.first / MS,
            "to": None if reuse.last is None else reuse.last / MS,
            "rate": reuse.rate,
        }
        few = whole.requests < LEAST_REQUESTS
        note = f"not enough traffic: {whole.requests} requests, and advice takes {LEAST_REQUESTS}" if few else None
        return {
            "sample": sample if whole.requests else None,
            "advice": [asdict(one) for one in self.advice(groups)],
            "curve": self.curve(groups),
            "capacity_curve": self.capacity_curve(groups),
            "note": note,
        }


def chosen(changes: Mapping[float, Estimate], now: float, tokens: int) -> float | None:
    """Choose among changes from `now`: the least that brings most of the gain, else the least that loses nothing."""
    larger = {at: change for at, change in changes.items() if at > now}
    most = max((change.tokens for change in larger.values()), default=0.0)
    for at, change in sorted(larger.items()):
        if change.tokens >= ENOUGH * most and change.tokens >= WORTH * tokens and change.tokens > change.error:
            return at
    smaller = sorted(at for at in changes if at < now)
    return next((at for at in smaller if changes[at].error - changes[at].tokens <= TRIFLE * tokens), None)


def band(read: Estimate, tokens: int) -> dict[str, float | None]:
    """Return a read ratio between its bounds."""
    low, high = max(read.tokens - read.error, 0.0), min(read.tokens + read.error, float(tokens))
    return {"read_ratio": read.tokens / tokens, "low": low / tokens, "high": high / tokens}


def span(seconds: float) -> str:
    """Spell how long the traffic took, to the minute where it took one."""
    if not seconds:
        return "an instant"
    return format_duration(round(seconds / MINUTE_S) * MINUTE_S if seconds >= MINUTE_S else round(seconds, 1))


def label(seconds: float) -> str:
    """Spell a length of time as policies do; one that never ends is `endless`, none at all `none`."""
    if seconds == ENDLESS:
        return "endless"
    return CLASSES.label(seconds) if seconds else "none"
