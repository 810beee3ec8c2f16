"""Real gateways on the tiny model for the page to look at: one without traffic, one with, one that is changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Page, Request, Route

from tests.dashboard.real.traffic import TENANTS, Sums, seed
from tests.e2e.conftest import Server, StartServer, start_lasting, start_server, tiny_model

__all__ = ["start_lasting", "start_server", "tiny_model"]

OPEN = ("--kv-bytes", "8MiB", "--open-tenants", ",".join(TENANTS))
KEEPING = (*OPEN, "--ttl", "1h")  # longer than the tests take that look at what is kept, on any machine
Visit = Callable[..., Awaitable[Page]]


@dataclass(frozen=True, slots=True)
class Seeded:
    """A gateway after traffic, and what its answers said."""

    server: Server
    sums: Sums


@pytest.fixture(scope="session")
def quiet(start_lasting: StartServer) -> Server:
    """A gateway that has had no request."""
    return start_lasting(*OPEN)


@pytest.fixture(scope="session")
def seeded(start_lasting: StartServer) -> Seeded:
    """A gateway that has had a dozen requests, and gets no more."""
    server = start_lasting(*KEEPING)
    return Seeded(server, seed(server))


@pytest.fixture(scope="session")
def changing(start_lasting: StartServer) -> Seeded:
    """A gateway with traffic, which tests change; what they compare, they look at first."""
    server = start_lasting(*KEEPING)
    return Seeded(server, seed(server))


@pytest_asyncio.fixture(loop_scope="session")
async def visit(browser: Browser) -> AsyncIterator[Visit]:
    """Open a gateway's page at a hash, with every other address cut off.

    A script that throws, a rule of the page's security policy that is broken, and a request to anywhere else fail the
    test.
    """
    contexts: list[Any] = []
    problems: list[str] = []

    def heard(said: ConsoleMessage) -> None:
        if "Content Security Policy" in said.text:
            problems.append(said.text)

    async def opened(server: Server, at: str = "#/overview", **context: Any) -> Page:
        async def only_home(route: Route, asked: Request) -> None:
            if asked.url.startswith(server.admin_url + "/"):
                await route.continue_()
            else:
                problems.append(f"asked {asked.url}")
                await route.abort()

        contexts.append(await browser.new_context(timezone_id="UTC", **context))
        await contexts[-1].route("**/*", only_home)
        page: Page = await contexts[-1].new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: problems.append(f"threw {error}"))
        page.on("console", heard)
        await page.goto(f"{server.admin_url}/{at}")
        return page

    yield opened
    for context in contexts:
        await context.close()
    assert problems == []
