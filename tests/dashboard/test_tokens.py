"""Where tokens went, in a real browser."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.dashboard.conftest import Open
from tests.dashboard.made_up import MadeUp, counts, usage

pytestmark = pytest.mark.asyncio(loop_scope="session")

MINUTE = counts(20, read=8000, rest=2000, money=True)
PLAIN = counts(20, read=8000, rest=2000)


async def test_the_kinds_add_up_to_the_prompts(open_page: Open) -> None:
    """Each kind of token has its number, writes one for each class, and together they are all prompt tokens."""
    page = await open_page(MadeUp({"usage": usage([MINUTE] * 10, group="tenant")}), "#/tokens")
    labels = page.locator(".numbers .label")
    await expect(labels).to_contain_text(["read", "write 5m", "write 1h", "uncached", "unknown"])
    titles = await page.locator(".numbers .value").evaluate_all("(all) => all.map((one) => one.title)")
    told = [int(title.split()[0].replace(",", "")) for title in titles]
    assert told == [80_000, 5_000, 5_000, 5_000, 5_000]
    assert sum(told) == usage([MINUTE] * 10)["total"]["prompt_tokens"]


async def test_the_table_has_what_the_chart_shows(open_page: Open) -> None:
    """The key t turns the chart into a table of the same numbers, and back."""
    page = await open_page(MadeUp({"usage": usage([PLAIN] * 3, group="tenant")}), "#/tokens")
    chart = page.get_by_role("img", name="Chart: Prompt tokens", exact=True)
    await chart.focus()
    await page.keyboard.press("t")
    rows = page.get_by_role("region", name="Prompt tokens, as a table").locator("tbody tr")
    await expect(rows).to_have_count(3)
    assert await rows.first.locator("td").all_inner_texts() == ["8,000", "500", "500", "500", "500"]
    await page.keyboard.press("t")
    await expect(chart).to_be_visible()


async def test_a_chart_is_kept_as_csv(open_page: Open) -> None:
    """The key c keeps a chart's data as CSV, in UTC and with every digit."""
    page = await open_page(MadeUp({"usage": usage([PLAIN] * 2, group="tenant")}), "#/tokens")
    await page.get_by_role("img", name="Chart: Prompt tokens", exact=True).focus()
    async with page.expect_download() as kept:
        await page.keyboard.press("c")
    download = await kept.value
    assert download.suggested_filename == "keepwarm-prompt-tokens.csv"
    text = await asyncio.to_thread(Path(await download.path()).read_text)
    assert text.splitlines() == [
        "time,read,write 5m,write 1h,uncached,unknown",
        "2027-01-15T07:58:00.000Z,8000,500,500,500,500",
        "2027-01-15T07:59:00.000Z,8000,500,500,500,500",
    ]


async def test_the_ledger_is_downloaded_as_csv(open_page: Open) -> None:
    """The button asks for the range, filters and group that are shown, as CSV."""
    made = MadeUp({"usage": usage([PLAIN] * 2, group="model")})
    page = await open_page(made, "#/tokens?from=-6h&tenant=acme&group=model")
    async with page.expect_download() as kept:
        await page.get_by_role("button", name="Download CSV").click()
    assert (await kept.value).suggested_filename == "keepwarm-usage.csv"
    asked = {"from": "-6h", "to": "now", "tenant": "acme", "bucket": "auto", "group_by": "model", "format": "csv"}
    assert asked in made.questions("usage")


async def test_groups_stand_side_by_side(open_page: Open) -> None:
    """Choosing a group puts it into the address, asks for it, and gives each its own chart and bar."""
    made = MadeUp({"usage": usage([PLAIN] * 2, group="tenant")})
    page = await open_page(made, "#/tokens")
    await page.get_by_label("Side by side").select_option("tenant")
    await expect(page.get_by_role("img", name="Chart: Prompt tokens of acme")).to_be_visible()
    assert "group=tenant" in page.url
    await page.get_by_role("button", name="acme", exact=True).click()
    await expect(page.get_by_label("Which tenants")).to_have_value("acme")
    assert "tenant=acme" in page.url


async def test_money_is_told_when_rates_are_set(open_page: Open) -> None:
    """With rates the net saving and the break-even are told."""
    page = await open_page(MadeUp({"usage": usage([MINUTE] * 10, group="tenant")}), "#/tokens")
    await expect(page.get_by_role("heading", name="The cache saved 77.50\u202fUSD net")).to_be_visible()
    await expect(
        page.get_by_role("heading", name="Each token written was read 8.0 times: writing pays")
    ).to_be_visible()


async def test_without_rates_it_says_how_to_set_them(open_page: Open) -> None:
    """Without rates no sum of money is shown, but what to write into keepwarm.toml."""
    page = await open_page(MadeUp({"usage": usage([PLAIN] * 10, group="tenant")}), "#/tokens")
    await expect(page.get_by_text("[[rates]]")).to_be_visible()
    await expect(page.get_by_role("heading", name="Each token written was read 8.0 times")).to_be_visible()


async def test_a_range_without_requests_says_what_to_run(open_page: Open) -> None:
    """An empty range is told once, with the command."""
    page = await open_page(MadeUp(), "#/tokens")
    await expect(page.locator("h1")).to_have_text("Tokens: no prompts in this range")
    await expect(page.get_by_text(".venv/bin/keepwarm demo --traffic")).to_have_count(1)
    assert "NaN" not in await page.inner_text("body")
