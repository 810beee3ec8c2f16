"""The way to one Redis server: connections, one timeout for everything, and a circuit breaker.

Owns: the pool and the breaker. Knows no policy and no key.
Rule: no call outlasts the timeout, connecting and waiting for a connection included, and while the breaker is open
no call is made at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import redis.exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from prefix_store.breaker import Breaker
from prefix_store.redis_settings import RedisSettings
from prefix_store.store import StoreUnavailable

T = TypeVar("T")

CONNECTIONS = 16
AWAY = (redis.exceptions.RedisError, OSError, TimeoutError)  # what a server that cannot be used answers with
SHUT_OUT = (redis.exceptions.AuthenticationError, redis.exceptions.NoPermissionError)


class RedisLink:
    """Makes calls. Nothing is connected before the first one."""

    def __init__(self, settings: RedisSettings, breaker: Breaker) -> None:
        self.redis: Redis = Redis(connection_pool=_pool(settings))
        self.timeout_s = settings.timeout_s
        self.breaker = breaker
        self.trouble = ""  # what the last call failed of; never "" while the breaker is open
        self._where = settings.where
        self._closed = False

    async def read(self, command: Callable[[], Awaitable[T]]) -> T:
        """Make one call within the timeout; the breaker hears how it went. Raises StoreUnavailable."""
        if self._closed:
            raise StoreUnavailable("the state is closed")
        if not self.breaker.admit():
            raise StoreUnavailable(self.trouble)
        try:
            async with asyncio.timeout(self.timeout_s):
                answer = await command()
        except AWAY as error:
            self.breaker.fail()
            slow = isinstance(error, TimeoutError | redis.exceptions.TimeoutError)
            cause = f"nothing came within {self.timeout_s * 1000:g} ms" if slow else str(error)
            self.trouble = f"the shared state at {self._where} does not answer: {cause}"
            raise StoreUnavailable(self.trouble, perhaps=True) from error
        except BaseException:
            self.breaker.abandon()
            raise
        self.breaker.succeed()
        self.trouble = ""
        return answer

    async def write(self, command: Callable[[], Awaitable[T]]) -> T:
        """Make a call that changes something: when it is not answered, the error says that it may have been done."""
        try:
            return await self.read(command)
        except StoreUnavailable as error:
            if not error.perhaps:
                raise
            raise StoreUnavailable(
                f"{error}; the change may or may not have been made: read before trying again", perhaps=True
            ) from error

    async def close(self) -> None:
        """Hang up for good."""
        self._closed = True
        await self.redis.aclose()
        await self.redis.connection_pool.disconnect()


def shut_out(error: BaseException) -> bool:
    """Tell whether the server does not let this user in, so that waiting cannot help."""
    while error.__cause__ is not None:
        error = error.__cause__
    return isinstance(error, SHUT_OUT)


def _pool(settings: RedisSettings) -> BlockingConnectionPool:
    """Return a pool that neither retries nor gives up by itself: how long a call may take is decided in one place."""
    options: dict[str, Any] = {
        "db": settings.db,
        "username": settings.username,
        "password": settings.password,
        "socket_timeout": None,  # `read` times the whole call; the library's own wait can swallow a cancellation
        "socket_connect_timeout": settings.timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "driver_info": None,  # else every connection looks the library's version up on disk, on the event loop
    }
    if settings.socket is not None:
        options |= {"connection_class": UnixDomainSocketConnection, "path": settings.socket}
    else:
        options |= {"connection_class": Connection, "host": settings.host, "port": settings.port}
    if settings.tls:
        options |= {
            "connection_class": SSLConnection,
            "ssl_ca_certs": settings.ca,
            "ssl_certfile": settings.cert,
            "ssl_keyfile": settings.key,
        }
    return BlockingConnectionPool(max_connections=CONNECTIONS, timeout=None, **options)
