"""How the tests read the page."""

from __future__ import annotations

import re

from playwright.async_api import Page, expect

VIEWS = ("overview", "tokens", "misses", "retention", "requests", "tree")
NOT_SAID = re.compile(r"\bNaN\b|\bundefined\b|\bnull\b|\[object|Infinity")
SETTLED = "[...document.querySelectorAll('.panel')].every((one) => one.getAttribute('aria-busy') !== 'true')"


async def settled(page: Page) -> None:
    """Wait until the page is live and every panel has its answer."""
    await expect(page.locator("#bar .link")).to_have_text("live")
    await page.wait_for_selector("main .view .panel")
    await page.wait_for_function(f"document.querySelectorAll('.panel').length > 0 && {SETTLED}")


async def title_of(page: Page, label: str) -> str:
    """Return the exact title of the number with this label."""
    number = page.locator(".number").filter(has=page.get_by_text(label, exact=True))
    return await number.locator(".value").get_attribute("title") or ""


def first_number(text: str) -> int:
    """Return the first whole number in a text."""
    found = re.search(r"\d[\d,]*", text)
    assert found is not None, text
    return int(found[0].replace(",", ""))
