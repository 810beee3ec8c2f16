"""The fleet in a real Chromium: empty, alive, broken, by keyboard, on a phone; and what its numbers say."""

from __future__ import annotations

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import expect

from tests.dashboard.conftest import Lay, Open
from tests.dashboard.made_up_fleet import alone, busy, fleet, replica, told, upstream

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_no_upstreams_say_how_to_have_some(open_page: Open) -> None:
    """Without upstreams the view shows what to write and what to run, and no NaN."""
    page = await open_page(alone(), "#/fleet")
    await expect(page.get_by_text("[[upstreams]]")).to_be_visible()
    await expect(page.get_by_text("keepwarm reload")).to_be_visible()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Fleet: no upstreams")
    shown = await page.locator("main").inner_text()
    assert [word for word in ("NaN", "undefined", "Infinity", "null") if word in shown] == []


async def test_each_upstream_is_told_as_it_is_now(open_page: Open) -> None:
    """State with its sign, load, what it holds, and the ratio, unknown where no answer said it."""
    page = await open_page(busy(), "#/fleet")
    rows = page.locator(".table tbody tr")
    await expect(rows).to_have_count(3)
    first, second, third = [
        [text.replace("\u202f", " ") for text in await row.locator("td").all_inner_texts()] for row in await rows.all()
    ]
    assert first[:8] == ["a", "✓ well", "vllm", "large", "3", "4,200", "830 k", "1,200"]
    assert (second[1], second[8]) == ("! unwell", "12")
    assert (third[0], third[-1]) == ("c", "–")
    await expect(page.get_by_role("heading", level=1)).to_have_text("b is unwell; 2 of 3 upstreams can be asked")
    await expect(page.locator(".todo")).to_contain_text("connection refused")


async def test_what_was_lost_where_is_one_picture(open_page: Open) -> None:
    """Each bar is what was available, cut into delivered, lost at the replica and lost in routing."""
    page = await open_page(busy(), "#/fleet")
    picture = page.locator(".panel", has=page.get_by_role("heading", name="25.0\u202f% of the available tokens"))
    bars = picture.locator(".bars li")
    await expect(bars).to_have_count(4)
    titles = [
        [await part.get_attribute("title") for part in await bar.locator(".part").all()] for bar in await bars.all()
    ]
    plain = [[str(one).replace("\u202f", " ") for one in bar] for bar in titles]
    assert plain == [
        ["delivered: 1.1 M tokens", "lost at the replica: 50 k tokens", "lost in routing: 400 k tokens"],
        ["delivered: 800 k tokens", "lost at the replica: 100 k tokens", "lost in routing: 100 k tokens"],
        ["delivered: 350 k tokens", "lost in routing: 250 k tokens"],
        [],
    ]
    await expect(picture).to_contain_text("c: no answer said what was read")


async def test_decisions_and_events_are_listed(open_page: Open) -> None:
    """Why requests went where they went, and what happened to upstreams; policies are told elsewhere."""
    page = await open_page(busy(), "#/fleet")
    why = page.locator(".panel", has=page.get_by_role("heading", name="Requests by what decided"))
    await expect(why.locator(".bar-label")).to_have_text(["prefix", "load", "chance"])
    happened = page.locator(".panel", has=page.get_by_role("heading", name="What changed in the fleet"))
    await expect(happened.locator("li")).to_have_count(1)
    await expect(happened).to_contain_text("Upstream b restarted")


async def test_an_upstream_is_picked_by_keyboard(open_page: Open) -> None:
    """Enter on a row narrows the page to that upstream, and what is asked as well."""
    made = busy()
    page = await open_page(made, "#/fleet")
    await page.locator(".table tbody tr").nth(1).press("Enter")
    await expect(page.locator(".table tbody tr")).to_have_count(1)
    assert "upstream=b" in page.url
    assert made.questions("fleet")[-1]["upstream"] == "b"


async def test_it_lives(open_page: Open) -> None:
    """When something happens the view asks again, and shows what is so now."""
    made = busy()
    page = await open_page(made, "#/fleet")
    await expect(page.locator(".table tbody tr")).to_have_count(3)
    made.answers["upstreams"] = {"upstreams": [upstream("a")], "routing": {}}
    made.tell("change", {"at": 0, "kind": "restart", "title": "Upstream b removed", "subject": "b"})
    await expect(page.get_by_role("heading", level=1)).to_have_text("The upstream a is well")


async def test_broken_is_said_and_the_rest_stays(open_page: Open) -> None:
    """Where the ledger does not answer, upstreams are shown all the same; trying again heals it."""
    made = busy()
    made.statuses["fleet"] = 503
    page = await open_page(made, "#/fleet")
    await expect(page.locator(".broken").first).to_contain_text("Nothing to show yet: fleet is gone.")
    await expect(page.locator(".table tbody tr")).to_have_count(3)
    made.statuses.clear()
    await page.get_by_role("button", name="Try again").click()
    await expect(page.locator(".broken")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("made", [busy, alone])
async def test_axe_finds_nothing(open_page: Open, scheme: str, made: object) -> None:
    """The checker finds no violation, in light and dark, with upstreams and without."""
    page = await open_page(busy() if made is busy else alone(), "#/fleet", color_scheme=scheme)
    await expect(page.locator('.panel[data-state="loading"]')).to_have_count(0)
    found = (await Axe().run(page)).response["violations"]
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []


async def test_it_fits_a_phone(open_page: Open) -> None:
    """Nothing is wider than 390 pixels."""
    page = await open_page(busy(), "#/fleet", viewport={"width": 390, "height": 844})
    await expect(page.locator('.panel[data-state="loading"]')).to_have_count(0)
    assert await page.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize(
    ("tokens", "parts"),
    [
        ((100, 80, 50), {"delivered": 50, "replica": 30, "routing": 20}),
        ((100, 50, 80), {"delivered": 80, "replica": 0, "routing": 20}),
        ((0, 0, 40), {"delivered": 40, "replica": 0, "routing": 0}),
        ((None, None, None), None),
    ],
)
async def test_parts_add_up_to_what_was_available(
    lay: Lay, tokens: tuple[int | None, ...], parts: dict[str, int] | None
) -> None:
    """Delivered and both losses are what was available; more than was believed is no loss, unsaid is nothing."""
    assert await lay("fleet_words.parts(given)", replica("a", 30, *tokens)) == parts


@pytest.mark.parametrize(
    ("total", "title"),
    [
        (told(100, 1000, 900, 400), "50.0\u202f% of the available tokens were lost at the replicas"),
        (told(100, 1000, 500, 500), "50.0\u202f% of the available tokens were lost in routing"),
        (told(5, 1000, 500, 500), "500 of 1,000 available tokens were lost in routing"),
        (told(100, 1000, 1000, 1000), "All that was available was delivered"),
        (told(100, None, None, None, 100), "What was available, captured and delivered, tokens"),
        (told(100, 0, 0, 0), "Nothing was available yet: no upstream was believed to hold any prompt"),
    ],
)
async def test_the_picture_is_titled_by_its_finding(lay: Lay, total: object, title: str) -> None:
    """The title says where most was lost; of few requests in counts, of none nothing."""
    assert await lay("fleet_words.lost(given)", total) == title


async def test_the_headline_counts_who_can_be_asked(lay: Lay) -> None:
    """The bundled engine is no upstream; a state that the page does not know is told by its name."""
    states = [["well", "bundled"], ["well", "well"], ["well", "open"], ["open", "aside", "well"], ["resting"], []]
    given = [[upstream(f"u{at}", state) for at, state in enumerate(row)] for row in states]
    assert await lay("given.map(fleet_words.finding)", given) == [
        "The upstream u0 is well",
        "All 2 upstreams can be asked",
        "u1 is circuit open; 1 of 2 upstreams can be asked",
        "2 of 3 upstreams cannot be asked as usual",
        "The upstream u0 is resting",
        "Fleet: no upstreams",
    ]


async def test_sums_of_the_fixture_are_those_of_its_replicas() -> None:
    """The made-up fleet adds up, so that what the page shows of it can be right."""
    made = fleet(replica("a", 10, 5, 4, 3), replica("b", 20, None, None, None, silent=20))
    assert made["total"] == {**told(30, 5, 4, 3, 20), "prompt_tokens": 10}
