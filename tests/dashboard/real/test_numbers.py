"""Numbers on the page are the sums of what the answers said."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.dashboard.real.conftest import Seeded, Visit
from tests.dashboard.real.looking import first_number, settled, titles
from tests.dashboard.real.traffic import TENANTS, admin

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("tenant", ["", *TENANTS])
async def test_the_overviews_tokens_are_the_answers(visit: Visit, seeded: Seeded, tenant: str) -> None:
    """Read and prompt tokens of the overview are the sums of the usage of all answers, or of one tenant's."""
    page = await visit(seeded.server, f"#/overview?tenant={tenant}" if tenant else "#/overview")
    await settled(page)
    told, shown = seeded.sums.of(*((tenant,) if tenant else ())), await titles(page)

    assert shown["Read ratio by tokens"] == f"{told['read']:,} of {told['prompt']:,} tokens"
    assert shown["Tokens saved"] == f"{told['read']:,} tokens"


@pytest.mark.parametrize("tenant", ["", *TENANTS])
async def test_the_tokens_of_each_kind_are_the_answers(visit: Visit, seeded: Seeded, tenant: str) -> None:
    """Read, written and uncached tokens of the tokens view sum to the prompts, and are what the answers said."""
    page = await visit(seeded.server, f"#/tokens?tenant={tenant}" if tenant else "#/tokens")
    await settled(page)
    told = seeded.sums.of(*((tenant,) if tenant else ()))
    shown = {label: first_number(title) for label, title in (await titles(page)).items()}
    written = sum(count for label, count in shown.items() if label.startswith("Tokens write"))

    assert shown["Tokens read"] == told["read"]
    assert written == told["write"]
    assert shown["Tokens uncached"] == told["prompt"] - told["read"] - told["write"]
    assert shown["Tokens unknown"] == 0


async def test_each_tenants_row_is_its_answers(visit: Visit, seeded: Seeded) -> None:
    """The table of the tokens view has for each tenant the requests, prompt, read and output tokens of its answers."""
    page = await visit(seeded.server, "#/tokens")
    await settled(page)
    table = page.get_by_role("region", name="Tokens of each group")
    heads = await table.locator("thead th").all_inner_texts()

    for tenant in TENANTS:
        row = table.locator("tbody tr").filter(has=page.get_by_text(tenant, exact=True))
        cells = dict(zip(heads, await row.locator("td").all_inner_texts(), strict=True))
        told = seeded.sums.of(tenant)
        assert [cells[head] for head in ("requests", "prompt", "read", "output")] == [
            f"{told[name]:,}" for name in ("requests", "prompt", "read", "output")
        ]


async def test_the_csv_is_the_answers(visit: Visit, seeded: Seeded, tmp_path: Path) -> None:
    """The downloaded CSV has a line for each bucket and tenant, and its columns sum to the usage of the answers."""
    page = await visit(seeded.server, "#/tokens?group=tenant", accept_downloads=True)
    await settled(page)
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Download CSV", exact=True).click()
    kept = tmp_path / "usage.csv"
    await (await download.value).save_as(kept)
    rows = list(csv.DictReader(io.StringIO(kept.read_text())))

    assert (await download.value).suggested_filename == "keepwarm-usage.csv"
    for tenant in TENANTS:
        told = seeded.sums.of(tenant)
        own = [row for row in rows if row["tenant"] == tenant]
        for column in ("requests", "prompt_tokens", "read_tokens", "output_tokens"):
            assert sum(int(row[column] or 0) for row in own) == told[column.removesuffix("_tokens")]


async def test_the_missed_tokens_are_the_answers(visit: Visit, seeded: Seeded) -> None:
    """The misses view gives each reason the tokens that the answers gave it."""
    page = await visit(seeded.server, "#/misses")
    await settled(page)
    told = seeded.sums.of()
    reasons = {name.removeprefix("missed "): tokens for name, tokens in told.items() if name.startswith("missed ")}
    said = await page.locator("main").inner_text()

    assert reasons["system"] > 400
    for tokens in reasons.values():
        assert f"{tokens:,}" in said


async def test_one_requests_strip_adds_up(visit: Visit, seeded: Seeded) -> None:
    """A request of the list shows its prompt as parts that sum to the tokens of its prompt."""
    page = await visit(seeded.server, "#/requests?tenant=red&outcome=finished")
    await settled(page)
    row = page.locator(".requests tbody tr").first
    await expect(row).to_be_visible()
    parts = await row.locator(".mini").get_attribute("aria-label") or ""
    prompt = first_number(await row.locator("td[data-key=tokens]").get_attribute("title") or "")

    assert sum(first_number(part) for part in parts.split(", ")) == prompt


async def test_the_pools_shares_are_the_classes(visit: Visit, seeded: Seeded) -> None:
    """The retention view's heading has the promised and held tokens of all classes as shares of the whole pool."""
    page = await visit(seeded.server, "#/retention")
    await settled(page)
    answer = await admin(seeded.server, "retention")
    pool = answer["capacity"]["blocks"] * answer["capacity"]["block_tokens"]
    promised, held = (sum(one[part]["tokens"] for one in answer["classes"]) for part in ("promised", "held"))

    assert promised > 0 < held
    words = f"{promised / pool:.1%} of the pool is promised, {held / pool:.1%} held".replace("%", "\u202f%")
    await expect(page.locator("h1")).to_contain_text(words)
