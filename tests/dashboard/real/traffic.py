"""Traffic for a real gateway on the tiny model, and the sums of what its answers said."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.e2e.conftest import Server

Json = dict[str, Any]

TENANTS = ("blue", "red")
PROMPTS = {
    "blue": "You keep the blue warehouse, where the cold things stay cold and the warm things stay warm. " * 6,
    "red": "You keep the red kiln, which is lit at dusk and opened at dawn by whoever is awake. " * 6,
}


@dataclass
class Sums:
    """What answers said, added up by tenant."""

    tokens: dict[str, Counter[str]] = field(default_factory=lambda: {tenant: Counter() for tenant in TENANTS})

    def take(self, tenant: str, answer: Json) -> None:
        """Count one answer of chat completions."""
        usage, kept = answer["usage"], self.tokens[tenant]
        details = usage["prompt_tokens_details"]
        kept["requests"] += 1
        kept["prompt"] += usage["prompt_tokens"]
        kept["read"] += details["cached_tokens"]
        kept["write"] += details["cache_write_tokens"]
        kept["output"] += usage["completion_tokens"]
        for miss in answer["keepwarm"]["miss"]:
            kept[f"missed {miss['reason']}"] += miss["tokens"]

    def of(self, *tenants: str) -> Counter[str]:
        """Return the sums of these tenants together, or of all."""
        return sum((self.tokens[tenant] for tenant in tenants or TENANTS), Counter())


def call(url: str, body: Json | None = None, *, method: str | None = None, key: str | None = None) -> Json:
    """Send JSON and read JSON."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    content = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data=content, headers=headers, method=method), timeout=60) as answer:
        read: Json = json.load(answer)
    return read


async def admin(server: Server, path: str, body: Json | None = None, method: str | None = None) -> Json:
    """Call the admin API while the browser goes on."""
    return await asyncio.to_thread(call, f"{server.admin_url}/admin/v1/{path}", body, method=method)


def ask(server: Server, tenant: str, question: str, *, system: str | None = None, **fields: Any) -> Json:
    """Ask one question over the tenant's long beginning."""
    content = PROMPTS[tenant] if system is None else system
    messages = [{"role": "system", "content": content}, {"role": "user", "content": question}]
    body = {"model": server.model, "messages": messages, "max_tokens": 4, "temperature": 0, **fields}
    return call(f"{server.url}/v1/chat/completions", body, key=tenant)


def refused(server: Server, tenant: str) -> int:
    """Ask for a model that nobody serves, and return the status."""
    try:
        ask(server, tenant, "Is anybody there?", model="nobody")
    except HTTPError as error:
        with error:
            return error.code
    raise AssertionError("it was answered")


def seed(server: Server) -> Sums:
    """Send a dozen requests of two tenants: cold, warm, changed, marked, refused; return what the answers said."""
    sums = Sums()
    for tenant in TENANTS:
        for question in ("Who is there?", "What is kept?", "What is kept, and for whom?"):
            sums.take(tenant, ask(server, tenant, question))
    changed = "Now: 2026-03-02T09:31:10Z. " + PROMPTS["red"]
    sums.take("red", ask(server, "red", "What is kept?", system=changed))
    sums.take("blue", ask(server, "blue", "How long?", prompt_cache_options={"ttl": "1h"}))
    assert refused(server, "blue") == 404
    call(f"{server.admin_url}/admin/v1/events", {"title": "deployed 1.4"})
    return sums
