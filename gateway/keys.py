"""Typed names for what the applications and requests carry. A pure leaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiohttp import web

from gateway.advice.office import Office
from gateway.ask import Route
from gateway.backends import Backend
from gateway.config import Settings
from gateway.drain import Drain
from gateway.errors import Problem
from gateway.exchange import Exchanges
from gateway.keyring import Identity, Keyring
from gateway.ledger import Ledger
from gateway.live import Hub
from gateway.metrics import Metrics
from gateway.money import Prices
from gateway.policies import Policies
from gateway.prompt import Renderer
from gateway.recall import Recall
from gateway.recent import Recent
from gateway.relay.relay import Relay
from gateway.relay.sharing import Sharing
from gateway.reload import Reloads
from gateway.tally import Tally
from gateway.timeline import Timeline

ADVICE: Final = web.AppKey("advice", Office)
SETTINGS: Final = web.AppKey("settings", Settings)
BACKEND: Final = web.AppKey("backend", Backend)
EXCHANGES: Final = web.AppKey("exchanges", Exchanges)
METRICS: Final = web.AppKey("metrics", Metrics)
POLICIES: Final = web.AppKey("policies", Policies)
RENDERER: Final = web.AppKey("renderer", Renderer)
RELAY: Final = web.AppKey("relay", Relay)
SHARING: Final = web.AppKey("sharing", Sharing)
LEDGER: Final = web.AppKey("ledger", Ledger)
PRICES: Final = web.AppKey("prices", Prices)
TALLY: Final = web.AppKey("tally", Tally)
KEYRING: Final = web.AppKey("keyring", Keyring)
RECALL: Final = web.AppKey("recall", Recall)
RECENT: Final = web.AppKey("recent", Recent)
LIVE: Final = web.AppKey("live", Hub)
TIMELINE: Final = web.AppKey("timeline", Timeline)
DRAIN: Final = web.AppKey("drain", Drain)
RELOADS: Final = web.AppKey("reloads", Reloads)

IDENTITY: Final = web.RequestKey("identity", Identity)
REQUEST_ID: Final = web.RequestKey("request_id", str)
ROUTE: Final[web.RequestKey[Route]] = web.RequestKey("route")  # who hears what becomes of it
STREAM: Final = web.RequestKey("stream", web.StreamResponse)
FAILURE: Final[web.RequestKey[Callable[[Problem], bytes]]] = web.RequestKey("failure")  # ends a stream that has begun
