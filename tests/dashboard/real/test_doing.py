"""What an operator does on the page is done in the gateway: policies, purges, and both by the keyboard alone."""

from __future__ import annotations

import pytest
from playwright.async_api import Locator, Page, expect

from tests.dashboard.real.conftest import Seeded, Visit
from tests.dashboard.real.looking import first_number, settled
from tests.dashboard.real.traffic import Json, admin

pytestmark = pytest.mark.asyncio(loop_scope="session")


def dialog(page: Page, name: str) -> Locator:
    """The dialog of this name."""
    return page.get_by_role("dialog", name=name, exact=True)


async def policy(seeded: Seeded) -> Json:
    """The default policy as the gateway has it."""
    return await admin(seeded.server, "policies/default")


async def audited(seeded: Seeded) -> list[tuple[str, str]]:
    """What the audit trail says was done to what, newest first."""
    return [(line["what"], line["subject"]) for line in (await admin(seeded.server, "audit"))["lines"]]


async def promised_and_held(seeded: Seeded) -> int:
    """Tokens that the gateway keeps."""
    classes = (await admin(seeded.server, "retention"))["classes"]
    return sum(one["promised"]["tokens"] + one["held"]["tokens"] for one in classes)


async def test_a_policy_is_previewed_confirmed_and_put_back(visit: Visit, changing: Seeded) -> None:
    """A changed TTL shows what it would do, is made only when confirmed, is audited, and can be put back."""
    page = await visit(changing.server, "#/retention")
    await settled(page)
    before = await policy(changing)
    await page.get_by_role("button", name="Edit policy default").click()
    form = dialog(page, "Policy default")
    await form.get_by_label("Default TTL").fill("20m")
    await form.get_by_role("button", name="Preview").click()
    change = dialog(page, "Change policy default")
    await expect(change.locator(".changes")).to_contain_text(f"{before['default_ttl']} → 20m")

    assert await policy(changing) == before

    await change.get_by_role("button", name="Change it").click()
    await expect(change).to_contain_text(f"Policy default is version {before['version'] + 1} now")
    assert await policy(changing) == before | {"default_ttl": "20m", "version": before["version"] + 1}
    assert (await audited(changing))[0] == ("policy.put", "default")

    await change.get_by_role("button", name="Put back the old version").click()
    back = dialog(page, "Change policy default")
    await back.get_by_role("button", name="Put back", exact=True).click()
    await expect(back).to_contain_text(f"Policy default is version {before['version'] + 2} now")
    assert await policy(changing) == before | {"version": before["version"] + 2}


async def test_a_wrong_ttl_is_refused_at_its_field(visit: Visit, changing: Seeded) -> None:
    """A TTL that is no duration is refused by the gateway, told at its field, and changes nothing."""
    page = await visit(changing.server, "#/retention")
    await settled(page)
    before = await policy(changing)
    await page.get_by_role("button", name="Edit policy default").click()
    field = dialog(page, "Policy default").get_by_label("Default TTL")
    await field.fill("soon")
    await field.press("Enter")

    await expect(field).to_have_attribute("aria-invalid", "true")
    assert await policy(changing) == before


async def test_a_purge_is_counted_first_and_then_done(visit: Visit, changing: Seeded) -> None:
    """A dry run tells the tokens that would go and forgets none; typed and confirmed, exactly these go."""
    page = await visit(changing.server, "#/retention")
    await settled(page)
    whole = await promised_and_held(changing)
    counted = await admin(changing.server, "purge", {"tenant": "red", "dry_run": True})
    red = counted["tenants"]["red"]["purged"]["tokens"]
    await page.get_by_role("button", name="Purge …").click()
    form = dialog(page, "Purge")
    await form.get_by_label("Tenant").select_option("red")
    await form.get_by_role("button", name="Dry run").click()
    sure = dialog(page, "Purge tenant red")
    await expect(sure).to_contain_text("This was a dry run")

    assert first_number(await sure.locator(".preview p").first.inner_text()) == red > 0
    assert await promised_and_held(changing) == whole

    await expect(sure.get_by_role("button", name="Purge")).to_be_disabled()
    await sure.get_by_role("textbox").fill("red")
    await sure.get_by_role("button", name="Purge").click()
    await expect(sure).to_contain_text(f"{red:,} tokens are purged")
    assert await promised_and_held(changing) == whole - red
    assert (await audited(changing))[0] == ("purge", "red")


async def test_a_policy_is_changed_by_keyboard_alone(visit: Visit, changing: Seeded) -> None:
    """Without a pointer one gets to the retention view, into a policy, through the preview, and makes the change."""
    page = await visit(changing.server)
    await settled(page)
    version = (await policy(changing))["version"]
    await page.keyboard.press("g")
    await page.keyboard.press("r")
    await settled(page)
    await expect(page.locator("main")).to_be_focused()
    await tab_to(page, page.get_by_role("button", name="Edit policy default"))
    await page.keyboard.press("Enter")
    field = dialog(page, "Policy default").get_by_label("Default TTL")
    await tab_to(page, field)
    await page.keyboard.press("Control+a")
    await page.keyboard.type("25m")
    await page.keyboard.press("Enter")
    await tab_to(page, dialog(page, "Change policy default").get_by_role("button", name="Change it"))
    await page.keyboard.press("Enter")
    await expect(dialog(page, "Change policy default")).to_contain_text(f"is version {version + 1} now")
    await page.keyboard.press("Escape")

    await expect(page.get_by_role("dialog")).to_have_count(0)
    assert (await policy(changing))["default_ttl"] == "25m"


async def tab_to(page: Page, wanted: Locator, most: int = 80) -> None:
    """Press Tab until this has the focus."""
    await expect(wanted).to_be_enabled()
    for _ in range(most):
        if await wanted.evaluate("(one) => one === document.activeElement"):
            return
        await page.keyboard.press("Tab")
    raise AssertionError(f"{wanted} is not reached with Tab")
