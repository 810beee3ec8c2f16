"""The overview in a real browser: its four states, its numbers, its life."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from tests.dashboard.conftest import Open
from tests.dashboard.made_up import NOW, MadeUp, counts, retention, state, usage

pytestmark = pytest.mark.asyncio(loop_scope="session")

GOOD = counts(20, read=8200, rest=1800, hits=15)
BAD = counts(20, read=3100, rest=6900, hits=5)
ALERT = {
    "id": "fall",
    "severity": "page",
    "title": "Read ratio of acme fell from 82 % to 31 %",
    "since": NOW,
    "detail": "A timestamp stands first.",
    "what_to_do": "Move what changes to the end.",
    "tenant": "acme",
    "model": "tiny",
}


def busy() -> MadeUp:
    """A gateway whose read ratio fell ten minutes ago."""
    events = [{"at": NOW - 600, "kind": "deploy", "title": "web 7", "subject": "acme"}]
    answers = {"usage": usage([GOOD] * 10 + [BAD] * 10), "events": {"events": events}, "retention": retention(8000)}
    return MadeUp({**answers, "advice": {"sample": None, "advice": [], "alerts": [ALERT]}})


async def numbers(page: Page) -> list[str]:
    """The values of the strip of numbers, with narrow spaces written as plain ones."""
    values = await page.locator(".numbers .value").all_inner_texts()
    return [value.replace("\u202f", " ") for value in values]


async def test_without_requests_it_says_what_to_run(open_page: Open) -> None:
    """An empty range is told in words, with the command that fills it, and no share is shown as 0 % or 100 %."""
    page = await open_page()
    await expect(page.locator("h1")).to_have_text("Read ratio: no prompts in this range")
    await expect(page.get_by_text(".venv/bin/keepwarm demo --traffic")).to_have_count(1)
    assert await numbers(page) == ["–", "–", "0", "–", "–", "–"]
    assert "NaN" not in await page.inner_text("body")
    assert "0\u202f%" not in await page.inner_text("main")


async def test_it_answers_at_a_glance(open_page: Open) -> None:
    """The title states what happened, the numbers are those of the answer, and what needs a person stands on top."""
    page = await open_page(busy())
    await expect(page.locator("h1")).to_have_text("Read ratio fell from 82\u202f% to 31\u202f% at 07:50")
    assert await numbers(page) == ["56.5 %", "50.0 %", "113 k", "56.5 %", "200 ms", "1.4 s"]
    todo = page.get_by_role("region", name="1 thing needs you")
    await expect(todo).to_contain_text("Move what changes to the end.")
    await expect(page.get_by_role("region", name="What changed").locator("li")).to_contain_text(["web 7"])
    await expect(page.get_by_role("region", name="50.0\u202f% of the cache is full")).to_be_visible()
    await expect(page.locator(".mark").first).to_have_attribute(
        "aria-label", "deploy: web 7, 2027-01-15 07:50:00 +00:00"
    )


async def test_few_requests_are_told_as_counts(open_page: Open) -> None:
    """One request that was read whole is not 100 %."""
    page = await open_page(MadeUp({"usage": usage([counts(1, read=512)])}))
    await expect(page.locator("h1")).to_have_text("512 of 512 prompt tokens were read, in 1 request")
    assert (await numbers(page))[:2] == ["512 of 512", "1 of 1"]
    assert "100" not in await page.inner_text(".numbers")


async def test_what_fails_is_stale_and_the_rest_stays(open_page: Open) -> None:
    """When the ledger fails, its panels keep what they showed and say since when; the others go on."""
    made = busy()
    page = await open_page(made)
    await expect(page.locator("h1")).to_contain_text("fell")
    made.statuses["usage"] = 503
    made.tell("change", {"at": NOW, "kind": "deploy", "title": "web 8", "subject": ""})
    await expect(page.get_by_text("usage is gone.")).to_contain_text("Stale since 20")
    assert (await numbers(page))[0] == "56.5 %"
    await expect(page.get_by_role("region", name="What changed")).to_have_attribute("data-state", "ready")
    made.statuses.clear()
    await page.get_by_role("button", name="Try again").click()
    await expect(page.get_by_text("usage is gone.")).to_have_count(0)


async def test_it_lives(open_page: Open) -> None:
    """The live state is shown as it comes, and a request makes the numbers be asked for again."""
    made = MadeUp()
    page = await open_page(made)
    health = page.get_by_role("region", name="Healthy: the engine serves")
    await expect(health.locator("dd")).to_have_text(["ready", "2", "1", "0", "ok"])
    made.answers["usage"] = usage([GOOD] * 20)
    made.tell("request", {"id": "r"})
    await expect(page.locator("h1")).to_have_text("Read ratio holds at 82.0\u202f%")
    made.tell("state", state(ready=False, detail="starting", restarts=1))
    health = page.get_by_role("region", name="The engine does not serve")
    await expect(health.locator("dd")).to_have_text(["starting", "2", "1", "1", "ok"])


async def test_live_data_moves_nothing(open_page: Open) -> None:
    """Where each panel stands is the same before and after an update with other numbers."""
    made = busy()
    page = await open_page(made, viewport={"width": 1440, "height": 900})
    await expect(page.locator("h1")).to_contain_text("fell")
    await expect(page.get_by_role("region", name="Healthy")).to_have_attribute("data-state", "ready")
    places = "[...document.querySelectorAll('.panel, .number, .stage')].map((e) => e.getBoundingClientRect().top)"
    before = await page.evaluate(places)
    made.answers["usage"] = usage([GOOD] * 20)
    made.tell("request", {"id": "r"})
    await expect(page.locator("h1")).to_contain_text("holds")
    assert await page.evaluate(places) == before


async def test_a_hidden_tab_asks_for_nothing(open_page: Open) -> None:
    """The live stream is closed while the tab cannot be seen and opened when it can."""
    made = busy()
    page = await open_page(made)
    await expect(page.locator(".link")).to_have_text("live")
    assert len(made.streams) == 1
    hide = "(hidden) => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true }); "
    hide += "document.dispatchEvent(new Event('visibilitychange')); }"
    async with page.expect_event("requestfailed", lambda asked: asked.url.endswith("/live")):
        await page.evaluate(hide, True)
    async with page.expect_request("**/live"):
        await page.evaluate(hide, False)


async def test_the_key_is_asked_for_and_kept_for_the_tab(open_page: Open) -> None:
    """A gateway with an admin key is asked once; a wrong one is asked for again; no address has it."""
    made = MadeUp({"usage": usage([GOOD] * 20)}, key="the-key")
    page = await open_page(made)
    asked = page.get_by_role("dialog", name="This gateway asks for its admin key")
    await asked.get_by_label("Admin key").fill("the-key")
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text("Read ratio holds at 82.0\u202f%")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.reload()
    await expect(page.locator("h1")).to_have_text("Read ratio holds at 82.0\u202f%")
    assert "the-key" not in page.url
    assert await page.evaluate("Object.values(localStorage).includes('the-key')") is False
