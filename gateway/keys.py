"""Typed names for what the applications and requests carry. A pure leaf."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from gateway.backends import Backend
from gateway.config import Settings
from gateway.exchange import Exchanges
from gateway.metrics import Metrics

SETTINGS: Final = web.AppKey("settings", Settings)
BACKEND: Final = web.AppKey("backend", Backend)
EXCHANGES: Final = web.AppKey("exchanges", Exchanges)
METRICS: Final = web.AppKey("metrics", Metrics)

REQUEST_ID: Final = web.RequestKey("request_id", str)
STREAM: Final = web.RequestKey("stream", web.StreamResponse)
