"""One real Chromium for all tests of the page, and servers with made-up answers for it to look at."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from aiohttp.test_utils import TestServer
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from tests.dashboard.made_up import MadeUp, serve

NAMES = ("chromium", "chromium-browser", "google-chrome")
PURE = ("api", "format", "series", "state", "words")  # importing them needs no page
VIEWS = (
    "fleet_words",
    "icicle",
    "misses_words",
    "policy_words",
    "reasons",
    "request_layout",
)  # nor does importing these of views/
Lay = Callable[..., Awaitable[Any]]
Open = Callable[..., Awaitable[Page]]


expect.set_options(timeout=20_000)  # a page on a busy machine takes its time to be as it should


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium."""
    found = os.environ.get("KEEPWARM_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("there is no Chromium here: scripts/chromium.sh installs Debian's")
    return found


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    """A Chromium that runs."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def open_page(browser: Browser) -> AsyncIterator[Open]:
    """Open the page of a made-up gateway at a hash; whatever it throws, or asks elsewhere, fails the test."""
    contexts: list[BrowserContext] = []
    servers: list[TestServer] = []
    problems: list[str] = []

    def asked(url: str, home: str) -> None:
        if not url.startswith((home, "blob:", "data:")):
            problems.append(f"asked for {url}")

    def said(text: str) -> None:
        if "Content Security Policy" in text:
            problems.append(text)

    async def opened(made: MadeUp | None = None, at: str = "#/overview", **context: Any) -> Page:
        made = made or MadeUp()
        servers.append(await serve(made))
        contexts.append(await browser.new_context(timezone_id="UTC", **context))
        page = await contexts[-1].new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: asked(request.url, made.url))
        page.on("console", lambda message: said(message.text))
        await page.goto(made.url + at)
        return page

    yield opened
    for context in contexts:
        await context.close()
    for server in servers:
        await server.close()
    assert problems == []


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def run(browser: Browser) -> AsyncIterator[Callable[[str], Awaitable[Any]]]:
    """Run JavaScript on the page: an expression over `m`, which has all that its pure modules export."""
    server = await serve(MadeUp())
    context = await browser.new_context(timezone_id="UTC")
    page = await context.new_page()
    await page.goto(str(server.make_url("/static/icon.svg")))
    imports = ", ".join(f"import('/static/{name}.js')" for name in PURE)

    async def evaluated(expression: str) -> Any:
        return await page.evaluate(
            f"async () => {{ const m = Object.assign({{}}, ...await Promise.all([{imports}])); return {expression}; }}"
        )

    yield evaluated
    await context.close()
    await server.close()


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def lay(browser: Browser) -> AsyncIterator[Lay]:
    """Run JavaScript on the page: an expression over the views' pure modules, each by its name, and `given`."""
    server = await serve(MadeUp())
    context = await browser.new_context(timezone_id="UTC")
    page = await context.new_page()
    await page.goto(str(server.make_url("/static/icon.svg")))
    imports = "; ".join(f"const {name} = await import('/static/views/{name}.js')" for name in VIEWS)

    async def evaluated(expression: str, given: object = None) -> Any:
        return await page.evaluate(f"async (given) => {{ {imports}; return {expression}; }}", given)

    yield evaluated
    await context.close()
    await server.close()
