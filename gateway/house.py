"""The house, wired once: settings in, every room joined to those it needs.

Owns what both applications share. Starts nothing at import and nothing by being built; nothing is global.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Protocol

from gateway.admin.view import view
from gateway.advice.advise import Pool
from gateway.advice.office import Office
from gateway.advice.trace import Group
from gateway.advice.traffic import Traffic
from gateway.api.relay_tokens import Tokenised
from gateway.backends import Backend
from gateway.config import Settings
from gateway.diagnosis import Diagnosis
from gateway.drain import Drain
from gateway.errors import ConfigError
from gateway.exchange import Exchanges
from gateway.keyring import Keyring
from gateway.ledger import Ledger
from gateway.live import Hub
from gateway.metrics import Metrics, MetricsOptions
from gateway.metrics.own import Worth
from gateway.money import Prices
from gateway.policies import Policies
from gateway.prompt import Renderer
from gateway.recall import Recall
from gateway.recent import Recent
from gateway.record import Record, Witness
from gateway.relay.fleet import Fleet
from gateway.relay.kv_events import KvEvents
from gateway.relay.probes import Probes
from gateway.relay.relay import Relay
from gateway.relay.sharing import Sharing
from gateway.relay.upstream import Upstream
from gateway.reload import Reloads
from gateway.routing.router import Policy as Routing
from gateway.tally import Tally
from gateway.timeline import Timeline
from prefix_store.classes import CLASSES, RetentionClasses
from prefix_store.ledger import LedgerStore
from prefix_store.residency_feed import Feed
from prefix_store.store import SharedState


class Tracing(Witness, Protocol):
    """Who makes traces of exchanges."""

    def close(self) -> None:
        """Send what is left. Blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What both applications share."""

    settings: Settings
    backend: Backend
    renderer: Renderer | None  # None: no engine, so nothing is rendered and nothing answered here
    exchanges: Exchanges | None
    metrics: Metrics
    policies: Policies
    keyring: Keyring
    tally: Tally
    ledger: Ledger
    prices: Prices
    recall: Recall
    recent: Recent
    hub: Hub
    timeline: Timeline
    traces: Tracing | None
    traffic: Traffic
    office: Office
    relay: Relay
    tokenised: Tokenised
    sharing: Sharing | None
    kv_events: KvEvents
    probes: Probes
    reloads: Reloads
    drain: Drain


def build_house(
    settings: Settings,
    backend: Backend,
    renderer: Renderer | None,
    state: SharedState,
    *,
    ledger: LedgerStore,
    prices: Prices | None = None,
    classes: RetentionClasses = CLASSES,
    keyring: Keyring | None = None,
    secret: bytes | None = None,
    upstreams: Sequence[Upstream] = (),
    routing: Mapping[str, Routing] = MappingProxyType({}),
    feed: Feed | None = None,
    environ: Mapping[str, str] = os.environ,
) -> House:
    """Wire the rooms. Starts nothing. Without a `secret`, what is remembered of requests ends with the process."""
    policies = Policies(state, backend, classes=classes, now=time.time)
    keyring = keyring or Keyring(())
    prices = prices or Prices()
    tally = Tally(state, keyring.tenants)
    options = MetricsOptions(
        compat=settings.compat_metrics, tenants=settings.metrics_tenants, classes=tuple(classes.lengths_s)
    )
    fleet = Fleet(
        upstreams,
        clock=time.monotonic,
        policies=routing,
        engine=None if renderer is None else backend,
        engine_requests=settings.max_num_seqs + settings.max_waiting,
    )
    metrics = Metrics(
        backend.model or backend.name, options, backend=backend.name, fleet=fleet, pricing=partial(_worth, prices)
    )
    traces = _traces(settings.otlp_endpoint)
    book = Ledger(ledger, backend)
    secret = secret or secrets.token_bytes(32)
    recall = Recall(state, secret=secret)
    traffic, office = _advice(settings, backend, policies, secret, prices)
    recent, hub = Recent(most=settings.recent_requests), Hub(view)
    witnesses: list[Witness] = [metrics, tally, book, traffic, recent, hub]
    if traces is not None:
        witnesses.append(traces)
    exchanges = None
    if renderer is not None:
        diagnosis = Diagnosis(recall, rendering=renderer.identity)
        exchanges = Exchanges(backend, renderer, metrics, policies, diagnosis, witnesses=witnesses)
    tokenised = Tokenised.load(upstreams)
    relay = Relay(fleet, secret=secret, policies=policies, witnesses=witnesses, environ=environ, exact=tokenised.prefix)
    return House(
        settings=settings,
        backend=backend,
        renderer=renderer,
        exchanges=exchanges,
        metrics=metrics,
        policies=policies,
        keyring=keyring,
        tally=tally,
        ledger=book,
        prices=prices,
        recall=recall,
        recent=recent,
        hub=hub,
        timeline=Timeline(state, hub, now=time.time),
        traces=traces,
        traffic=traffic,
        office=office,
        relay=relay,
        tokenised=tokenised,
        sharing=None if feed is None else Sharing(fleet, feed, secret=secret),
        kv_events=KvEvents(fleet),
        probes=Probes(fleet, relay.ask_health),
        reloads=Reloads(settings.config, fleet, state, environ=environ, heard=metrics.fleet.reloaded),
        drain=Drain([relay] if exchanges is None else [exchanges, relay]),
    )


def _worth(prices: Prices, record: Record) -> Worth | None:
    """Say what one exchange saved and paid; None where its model has no rates."""
    rates, facts = prices.rates(record.model), record.prompt
    if rates is None or facts is None:
        return None
    written = Counter[str]()
    for part in facts.written:
        written[part.applied] += part.tokens
    if record.prewarm:
        paid = rates.whole(read=facts.read, written=written, uncached=facts.uncached)
        return Worth(rates.currency, saved=0.0, paid=paid)
    return Worth(rates.currency, saved=rates.saved(facts.read), paid=rates.paid(written))


def _traces(endpoint: str | None) -> Tracing | None:
    if endpoint is None:
        return None
    try:
        from gateway.traces import Traces  # noqa: PLC0415 - an optional library, and slow to load
    except ImportError as error:
        raise ConfigError(f"--otlp-endpoint needs OpenTelemetry ({error}): pip install 'keepwarm[otel]'") from error
    return Traces.towards(endpoint)


def _advice(
    settings: Settings, backend: Backend, policies: Policies, secret: bytes, prices: Prices
) -> tuple[Traffic, Office]:
    """Join what is noted of traffic with what is in force now."""

    def pool() -> Pool:
        card = backend.card
        if card is None:
            return Pool()
        return Pool(blocks=card.blocks, block_tokens=card.block_tokens, bytes_per_token=card.kv_bytes_per_token)

    def kept(group: Group) -> tuple[str | None, float]:
        policy = policies.known.govern(model=group.model, tenant=group.tenant)
        return policy.default_ttl, policy.default_s or 0.0

    traffic = Traffic(secret=secret, block_tokens=lambda: pool().block_tokens, ttl=kept, file=settings.traffic_log)
    return traffic, Office(traffic, ttl_s=lambda group: kept(group)[1], pool=pool, rates=prices)


@contextlib.asynccontextmanager
async def kept_up(house: House) -> AsyncIterator[None]:
    """Follow the policies, and hand over now and then what was counted and remembered."""
    async with (
        house.policies.following(),
        house.timeline.following(house.backend),
        house.tally.flushing(),
        house.ledger.flushing(),
        house.recall.flushing(),
        house.traffic.flushing(),
        house.kv_events.following(),
        contextlib.nullcontext() if house.sharing is None else house.sharing.following(),
        house.probes.probing(),
    ):
        yield
