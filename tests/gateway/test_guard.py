"""Who gets in at the admin listener, from where, and by which name."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.admin.guard import is_open
from gateway.keys import TIMELINE
from tests.gateway.conftest import Gateway, StartGateway

KEY = "k3y-of-the-operators"
BEARER = {"Authorization": f"Bearer {KEY}"}
EVENTS = "/admin/v1/events"
MARK = {"title": "deployed 1.4"}

READS = ("GET", "HEAD")
WRITES = ("POST", "PUT", "DELETE", "PATCH")
OWN = "own"  # stands for the listener's own origin
ORIGINS = (None, OWN, "http://evil.example", "http://127.0.0.1:3000", "http://localhost:1", "null", "http://[", "")
SITES = (None, "same-origin", "none", "same-site", "cross-site")
ADDRESSES = ("GET /metrics", "GET /admin/v1/about", "GET /admin/v1/live", "GET /admin/v1/requests/x", "GET /nowhere",
    "GET /admin/v1/requests", "GET /admin/v1/events", "POST /admin/v1/events", "PUT /admin/v1/policies/x",
    "GET /admin/v1/audit", "POST /admin/v1/purge")  # fmt: skip


def headers_of(gateway: Gateway, origin: str | None, site: str | None) -> dict[str, str]:
    """What a browser would send from there."""
    own = str(gateway.admin.make_url("")).rstrip("/")
    headers = {} if origin is None else {"Origin": own if origin == OWN else origin}
    return headers | ({} if site is None else {"Sec-Fetch-Site": site})


async def test_only_the_own_page_and_programs_write(gateway: Gateway) -> None:
    """For every method, origin and fetch site: reads pass, writes pass from the own origin or no page, else 403."""
    for method, origin, site in itertools.product((*READS, *WRITES), ORIGINS, SITES):
        foreign = method in WRITES and (origin not in {None, OWN} or site not in {None, "same-origin", "none"})
        headers = headers_of(gateway, origin, site)
        answer = await gateway.admin.request(method, "/admin/v1/policies/none", headers=headers)
        assert (answer.status == 403) == foreign, (method, origin, site)
        if foreign:
            error = (await answer.json())["error"]
            header = "Sec-Fetch-Site" if origin in {None, OWN} else "Origin"
            assert (error["code"], error["param"]) == ("cross_origin", header)


async def test_a_foreign_page_changes_nothing_even_with_the_key(start_gateway: StartGateway) -> None:
    """A key in a stranger's hands does not make the page that sends it ours, and nothing is written."""
    gateway = await start_gateway(admin_key=KEY)
    headers = BEARER | {"Origin": "https://evil.example"}
    assert (await gateway.admin.post(EVENTS, json=MARK, headers=headers)).status == 403
    answer = await gateway.admin.get("/admin/v1/audit", headers=BEARER)
    assert (await answer.json())["lines"] == []


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8001", 200),
        ("127.0.0.1:9999", 200),
        ("127.0.0.2", 200),
        ("[::1]:8001", 200),
        ("evil.example", 403),
        ("evil.example:8001", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example:8001", 403),
        ("localhost@evil.example", 403),
        ("10.0.0.1:8001", 403),
        ("0.0.0.0:8001", 403),
        ("[::", 403),
        ("", 403),
    ],
)
@pytest.mark.parametrize("path", ["/admin/v1/about", "/metrics"])
async def test_without_a_key_only_loopback_names_reach_it(gateway: Gateway, path: str, host: str, status: int) -> None:
    """A page whose name was made to lead here gets nothing, reading or writing."""
    answer = await gateway.admin.get(path, headers={"Host": host})
    assert answer.status == status
    if status == 403:
        error = (await answer.json())["error"]
        assert (error["code"], error["param"], "KEEPWARM_ADMIN_KEY" in error["message"]) == (
            "host_not_allowed",
            "Host",
            True,
        )


async def test_with_a_key_any_name_will_do(start_gateway: StartGateway) -> None:
    """Behind a proxy or on a network the key is what counts; the page there writes as its own."""
    gateway = await start_gateway(admin_key=KEY)
    there = BEARER | {"Host": "ops.example"}
    assert (await gateway.admin.get("/admin/v1/about", headers=there)).status == 200
    own = there | {"Origin": "https://ops.example", "Sec-Fetch-Site": "same-origin"}
    assert (await gateway.admin.post(EVENTS, json=MARK, headers=own)).status == 200


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("given", [None, "Bearer wrong", KEY, f"bearer {KEY}", f"Basic {KEY}", "Bearer"])
async def test_every_address_asks_for_the_key(start_gateway: StartGateway, address: str, given: str | None) -> None:
    """Without the right key every address is 401, one that is not there too, and a key in the URL opens nothing."""
    gateway = await start_gateway(admin_key=KEY)
    method, path = address.split()
    headers = {} if given is None else {"Authorization": given}
    for query in ("", f"?key={KEY}", f"?access_token={KEY}"):
        answer = await gateway.admin.request(method, path + query, headers=headers)
        assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")


async def test_the_page_itself_is_open(start_gateway: StartGateway) -> None:
    """The addresses of the page are not asked for a key: there is nothing there, rather than no key."""
    gateway = await start_gateway(admin_key=KEY)
    for path in ("/static/none.js", "/static/views/none.js"):
        assert (await gateway.admin.get(path)).status == 404
    assert (await gateway.admin.get("/")).status in {200, 404}
    assert (await gateway.admin.get("/static/%2e%2e/admin/v1/about")).status == 401


@pytest.mark.parametrize(
    ("path", "opened"),
    [
        ("/", True),
        ("/static/main.js", True),
        ("/static", False),
        ("//", False),
        ("/static/../admin/v1/audit", False),
        ("/admin/v1/about", False),
        ("/metrics", False),
    ],
)
def test_what_is_open(path: str, opened: bool) -> None:
    """The page's files and nothing that leads out of them."""
    assert is_open(path) == opened


async def test_the_key_is_in_no_log(start_gateway: StartGateway) -> None:
    """Right, wrong or in a URL where it does not belong: the log has no key."""
    with capture_logs() as logs:
        gateway = await start_gateway(admin_key=KEY)
        await gateway.admin.get("/admin/v1/about", headers=BEARER)
        await gateway.admin.get(f"/admin/v1/about?key={KEY}", headers=BEARER)
        await gateway.admin.get(f"/{KEY}", headers={"Authorization": f"Bearer {KEY}x"})
    assert sum(line["event"] == "request" for line in logs) == 3
    assert KEY not in repr(logs)


async def test_answers_stay_out_of_frames_scripts_and_caches(gateway: Gateway) -> None:
    """Every answer says that it is for this page alone, refusals too, and data is not stored."""
    for path in ("/admin/v1/about", "/admin/v1/nothing"):
        headers = (await gateway.admin.get(path)).headers
        assert [headers.get(name) for name in (
            "X-Content-Type-Options", "X-Frame-Options", "Cross-Origin-Resource-Policy", "Cache-Control",
            "Access-Control-Allow-Origin",
        )] == ["nosniff", "DENY", "same-origin", "no-store", None]  # fmt: skip


async def test_a_preflight_allows_nothing(gateway: Gateway) -> None:
    """A browser that asks whether a foreign page may write gets no permission."""
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "PUT"}
    answer = await gateway.admin.options("/admin/v1/policies/default", headers=headers)
    assert (answer.status, "Access-Control-Allow-Origin" in answer.headers) == (405, False)


# ---- who is acting ----

WRITING: tuple[tuple[str, str, Any], ...] = (
    ("PUT", "/admin/v1/policies/acme", {"name": "acme", "tenant": "acme", "version": 0}),
    ("DELETE", "/admin/v1/policies/acme?version=1", None),
    ("POST", "/admin/v1/purge", {"tenant": "acme"}),
    ("POST", EVENTS, MARK),
)


async def test_the_audit_trail_names_who_acted(gateway: Gateway) -> None:
    """Every write has the name that came with it, and without one `admin`."""
    for method, path, body in WRITING:
        assert (await gateway.admin.request(method, path, json=body, headers={"X-Operator": "eve.o-2"})).status == 200
    await gateway.admin.post(EVENTS, json=MARK)
    lines = (await (await gateway.admin.get("/admin/v1/audit")).json())["lines"]
    assert [(line["what"], line["by"]) for line in lines] == [
        ("deploy", "admin"),
        ("deploy", "eve.o-2"),
        ("purge", "eve.o-2"),
        ("policy.delete", "eve.o-2"),
        ("policy.put", "eve.o-2"),
    ]


@pytest.mark.parametrize("name", ["", "Eve Example", "a" * 65, "<b>", "é", "a;b"])
async def test_a_name_that_is_none_is_refused_and_nothing_is_done(gateway: Gateway, name: str) -> None:
    """An operator's name follows the rules of all names, and a wrong one stops the write."""
    for method, path, body in (WRITING[0], *WRITING[2:]):
        answer = await gateway.admin.request(method, path, json=body, headers={"X-Operator": name})
        assert (answer.status, (await answer.json())["error"]["field"]) == (400, "X-Operator")
    assert (gateway.backend.purged, (await gateway.admin.app[TIMELINE].between(0, 1e12)).events[1:]) == ([], ())
