"""Misses, retention, requests and the tree in a real Chromium: empty, alive, acting, by keyboard, on a phone."""

from __future__ import annotations

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, expect

from tests.dashboard.conftest import Open
from tests.dashboard.made_up import NOW, REQUEST, Json, MadeUp, counts, retention, usage
from tests.dashboard.test_layouts import TREE
from tests.dashboard.test_view_words import POLICY

pytestmark = pytest.mark.asyncio(loop_scope="session")

VIEWS = ("misses", "retention", "requests", "tree")
SPANS: Json = {"edges_s": [60, 300, 3600], "blocks": [1, 2, 0, 1]}
EFFECT: Json = {
    "tenants": {
        "acme": {
            "expire": {"entries": 1, "tokens": 4310, "bytes": 1},
            "keep": {"entries": 2, "tokens": 9890, "bytes": 2},
        }
    },
    "leased_tokens": 0,
}
DEFAULT: Json = POLICY | {"name": "default", "tenant": None}


def kept(tokens: int) -> Json:
    """Shape the whole of what retention answers."""
    classes = {"5m": [tokens, 0, 0, 0]}
    spans = SPANS if tokens else SPANS | {"blocks": [0, 0, 0, 0]}
    tokens_by = {"edges_s": SPANS["edges_s"], "tokens": classes}
    answer = retention(tokens) | {"ages": tokens_by, "deadlines": tokens_by, "reuse_gap": spans, "lifetime": spans}
    answer["capacity"] |= {"promised": tokens // 16, "held": 0, "cached": tokens // 16, "kv_bytes": 1024}
    evictions = {"expired": 4, "evicted": 2, "purged": 1}
    return answer | {"idle_before_evict": spans, "evictions": evictions, "broken": []}


def request(name: str, at: int, **more: object) -> Json:
    """Shape one request of the operators' API."""
    rest = {"streamed": True, "prewarm": False, "status": 200, "write": {"5m": 30}, "uncached": 10, "output": 9}
    misses = [miss | {"fate": "never_written", "at": None} for miss in REQUEST["misses"]]
    projections = {"done": 48, "without_prefix_cache": 108, "without_kv_cache": 936}
    return REQUEST | rest | {"id": name, "at": at, "misses": misses, "projections": projections} | more


def alive(**answers: Json) -> MadeUp:
    """Make up a gateway that has seen traffic."""
    entry = {"by": "admin", "at": NOW, "what": "policy.put", "subject": "default", "after": DEFAULT}
    told = usage([counts(20, read=900, rest=100)] * 5)
    told["total"]["missed_tokens"] = {"new": 500}
    return MadeUp(
        answers={
            "usage": told,
            "retention": kept(8000),
            "requests": {"requests": [request("r2", NOW - 5), request("r1", NOW - 9)], "next": None, "kept": 2},
            "tree": {"total": len(TREE), "nodes": TREE},
            "policies": {"policies": [DEFAULT]},
            "audit": {"lines": [entry | {"before": DEFAULT | {"max_ttl": "2h", "version": 2}}]},
            "POST policies/preview": EFFECT,
            **answers,
        }
    )


def silent() -> MadeUp:
    """Make up a gateway that has seen nothing."""
    nothing: Json = {"requests": [], "next": None, "kept": 0}
    lists: Json = {"tree": {"total": 0, "nodes": []}, "policies": {"policies": [DEFAULT]}, "audit": {"lines": []}}
    return MadeUp(answers={"retention": kept(0), "requests": nothing, **lists})


@pytest.mark.parametrize("view", VIEWS)
async def test_nothing_is_said_in_words_with_the_command(open_page: Open, view: str) -> None:
    """A view without data says what to do to see something, and shows neither NaN nor undefined."""
    page = await open_page(silent(), f"#/{view}")
    await expect(page.get_by_text("keepwarm demo --traffic").first).to_be_visible()
    shown = await page.locator("main").inner_text()
    assert [word for word in ("NaN", "undefined", "Infinity", "null") if word in shown] == []


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_view_is_accessible(open_page: Open, view: str, scheme: str) -> None:
    """Axe finds nothing to complain of, in light and dark."""
    page = await open_page(alive(), f"#/{view}", color_scheme=scheme)
    await expect(page.locator('.panel[data-state="ready"]').first).to_be_visible()
    found = await Axe().run(page)
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found.response["violations"]] == []


@pytest.mark.parametrize("view", VIEWS)
async def test_a_view_fits_a_phone(open_page: Open, view: str) -> None:
    """Nothing is wider than 390 pixels."""
    page = await open_page(alive(), f"#/{view}", viewport={"width": 390, "height": 844})
    await expect(page.locator('.panel[data-state="ready"]').first).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize(
    ("view", "name"), [("misses", "usage"), ("retention", "retention"), ("requests", "requests"), ("tree", "tree")]
)
async def test_a_broken_view_says_so(open_page: Open, view: str, name: str) -> None:
    """What cannot be had is said with its reason and a way to try again."""
    made = alive()
    made.statuses[name] = 503
    page = await open_page(made, f"#/{view}")
    await expect(page.locator(".broken").first).to_contain_text(f"Nothing to show yet: {name} is gone.")
    made.statuses.clear()
    await page.get_by_role("button", name="Try again").first.click()
    await expect(page.locator(".broken")).to_have_count(0)


async def test_misses_name_the_place_and_what_helps(open_page: Open) -> None:
    """The place at which prompts break is listed with its tokens over all requests, and leads to one of them."""
    page = await open_page(alive(), "#/misses")
    row = page.locator(".table tbody tr")
    await expect(row).to_contain_text("Move the time behind what stays the same")
    assert (await row.locator("td").all_inner_texts())[:6] == ["system", "time", "system", "60", "2", "60"]
    await row.press("Enter")
    await expect(page.locator(".one-request")).to_contain_text("r2")


async def change_ttl(page: Page, ttl: str) -> None:
    """Ask for a preview of another ceiling."""
    await page.get_by_role("button", name="Edit policy default").click()
    await page.get_by_label("Max TTL").fill(ttl)
    await page.get_by_role("button", name="Preview").click()


async def test_a_policy_is_previewed_then_changed_then_undone(open_page: Open) -> None:
    """The preview tells what expires and what stays; nothing is sent before yes; undoing puts the old fields back."""
    made = alive(**{"PUT policies/default": DEFAULT | {"max_ttl": "30m", "version": 4}})
    page = await open_page(made, "#/retention")
    await change_ttl(page, "30m")
    dialog = page.locator("dialog").last
    await expect(dialog).to_contain_text("1h → 30m")
    assert await dialog.locator("tbody td").all_inner_texts() == ["acme", "4,310", "9,890"]
    assert [call for call, _ in made.sent] == ["POST policies/preview"]
    await dialog.get_by_role("button", name="Change it").click()
    await expect(dialog).to_contain_text("Policy default is version 4 now. 4,310 tokens expired.")
    assert made.sent[-1] == ("PUT policies/default", DEFAULT | {"max_ttl": "30m"})
    await dialog.get_by_role("button", name="Put back the old version").click()
    await page.locator("dialog").last.get_by_role("button", name="Put back").click()
    await expect(page.locator("dialog").last).to_contain_text("Policy default is version")
    assert made.sent[-1] == ("PUT policies/default", DEFAULT | {"version": 4})


async def test_a_wrong_field_is_told_at_the_field(open_page: Open) -> None:
    """What the server refuses is said at the field that it names, and the form stays."""
    wrong = {"error": {"message": "max_ttl: '1 hour' is no duration", "field": "max_ttl", "allowed": "24h"}}
    page = await open_page(alive(**{"POST policies/preview": wrong}), "#/retention")
    await change_ttl(page, "1 hour")
    await expect(page.get_by_label("Max TTL")).to_have_attribute("aria-invalid", "true")
    await expect(page.get_by_text("max_ttl: '1 hour' is no duration")).to_be_visible()


async def test_a_purge_needs_a_dry_run_and_the_name(open_page: Open) -> None:
    """Nothing is purged before the dry run was seen and the tenant's name typed."""
    tally = {
        "acme": {"purged": {"entries": 1, "tokens": 700, "bytes": 1}, "kept": {"entries": 0, "tokens": 0, "bytes": 0}}
    }
    made = alive(**{"POST purge": {"tenants": tally, "leased_tokens": 0, "dry_run": True, "audited": True}})
    page = await open_page(made, "#/retention")
    await page.get_by_role("button", name="Purge …").click()
    await page.get_by_label("Tenant").last.select_option("acme")
    await page.get_by_role("button", name="Dry run").click()
    dialog = page.locator("dialog").last
    await expect(dialog).to_contain_text("This was a dry run: 700 tokens would go.")
    go = dialog.get_by_role("button", name="Purge", exact=True)
    await expect(go).to_be_disabled()
    await dialog.get_by_role("textbox").fill("acm")
    await expect(go).to_be_disabled()
    await dialog.get_by_role("textbox").fill("acme")
    await go.click()
    await expect(dialog).to_contain_text("700 tokens are purged.")
    assert made.sent == [("POST purge", {"tenant": "acme", "dry_run": True}), ("POST purge", {"tenant": "acme"})]


async def test_live_requests_wait_behind_a_button(open_page: Open) -> None:
    """What comes live moves nothing until it is asked for; what the filters leave out is not counted."""
    made = alive()
    page = await open_page(made, "#/requests?tenant=acme")
    rows = page.locator(".requests tbody tr")
    await expect(rows).to_have_count(2)
    for name, tenant in (("r3", "acme"), ("r4", "globex"), ("r5", "acme")):
        made.tell("request", request(name, NOW, tenant=tenant))
    button = page.get_by_role("button", name="2 new")
    await expect(button).to_be_visible()
    await expect(rows).to_have_count(2)
    await button.click()
    await expect(rows).to_have_count(4)
    assert await rows.first.get_attribute("data-id") in {"r3", "r5"}


async def test_one_request_tells_its_time_its_strip_and_its_break(open_page: Open) -> None:
    """Chosen by keyboard, a request shows phases, blocks, marks and the place where it parts from the earlier one."""
    page = await open_page(alive(), "#/requests")
    await page.locator(".requests tbody tr").first.press("ArrowDown")
    await page.keyboard.press("Enter")
    one = page.locator(".one-request")
    await expect(one).to_contain_text("r1")
    await expect(one.get_by_role("img").first).to_have_attribute(
        "aria-label",
        "Of 10 s: queue 1 s, prefill 2 s, elsewhere 500 ms, decode 4 s, elsewhere 2.5 s".replace(
            " s", "\u202fs"
        ).replace(" ms", "\u202fms"),
    )
    await expect(one.get_by_role("img").last).to_have_attribute(
        "aria-label", "In prompt order: read 60, write 5m 30, uncached 10"
    )
    await expect(one).to_contain_text(
        "Parts from the earlier request in system, token 60, character 9, where the text looks like a time."
    )


async def test_a_request_that_is_forgotten_is_said_to_be(open_page: Open) -> None:
    """A link to a request that is not remembered says so, and the list stays."""
    made = alive()
    made.statuses["requests/gone"] = 404
    page = await open_page(made, "#/requests?request=gone")
    await expect(page.locator(".one-request")).to_contain_text("This request is not remembered any more.")
    await expect(page.locator(".requests tbody tr")).to_have_count(2)


async def test_the_tree_is_walked_by_keyboard(open_page: Open) -> None:
    """Arrows choose, Enter zooms in, Escape out, and what is chosen is told beside the picture and aloud."""
    page = await open_page(alive(), "#/tree")
    picture = page.get_by_role("application")
    await expect(page.locator(".tree-detail")).to_contain_text("Everything")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown"):
        await picture.press(key)
    await expect(page.locator(".tree-detail .pairs")).to_contain_text("30")
    await expect(page.locator("#aloud")).to_contain_text("acme · tiny, 5m held")
    await picture.press("Enter")
    await expect(page.locator(".crumbs [aria-current]")).to_contain_text("c (40)")
    await picture.press("Escape")
    await expect(page.locator(".crumbs [aria-current]")).to_contain_text("a (100)")


async def test_the_tree_is_a_table_too(open_page: Open) -> None:
    """The same nodes, largest first, are one key away."""
    page = await open_page(alive(), "#/tree")
    await page.get_by_role("application").press("t")
    rows = page.locator(".tree-table tbody tr")
    await expect(rows).to_have_count(5)
    assert [text.split("\t")[0] for text in await rows.all_inner_texts()] == ["a", "e", "c", "b", "d"]
