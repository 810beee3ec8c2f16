"""Mixed random traffic: whole answers, streams that are cut, requests that are dropped, refusals, purges, new prefixes.

Owns what it has sent, by kind. Rule: what is random comes from a seed; an answer that nobody asked for (a status that
the kind does not expect) is counted as wrong and ends nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, Final

import aiohttp

TENANTS: Final = ("red", "green", "blue")
PREFIXES: Final = 6  # that are asked about at the same time
RENEWED: Final = 0.02  # of the requests bring a new prefix in an old one's place
KINDS: Final = {"whole": 8, "stream": 10, "cut": 5, "dropped": 3, "marked": 5, "refused": 1}
PURGE_EVERY: Final = 50  # requests
DROP_S: Final = 0.005
WORDS: Final = ("the", "light", "goes", "round", "and", "keeper", "writes", "down", "wind", "rain", "ships", "hour")


class Traffic:
    """Clients of one server."""

    def __init__(self, session: aiohttp.ClientSession, url: str, admin_url: str, model: str, seed: int) -> None:
        """Send to these addresses; equal seeds choose alike, though not in the same moments."""
        self._session, self._url, self._admin_url, self._model = session, url, admin_url, model
        self._chance = random.Random(seed)
        self._prefixes = [self._text(160) for _ in range(PREFIXES)]
        self.sent: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()

    async def client(self, until: asyncio.Event) -> None:
        """Send one request after the other until told to stop."""
        while not until.is_set():
            (kind,) = self._chance.choices(list(KINDS), weights=list(KINDS.values()))
            if sum(self.sent.values()) % PURGE_EVERY == PURGE_EVERY - 1:
                await self._purge()
            self.sent[kind] += 1
            try:
                await self._send(kind)
            except TimeoutError:
                if kind != "dropped":
                    self.wrong[f"{kind}: no answer"] += 1
            except aiohttp.ClientError as error:
                self.wrong[f"{kind}: {type(error).__name__}"] += 1

    async def _send(self, kind: str) -> None:
        path, body = self._body(kind)
        tenant = self._chance.choice(TENANTS)
        headers = {"Authorization": f"Bearer {tenant}", "x-api-key": tenant}
        limit = aiohttp.ClientTimeout(total=DROP_S * self._chance.random() if kind == "dropped" else 60.0)
        expected = 400 if kind == "refused" else 200
        async with self._session.post(self._url + path, json=body, headers=headers, timeout=limit) as response:
            if response.status != expected:
                self.wrong[f"{kind}: {response.status}"] += 1
            if kind == "cut":
                for _ in range(self._chance.randint(1, 6)):
                    await response.content.readline()
                response.close()
                return
            await response.read()

    def _body(self, kind: str) -> tuple[str, dict[str, Any]]:
        if self._chance.random() < RENEWED:
            self._prefixes[self._chance.randrange(PREFIXES)] = self._text(160)
        system = self._chance.choice(self._prefixes)
        turns = [{"role": "user", "content": self._text(self._chance.randint(2, 20))}]
        tokens = self._chance.randint(1, 24)
        if kind == "marked":
            block = {"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}
            return "/v1/messages", {"model": self._model, "system": [block], "messages": turns, "max_tokens": tokens}
        messages = [{"role": "system", "content": system}, *turns]
        body: dict[str, Any] = {"model": self._model, "messages": messages, "max_tokens": tokens, "temperature": 0.8}
        if kind in {"stream", "cut"}:
            body |= {"stream": True, "max_tokens": 200 if kind == "cut" else tokens}
        if kind == "refused":
            body["temperature"] = -1
        return "/v1/chat/completions", body

    async def _purge(self) -> None:
        self.sent["purge"] += 1
        body = {"tenant": self._chance.choice(TENANTS)}
        async with self._session.post(f"{self._admin_url}/admin/v1/purge", json=body) as response:
            if not response.ok:
                self.wrong[f"purge: {response.status}"] += 1

    def _text(self, words: int) -> str:
        return f"{self._chance.getrandbits(32)} " + " ".join(self._chance.choices(WORDS, k=words))
