"""The parent's calls to one worker, over its private socket.

Owns the connections. Rule: a call ends in time, with an answer or with `Silent`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
from yarl import URL

from gateway.errors import GatewayError

PATIENCE_S: Final = 5.0
SLOW_S: Final = 60.0  # for what waits for a store


class Silent(GatewayError):
    """The worker did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a worker answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Read it as JSON."""
        return msgspec.json.decode(self.body)


class Link:
    """One worker as the parent reaches it."""

    def __init__(self, path: Path) -> None:
        """Take the path of its socket; opens nothing yet."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(path), limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> Answer:
        """Ask; `path` has its query with it. Raises Silent."""
        try:
            async with (
                asyncio.timeout(patience_s),
                self._session.request(method, _url(path), data=body or None, headers=headers) as response,
            ):
                return Answer(status=response.status, headers=response.headers, body=await response.read())
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Silent(f"a worker did not answer: {str(error) or type(error).__name__}") from error

    async def events(self, path: str) -> AsyncIterator[tuple[str, bytes]]:
        """Go over a stream's events, by kind, until it ends. Raises Silent."""
        try:
            async with self._session.get(_url(path)) as response:
                kind = ""
                while line := await response.content.readline():
                    name, _, value = line.rstrip(b"\r\n").partition(b": ")
                    if name == b"event":
                        kind = value.decode()
                    elif name == b"data":
                        yield kind, value
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Silent(f"a worker's stream ended: {str(error) or type(error).__name__}") from error

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()


def _url(path: str) -> URL:
    return URL(f"http://localhost{path}", encoded=True)
