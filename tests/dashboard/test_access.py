"""The page for everybody: by keyboard, on a phone, through a screen reader, in any light."""

from __future__ import annotations

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, expect

from tests.dashboard.conftest import Open
from tests.dashboard.made_up import NOW, MadeUp, counts, usage

pytestmark = pytest.mark.asyncio(loop_scope="session")

VIEWS = ["overview", "tokens"]
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
GOOD = counts(20, read=8200, rest=1800, hits=15)


def seeded() -> MadeUp:
    """Twenty good minutes."""
    return MadeUp({"usage": usage([GOOD] * 20, group="tenant")})


async def ready(page: Page) -> None:
    """Wait until nothing is being loaded."""
    await expect(page.locator(".panel").first).to_be_visible()
    await expect(page.locator('.panel[data-state="loading"]')).to_have_count(0)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("data", ["seeded", "empty"])
async def test_axe_finds_nothing(open_page: Open, view: str, scheme: str, data: str) -> None:
    """The checker finds no violation in any view, in light and dark, with data and without."""
    page = await open_page(seeded() if data == "seeded" else MadeUp(), f"#/{view}", color_scheme=scheme)
    await ready(page)
    found = (await Axe().run(page)).response["violations"]
    assert [(one["id"], [node["target"] for node in one["nodes"]]) for one in found] == []


@pytest.mark.parametrize("view", VIEWS)
async def test_a_phone_is_wide_enough(open_page: Open, view: str) -> None:
    """At 390 pixels nothing runs over the side, and the views are at the bottom, each large enough for a thumb."""
    page = await open_page(seeded(), f"#/{view}", **PHONE)
    await ready(page)
    assert await page.evaluate("document.documentElement.scrollWidth") == 390
    boxes = await page.locator("#nav a").evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().toJSON())")
    assert [box["bottom"] for box in boxes] == [844] * 7
    assert all(box["width"] >= 44 and box["height"] >= 44 for box in boxes)


async def test_views_open_by_their_keys(open_page: Open) -> None:
    """A number, or g and a letter, opens a view; the address says which."""
    page = await open_page(seeded())
    await ready(page)
    await page.keyboard.press("2")
    await expect(page.get_by_role("link", name="Tokens")).to_have_attribute("aria-current", "page")
    await page.keyboard.press("g")
    await page.keyboard.press("o")
    await expect(page.get_by_role("link", name="Overview")).to_have_attribute("aria-current", "page")
    assert page.url.endswith("#/overview")


async def test_the_keys_are_listed(open_page: Open) -> None:
    """The key ? lists all keys, Escape closes the list, and the keys work again."""
    page = await open_page(seeded())
    await ready(page)
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keys")).to_contain_text("On a chart: the same data as a table")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.keyboard.press("/")
    await expect(page.get_by_label("Which tenants")).to_be_focused()


async def test_definitions_are_one_key_away(open_page: Open) -> None:
    """The key d shows every definition of the view with formula and metric; focus on its ? shows one."""
    page = await open_page(seeded())
    await ready(page)
    told = page.locator(".numbers .definition").first
    await expect(told).to_be_hidden()
    await page.keyboard.press("d")
    await expect(told).to_contain_text("read tokens ÷ prompt tokens")
    await expect(told.locator("code")).to_have_text("keepwarm_input_tokens_total")
    await page.keyboard.press("d")
    await page.locator(".numbers .what-button").first.focus()
    await expect(told).to_be_visible()


async def test_the_whole_page_is_reached_with_tab(open_page: Open) -> None:
    """Tab goes from the skip link over views, bar and panels, and each stop can be seen."""
    page = await open_page(seeded())
    await ready(page)
    await page.evaluate("document.body.focus()")
    reached = []
    for _ in range(60):
        await page.keyboard.press("Tab")
        reached.append(
            await page.evaluate(
                "(() => { const e = document.activeElement; "
                "return [e.getAttribute('aria-label') || e.textContent, getComputedStyle(e).outlineStyle]; })()"
            )
        )
    names = [name for name, _ in reached]
    assert names[:2] == ["Skip to the view", "Overview"]
    assert {"Range", "Which tenants", "Chart: Read ratio", "Read ratio as a table"} <= set(names)
    assert {outline for name, outline in reached if name.startswith(("Chart", "Range", "Overview"))} == {"solid"}


async def test_arrows_walk_along_a_chart(open_page: Open) -> None:
    """On a chart → shows all series at the first time, and again at the next."""
    page = await open_page(seeded())
    await ready(page)
    chart = page.get_by_role("img", name="Chart: Read ratio")
    await chart.focus()
    await page.keyboard.press("ArrowRight")
    await expect(chart.locator(".tip")).to_contain_text("15 Jan 07:40 to 07:41")
    await page.keyboard.press("ArrowRight")
    await expect(chart.locator(".tip")).to_contain_text("15 Jan 07:41 to 07:42")
    await expect(chart.locator(".tip")).to_contain_text("by requests75.0\u202f%")


async def test_dragging_zooms_and_a_double_click_returns(open_page: Open) -> None:
    """Dragging over a chart shows that range everywhere; a double click shows what was shown before."""
    made = seeded()
    page = await open_page(made, viewport={"width": 1440, "height": 900})
    await ready(page)
    box = await page.get_by_role("img", name="Chart: Read ratio").locator(".u-over").bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 40)
    await page.mouse.down()
    await page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 40, steps=4)
    await page.mouse.up()
    await expect(page.get_by_role("button", name="Back")).to_be_visible()
    asked = made.questions("usage")[-1]
    assert abs(int(asked["from"]) - (NOW - 900)) < 10
    assert abs(int(asked["to"]) - (NOW - 600)) < 10
    await page.mouse.dblclick(box["x"] + box["width"] * 0.25, box["y"] + 40)
    await expect(page.get_by_role("button", name="Back")).to_be_hidden()
    assert page.url.endswith("#/overview")


async def test_a_chart_tells_its_data_in_words(open_page: Open) -> None:
    """A screen reader hears what a chart shows."""
    page = await open_page(seeded())
    await ready(page)
    words = page.locator("figure", has=page.get_by_role("img", name="Chart: Read ratio")).locator("figcaption")
    await expect(words).to_contain_text("20 points from 07:40 to 07:59. by tokens: last 82.0\u202f%")


async def test_the_theme_is_chosen_and_kept(open_page: Open) -> None:
    """The switch goes from the system's theme over light to dark; it is kept, and in the address."""
    page = await open_page(seeded(), color_scheme="light")
    await ready(page)
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    assert await page.evaluate(ground) == "rgb(255, 255, 255)"
    await page.keyboard.press("l")
    await page.keyboard.press("l")
    await expect(page.get_by_role("button", name="Dark")).to_be_visible()
    assert await page.evaluate(ground) == "rgb(17, 21, 26)"
    assert "theme=dark" in page.url
    await page.goto(page.url.partition("#")[0])
    await expect(page.get_by_role("button", name="Dark")).to_be_visible()


async def test_times_are_in_the_zone_that_is_chosen(open_page: Open) -> None:
    """The key u goes from local times to UTC."""
    page = await open_page(MadeUp({"usage": usage([GOOD] * 10 + [counts(20, read=100, rest=9900)] * 10)}))
    await ready(page)
    await page.keyboard.press("u")
    await expect(page.get_by_role("button", name="UTC")).to_be_visible()
    assert "zone=utc" in page.url


async def test_reduced_motion_is_obeyed(open_page: Open) -> None:
    """Who asked for less motion gets no animation."""
    page = await open_page(seeded(), reduced_motion="reduce")
    await ready(page)
    assert await page.evaluate("document.getAnimations().length") == 0
