"""Every view of the page over a real gateway: without traffic, with it, in light and dark, narrow, and for everyone."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, expect

from tests.dashboard.real.conftest import Seeded, Visit
from tests.dashboard.real.looking import NOT_SAID, VIEWS, settled
from tests.e2e.conftest import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")

PHONE = {"width": 390, "height": 844}
BAD = {"serious", "critical"}
SAYS_WHAT_TO_DO = {"overview", "tokens", "misses", "retention", "requests", "tree"}


@pytest.mark.parametrize("view", VIEWS)
async def test_a_view_without_traffic_says_what_to_do(visit: Visit, quiet: Server, view: str) -> None:
    """With no request at all a view has no percentage, no broken part, and names the command that fills it."""
    page = await visit(quiet, f"#/{view}")
    await settled(page)
    said = await page.locator("main").inner_text()

    assert NOT_SAID.search(said) is None, said
    await expect(page.locator("main .empty:visible code").first).to_contain_text("keepwarm demo --traffic")
    assert await page.locator("main .broken:visible").all_inner_texts() == []
    assert "0.0\u202f%" not in said


@pytest.mark.parametrize("view", VIEWS)
async def test_a_view_with_traffic_shows_it(visit: Visit, seeded: Seeded, view: str) -> None:
    """After traffic a view has a finding for its heading, nothing empty at its top, and nothing that is no number."""
    page = await visit(seeded.server, f"#/{view}")
    await settled(page)
    said = await page.locator("main").inner_text()

    assert NOT_SAID.search(said) is None, said
    assert await page.locator("main .broken:visible").all_inner_texts() == []
    assert "keepwarm demo --traffic" not in said
    assert await page.locator("h1").inner_text() != view.capitalize()


@pytest.mark.parametrize("view", VIEWS)
async def test_a_view_fits_a_phone(visit: Visit, seeded: Seeded, view: str) -> None:
    """At 390 pixels nothing makes the page scroll sideways."""
    page = await visit(seeded.server, f"#/{view}", viewport=PHONE)
    await settled(page)

    assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
async def test_a_view_is_accessible(visit: Visit, seeded: Seeded, view: str, theme: str) -> None:
    """Axe finds nothing serious or critical, whether light or dark."""
    page = await visit(seeded.server, f"#/{view}?theme={theme}")
    await settled(page)

    assert await violations(page) == []


@pytest.mark.parametrize("view", VIEWS)
async def test_an_empty_view_is_accessible(visit: Visit, quiet: Server, view: str) -> None:
    """Axe finds nothing serious or critical where there is nothing to show."""
    page = await visit(quiet, f"#/{view}")
    await settled(page)

    assert await violations(page) == []


async def violations(page: Page) -> list[Any]:
    """What axe finds that is serious or critical, by rule and element."""
    found = await Axe().run(page)
    return [
        (one["id"], [node["target"] for node in one["nodes"]])
        for one in found.response["violations"]
        if one["impact"] in BAD
    ]
