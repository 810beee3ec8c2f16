"""The operator of `keepwarm demo --traffic`: sets its policies, marks its deploys, tries a purge, takes all away again.

Owns the policies whose names begin with `demo-`. Each call runs in a thread, since the admin client waits.
Rule: what a gateway does not offer is left out and told; anything else that goes wrong ends the demo in one line.
"""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Sequence
from typing import Any

from gateway.admin.client import AdminClient, CallFailed
from gateway.demo.errors import DemoError
from gateway.demo.scenario import REPORTS, TENANTS

Json = dict[str, Any]

ABSENT = frozenset({http.client.NOT_FOUND, http.client.METHOD_NOT_ALLOWED, http.client.NOT_IMPLEMENTED})


class Operator:
    """Acts on one gateway's admin listener."""

    def __init__(self, url: str, key: str | None) -> None:
        """Use this address and key. Raises DemoError for what is no address."""
        try:
            self._client = AdminClient(url, key)
        except CallFailed as error:
            raise DemoError(str(error)) from error
        self._made: list[str] = []

    @property
    def url(self) -> str:
        """Where the page is."""
        return self._client.url

    async def check_tenants(self) -> None:
        """Raise DemoError unless the gateway takes the demo's tenants by their names."""
        known = (await self._call("GET", "stats")).get("tenants", {})
        missing = [name for name in TENANTS if name not in known]
        if missing:
            raise DemoError(
                f"the gateway does not know the tenants {', '.join(missing)}: start it with `make run`, or with "
                f"`keepwarm serve --open-tenants {','.join(TENANTS)}`"
            )

    async def put(self, policy: Json) -> Json:
        """Set a policy over whatever stands under its name."""
        name = policy["name"]
        standing = {shown["name"]: shown["version"] for shown in (await self._call("GET", "policies"))["policies"]}
        stored = await self._call("PUT", "policies", name, body={**policy, "version": standing.get(name, 0)})
        if name not in self._made:
            self._made.append(name)
        return stored

    async def mark(self, title: str) -> bool:
        """Add a mark to the page's time axis; say whether the gateway has marks."""
        try:
            await asyncio.to_thread(self._client.call, "POST", "events", body={"title": title})
        except CallFailed as error:
            if error.status == http.client.CREATED:
                return True
            if error.status in ABSENT:
                return False
            raise DemoError(str(error)) from error
        return True

    async def dry_run(self) -> Json:
        """Ask what a purge of the reports would forget."""
        answer = await self._call("POST", "purge", body={"tenant": REPORTS, "dry_run": True})
        purged = answer["tenants"].get(REPORTS, {}).get("purged", {})
        return {"tenant": REPORTS, **purged}

    async def clear(self) -> Sequence[str]:
        """Take away the policies that were made here, and return their names."""
        gone = []
        while self._made:
            name = self._made.pop()
            version = (await self._call("GET", "policies", name))["version"]
            await self._call("DELETE", "policies", name, query={"version": version})
            gone.append(name)
        return sorted(gone)

    async def _call(self, method: str, *path: str, **more: Any) -> Json:
        try:
            return await asyncio.to_thread(self._client.call, method, *path, **more)
        except CallFailed as error:
            raise DemoError(str(error)) from error
