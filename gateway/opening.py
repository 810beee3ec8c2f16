"""A configuration into a house: its state and ledger opened, its rooms wired.

Owns nothing. Rule: what the start-up asks of the shared state is written once, however many processes there are.
"""

from __future__ import annotations

import os

from gateway.backends import Backend
from gateway.config import state_dir
from gateway.config_file import Configuration, redis_settings
from gateway.house import House, build_house
from gateway.keyring import Keyring
from gateway.money import Prices
from gateway.prompt import Renderer
from gateway.state import begin, open_feed, open_ledger, open_state


async def open_house(
    configuration: Configuration,
    backend: Backend,
    renderer: Renderer | None,
    *,
    block_tokens: int,
    secret: bytes | None = None,
    begins: bool = True,
) -> House:
    """Open what it needs and wire it. Raises ConfigError with what to do.

    `begins` is False for one of several processes whose parent has written what the start-up asks for.
    """
    settings, file = configuration.settings, configuration.file
    shared, folder = redis_settings(configuration, os.environ), state_dir(os.environ)
    state = await open_state(folder, shared, block_tokens=block_tokens, classes=file.classes)
    if begins:
        await begin(state, ttl_s=settings.ttl, policies=file.policies, classes=file.classes)
    return build_house(
        settings,
        backend,
        renderer,
        state,
        ledger=await open_ledger(folder, shared, retention_s=settings.ledger_retention),
        prices=Prices(file.rates),
        classes=file.classes,
        keyring=Keyring(file.keys, settings.open_tenants),
        secret=os.environ.get("KEEPWARM_SECRET", "").encode() if secret is None else secret,
        upstreams=file.upstreams,
        routing=file.routing,
        feed=open_feed(shared),
    )
