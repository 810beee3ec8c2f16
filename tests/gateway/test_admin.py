"""Policies, their previews and their audit trail at the operators' API, over a real store in memory."""

from __future__ import annotations

from typing import Any

import pytest

from engine.operator_messages import Changed, PolicyTerms, Tally
from gateway.keys import POLICIES
from tests.gateway.conftest import Gateway, StartGateway
from tests.gateway.scripted import MODEL

ACME = {"name": "acme", "tenant": "acme", "default_ttl": "1h", "version": 0}
CHANGED = Changed(
    seq=1,
    gone={"acme": Tally(entries=2, tokens=64, bytes=4096)},
    kept={"acme": Tally(entries=1, tokens=16, bytes=1024), "default": Tally(entries=3, tokens=48, bytes=3072)},
    leased_tokens=16,
)


async def said(gateway: Gateway, method: str, path: str, **rest: Any) -> tuple[int, dict[str, Any]]:
    """Status and JSON of an answer of the admin side."""
    answer = await gateway.admin.request(method, f"/admin/v1/{path}", **rest)
    return answer.status, await answer.json()


async def refusal(gateway: Gateway, method: str, path: str, **rest: Any) -> tuple[int, str, str]:
    """Status, field and message of a refusal."""
    status, body = await said(gateway, method, path, **rest)
    assert set(body) == {"error"}
    return status, body["error"]["field"], body["error"]["message"]


async def trail(gateway: Gateway) -> list[dict[str, Any]]:
    """The audit trail, newest first."""
    lines: list[dict[str, Any]] = (await said(gateway, "GET", "audit"))[1]["lines"]
    return lines


async def test_default_is_there_from_the_start(gateway: Gateway) -> None:
    """The policy `default` exists before anyone wrote it, with the values it is documented with."""
    status, body = await said(gateway, "GET", "policies")
    assert status == 200
    assert body["policies"] == [
        {
            "name": "default",
            "model": None,
            "tenant": None,
            "default_ttl": "5m",
            "allowed_ttls": ["5m", "30m", "1h", "12h", "24h"],
            "max_ttl": "24h",
            "mode": "sliding",
            "min_tokens": 16,
            "promise_budget": 0.5,
            "pool_share": 1.0,
            "priority": 50,
            "version": 0,
        }
    ]


async def test_put_takes_exactly_what_get_gives(gateway: Gateway) -> None:
    """A policy that was read can be written back unchanged, and only its version moves."""
    await said(gateway, "PUT", "policies/acme", json=ACME)
    _, read = await said(gateway, "GET", "policies/acme")
    status, written = await said(gateway, "PUT", "policies/acme", json=read)
    assert (status, written) == (200, read | {"version": 2})


async def test_put_is_obeyed_by_the_engine_when_it_answers(gateway: Gateway) -> None:
    """By the time a change is acknowledged the engine has been told of it."""
    await said(gateway, "PUT", "policies/acme", json=ACME)
    assert gateway.backend.told[-1][1] == PolicyTerms(name="acme", tenant="acme", default_ttl_s=3600.0)


async def test_stale_version_is_409_with_the_one_that_stands(gateway: Gateway) -> None:
    """Who writes over a version they have not read is told which one stands."""
    await said(gateway, "PUT", "policies/acme", json=ACME)
    status, body = await said(gateway, "PUT", "policies/acme", json=ACME)
    assert (status, body["error"]["field"], body["error"]["version"]) == (409, "version", 1)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"default_ttl": "0s"}, "default_ttl"),
        ({"max_ttl": "-5m"}, "max_ttl"),
        ({"default_ttl": "2h", "max_ttl": "1h"}, "default_ttl"),
        ({"allowed_ttls": ["soon"]}, "allowed_ttls"),
        ({"pool_share": 1.5}, "pool_share"),
        ({"promise_budget": -0.1}, "promise_budget"),
        ({"priority": 101}, "priority"),
        ({"mode": "sometimes"}, "mode"),
        ({"min_tokens": "few"}, "min_tokens"),
        ({"defualt_ttl": "5m"}, "defualt_ttl"),
        ({"name": "other"}, "name"),
        ({"tenant": None}, "model"),
    ],
)
async def test_wrong_policy_is_400_with_its_field_and_changes_nothing(
    gateway: Gateway, change: dict[str, Any], field: str
) -> None:
    """Each mistake is named by its field, and store, engine and audit trail stay as they were."""
    before = list(gateway.backend.told)
    status, named, _ = await refusal(gateway, "PUT", "policies/acme", json=ACME | change)
    assert (status, named) == (400, field)
    assert (await said(gateway, "GET", "policies/acme"))[0] == 404
    assert (gateway.backend.told, await trail(gateway)) == (before, [])


async def test_refusal_says_what_is_allowed(gateway: Gateway) -> None:
    """The error has the problem and, apart from it, what would do."""
    _, body = await said(gateway, "PUT", "policies/acme", json=ACME | {"pool_share": 1.5})
    assert body["error"] == {
        "message": "pool_share: 1.5 is not a share",
        "field": "pool_share",
        "allowed": "a share of the pool from 0 to 1",
    }


async def test_misspelt_field_gets_the_nearest_name(gateway: Gateway) -> None:
    """An unknown key is an error that guesses what was meant."""
    _, _, message = await refusal(gateway, "PUT", "policies/acme", json=ACME | {"defualt_ttl": "5m"})
    assert "did you mean 'default_ttl'?" in message


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"a":' * 5000, b'{"name": "\xff"}', b'{"name":"\\ud800"}']
)
@pytest.mark.parametrize(("method", "path"), [("PUT", "policies/x"), ("POST", "policies/preview"), ("POST", "purge")])
async def test_body_that_is_no_json_object_is_400(gateway: Gateway, method: str, path: str, body: bytes) -> None:
    """Whatever the bytes, the answer is a refusal and not a failure."""
    status, _, _ = await refusal(gateway, method, path, data=body)
    assert status == 400


async def test_two_policies_with_one_selector_are_refused(gateway: Gateway) -> None:
    """A second policy for the same tenant is 400 and names the one that has it."""
    await said(gateway, "PUT", "policies/acme", json=ACME)
    status, field, message = await refusal(gateway, "PUT", "policies/again", json=ACME | {"name": "again"})
    assert (status, field) == (400, "tenant")
    assert "'acme'" in message


async def test_unknown_policy_is_404(gateway: Gateway) -> None:
    """Reading, deleting and previewing the deletion of what is not there say so."""
    assert (await refusal(gateway, "GET", "policies/none"))[:2] == (404, "name")
    assert (await refusal(gateway, "DELETE", "policies/none?version=1"))[:2] == (404, "name")
    assert (await refusal(gateway, "POST", "policies/preview", json={"delete": "none"}))[:2] == (404, "name")


async def test_delete_needs_the_version_that_stands(gateway: Gateway) -> None:
    """A deletion without a version is 400, with a stale one 409, with the right one done."""
    await said(gateway, "PUT", "policies/acme", json=ACME)
    assert (await refusal(gateway, "DELETE", "policies/acme"))[:2] == (400, "version")
    assert (await refusal(gateway, "DELETE", "policies/acme?version=soon"))[:2] == (400, "version")
    assert (await refusal(gateway, "DELETE", "policies/acme?version=7"))[:2] == (409, "version")
    assert await said(gateway, "DELETE", "policies/acme?version=1") == (200, {"deleted": "acme", "version": 1})
    assert (await said(gateway, "GET", "policies/acme"))[0] == 404


async def test_default_cannot_be_deleted(gateway: Gateway) -> None:
    """The policy `default` always exists."""
    assert (await refusal(gateway, "DELETE", "policies/default?version=0"))[:2] == (400, "name")


async def test_policy_may_be_called_preview(gateway: Gateway) -> None:
    """The address of previews takes no name away."""
    policy = ACME | {"name": "preview"}
    assert (await said(gateway, "PUT", "policies/preview", json=policy))[0] == 200
    assert (await said(gateway, "GET", "policies/preview"))[1]["tenant"] == "acme"


@pytest.mark.parametrize("body", [ACME, {"delete": "default-model"}])
async def test_preview_counts_by_tenant_and_changes_nothing(gateway: Gateway, body: dict[str, Any]) -> None:
    """A preview answers with what would expire and stay for every tenant, and the policies stay."""
    await said(gateway, "PUT", "policies/default-model", json={"model": MODEL})
    gateway.backend.changed, before = CHANGED, (list(gateway.backend.told), await trail(gateway))
    status, answer = await said(gateway, "POST", "policies/preview", json=body)
    assert (status, answer) == (
        200,
        {
            "tenants": {
                "acme": {
                    "expire": {"entries": 2, "tokens": 64, "bytes": 4096},
                    "keep": {"entries": 1, "tokens": 16, "bytes": 1024},
                },
                "default": {
                    "expire": {"entries": 0, "tokens": 0, "bytes": 0},
                    "keep": {"entries": 3, "tokens": 48, "bytes": 3072},
                },
            },
            "leased_tokens": 16,
        },
    )
    assert (gateway.backend.told, await trail(gateway)) == before


async def test_preview_of_the_end_of_default_is_refused(gateway: Gateway) -> None:
    """What a deletion would refuse, its preview refuses too."""
    assert (await refusal(gateway, "POST", "policies/preview", json={"delete": "default"}))[:2] == (400, "name")


async def test_audit_is_newest_first_and_paged(gateway: Gateway) -> None:
    """Each change is a line with what was before and after."""
    await said(gateway, "PUT", "policies/acme", json=ACME)
    await said(gateway, "DELETE", "policies/acme?version=1")
    assert [line["what"] for line in await trail(gateway)] == ["policy.delete", "policy.put"]
    _, body = await said(gateway, "GET", "audit?limit=1&offset=1")
    assert [(line["what"], line["after"]["default_ttl"]) for line in body["lines"]] == [("policy.put", "1h")]


async def test_policy_can_be_changed_while_the_engine_is_away(gateway: Gateway) -> None:
    """A change is stored without an engine; the next one hears of it."""
    gateway.backend.card = None
    assert (await said(gateway, "PUT", "policies/acme", json=ACME))[0] == 200


async def test_store_that_does_not_answer_is_503(gateway: Gateway) -> None:
    """A change that cannot be stored is not acknowledged, and the policies that are known are still shown."""
    await gateway.admin.app[POLICIES].state.close()
    assert (await refusal(gateway, "PUT", "policies/acme", json=ACME))[0] == 503
    assert (await refusal(gateway, "GET", "audit"))[0] == 503
    assert (await said(gateway, "GET", "policies"))[0] == 200


async def test_admin_key_guards_every_address(start_gateway: StartGateway) -> None:
    """With a key set, an operator without it is told nothing."""
    gateway = await start_gateway(admin_key="k")
    for path in ("policies", "entries", "stats", "audit"):
        assert (await gateway.admin.get(f"/admin/v1/{path}")).status == 401
    answer = await gateway.admin.get("/admin/v1/policies", headers={"Authorization": "Bearer k"})
    assert answer.status == 200


async def test_clients_cannot_reach_the_operators_side(gateway: Gateway) -> None:
    """The serving port has none of these addresses."""
    assert (await gateway.serving.get("/admin/v1/policies")).status == 404
