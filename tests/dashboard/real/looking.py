"""How the tests read the page."""

from __future__ import annotations

import re

from playwright.async_api import Page, expect

VIEWS = ("overview", "tokens", "misses", "retention", "requests", "tree")
NOT_SAID = re.compile(r"\bNaN\b|\bundefined\b|\bnull\b|\[object|Infinity")
NUMBERS = """Object.fromEntries([...document.querySelectorAll('.number')].map((one) => [
    [...one.querySelector('.label').childNodes].filter((node) => node.nodeType === 3).map((node) => node.data).join(''),
    one.querySelector('.value').title]))"""


async def settled(page: Page) -> None:
    """Wait until the page is live and every panel has its answer."""
    await expect(page.locator("#bar .link")).to_have_text("live")
    await expect(page.locator("main .view .panel").first).to_be_attached()
    await expect(page.locator("main .panel[aria-busy=true]")).to_have_count(0)


async def titles(page: Page) -> dict[str, str]:
    """Return the exact title of each number of the view, by its label."""
    told: dict[str, str] = await page.evaluate(NUMBERS)
    return told


def first_number(text: str) -> int:
    """Return the first whole number in a text."""
    found = re.search(r"\d[\d,]*", text)
    assert found is not None, text
    return int(found[0].replace(",", ""))
