"""The page lives: what happens in the gateway appears, and whom it asks."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Request, expect

from tests.dashboard.real.conftest import OPEN, Seeded, Visit
from tests.dashboard.real.looking import VIEWS, settled, titles
from tests.dashboard.real.traffic import Json, admin, ask
from tests.e2e.conftest import StartServer

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def asked(seeded: Seeded, tenant: str, question: str) -> Json:
    """Ask while the browser goes on, and add the answer to the sums."""
    answer = await asyncio.to_thread(ask, seeded.server, tenant, question)
    seeded.sums.take(tenant, answer)
    return answer


async def test_a_request_appears_by_itself(visit: Visit, changing: Seeded) -> None:
    """A request that comes waits behind a button, stands first when that is pressed, and tells its own tokens."""
    page = await visit(changing.server, "#/requests")
    await settled(page)
    answer = await asked(changing, "red", "What is new?")
    await page.get_by_role("button", name="1 new").click()
    row = page.locator(".requests tbody tr").first

    await expect(row).to_have_attribute("data-id", answer["id"])
    usage = answer["usage"]
    read = usage["prompt_tokens_details"]["cached_tokens"]
    await expect(row.locator("td[data-key=read]")).to_have_attribute(
        "title", f"{read:,} of {usage['prompt_tokens']:,} tokens"
    )


async def test_the_overview_counts_on(visit: Visit, changing: Seeded) -> None:
    """The overview's sums follow a request without a reload, to the token."""
    page = await visit(changing.server)
    await settled(page)
    before = await titles(page)
    await asked(changing, "blue", "What is kept, and until when?")
    told = changing.sums.of()
    now = f"{told['read']:,} of {told['prompt']:,} tokens"
    await expect(page.locator(".number .value").first).to_have_attribute("title", now, timeout=20_000)

    assert before["Read ratio by tokens"] != now


async def test_a_mark_appears_by_itself(visit: Visit, changing: Seeded) -> None:
    """A deploy that is marked in the gateway stands under What changed soon after."""
    page = await visit(changing.server)
    await settled(page)
    await admin(changing.server, "events", {"title": "deployed 2.0"})

    await expect(page.locator(".panel", has_text="What changed")).to_contain_text("deployed 2.0", timeout=20_000)


async def test_a_gateway_that_goes_is_said_to_be_gone(visit: Visit, start_server: StartServer) -> None:
    """When the gateway ends, the page says since when nothing is live and keeps what it showed."""
    server = await asyncio.to_thread(start_server, *OPEN)
    await asyncio.to_thread(ask, server, "red", "Who is there?")
    page = await visit(server)
    await settled(page)
    shown = await titles(page)
    server.process.terminate()
    await asyncio.to_thread(server.process.wait, 60)

    await expect(page.locator("#bar .link")).to_contain_text("no live data since", timeout=20_000)
    assert await titles(page) == shown


async def test_nobody_else_is_asked(visit: Visit, seeded: Seeded) -> None:
    """Through all views the page asks its own gateway alone, and works with every other address cut off."""
    page = await visit(seeded.server)
    addresses: list[str] = []

    def note(request: Request) -> None:
        addresses.append(request.url)

    page.on("request", note)
    for view in VIEWS:
        await page.goto(f"{seeded.server.admin_url}/#/{view}")
        await settled(page)

    assert len(addresses) > len(VIEWS)
    assert [url for url in addresses if not url.startswith(f"{seeded.server.admin_url}/")] == []


async def test_the_key_is_asked_for(visit: Visit, start_server: StartServer) -> None:
    """With an admin key the page shows nothing until it is given, and everything afterwards."""
    server = await asyncio.to_thread(start_server, *OPEN, KEEPWARM_ADMIN_KEY="hunter2")
    page = await visit(server)
    asks = page.get_by_role("dialog", name="This gateway asks for its admin key")
    await asks.get_by_label("Admin key").fill("hunter2")
    await asks.get_by_label("Admin key").press("Enter")
    await settled(page)

    await expect(page.get_by_role("dialog")).to_have_count(0)
    assert await page.evaluate("sessionStorage.length + localStorage.length") == 1
    assert "hunter2" not in page.url
