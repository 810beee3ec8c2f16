"""Who may call, and whose tenant a call counts for."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import structlog
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from structlog.testing import capture_logs

from gateway.auth import keys_required
from gateway.errors import Unauthorized
from gateway.keyring import Identity, Key, Keyring
from gateway.keys import IDENTITY, METRICS
from gateway.metrics import Metrics
from gateway.middleware import account, envelop, identify

RED = "kw-red-secret"
BLUE = "kw-blue-secret"


def key(name: str, text: str, tenant: str) -> Key:
    """An entry for this key."""
    return Key(id=name, sha256=hashlib.sha256(text.encode()).hexdigest(), tenant=tenant)


RING = Keyring((key("red", RED, "team-a"), key("blue", BLUE, "team-b")))


def test_without_keys_everybody_is_default() -> None:
    """An empty ring asks for nothing, and whatever is sent changes nothing."""
    for headers in ((None, None), (f"Bearer {RED}", None), (None, BLUE)):
        assert Keyring(()).identify(*headers) == Identity(key_id=None, tenant="default")


@pytest.mark.parametrize(
    ("authorization", "x_api_key", "who"),
    [
        (f"Bearer {RED}", None, Identity(key_id="red", tenant="team-a")),
        (f"bearer   {BLUE} ", None, Identity(key_id="blue", tenant="team-b")),
        (None, BLUE, Identity(key_id="blue", tenant="team-b")),
        (f"Bearer {RED}", BLUE, Identity(key_id="red", tenant="team-a")),
    ],
)
def test_a_known_key_says_who(authorization: str | None, x_api_key: str | None, who: Identity) -> None:
    """A key counts as a bearer token or as x-api-key; the first wins."""
    assert RING.identify(authorization, x_api_key) == who


@pytest.mark.parametrize(
    ("authorization", "x_api_key"),
    [
        (None, None),
        (None, ""),
        ("", RED),
        ("Bearer", None),
        ("Bearer wrong", RED),
        (f"Basic {RED}", None),
        (RED, None),
        (f"Bearer {RED}x", None),
        (f"Bearer {hashlib.sha256(RED.encode()).hexdigest()}", None),
        ("Bearer \udcff", None),
    ],
)
def test_any_other_key_is_refused(authorization: str | None, x_api_key: str | None) -> None:
    """A missing or unknown key, the digest of a key and broken bytes pass nobody."""
    with pytest.raises(Unauthorized):
        RING.identify(authorization, x_api_key)


def test_a_digest_may_be_written_in_capitals() -> None:
    """Hexadecimal digits mean the same in both cases."""
    entry = Key(id="red", sha256=hashlib.sha256(RED.encode()).hexdigest().upper(), tenant="team-a")
    assert Keyring((entry,)).identify(None, RED).key_id == "red"


@pytest.mark.parametrize(
    ("second", "said"), [(key("red", BLUE, "team-b"), "id"), (key("blue", RED, "team-b"), "sha256")]
)
def test_two_entries_that_cannot_be_told_apart_are_refused(second: Key, said: str) -> None:
    """An id or a key that stands twice would leave open whose a call is."""
    with pytest.raises(ValueError, match=said):
        Keyring((key("red", RED, "team-a"), second))


def test_neither_key_nor_digest_shows() -> None:
    """Printing a ring tells ids and tenants only."""
    assert "team-a" in repr(RING)
    assert RED not in repr(RING)
    assert RING.keys[0].sha256 not in repr(RING)


Start = Callable[[Keyring], Awaitable[TestClient[Any, Any]]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start a listener, with the middlewares of the serving side, that says who is asking."""
    clients: list[TestClient[Any, Any]] = []

    async def who(request: web.Request) -> web.Response:
        return web.json_response({"key_id": request[IDENTITY].key_id, "tenant": request[IDENTITY].tenant})

    async def is_open(request: web.Request) -> web.Response:
        return web.json_response({"identified": IDENTITY in request})

    async def begin(ring: Keyring) -> TestClient[Any, Any]:
        app = web.Application(middlewares=[identify, account, envelop, keys_required(ring)])
        app[METRICS] = Metrics("tiny")
        app.router.add_post("/v1/who", who)
        app.router.add_get("/health", is_open)
        app.router.add_get("/ready", is_open)
        clients.append(TestClient(TestServer(app)))
        await clients[-1].start_server()
        return clients[-1]

    yield begin
    for client in clients:
        await client.close()


async def test_the_tenant_comes_from_the_key_alone(start: Start) -> None:
    """Headers and bodies that name a tenant or a user are not asked."""
    client = await start(RING)
    headers = {"Authorization": f"Bearer {RED}", "x-tenant": "team-b", "OpenAI-Organization": "team-b"}
    response = await client.post("/v1/who", headers=headers, json={"tenant": "team-b", "user": "team-b"})
    assert await response.json() == {"key_id": "red", "tenant": "team-a"}


async def test_a_refusal_has_the_shape_of_openai(start: Start) -> None:
    """Without the right key the answer is 401 with a code for programs, and asks for a bearer token."""
    client = await start(RING)
    for headers in ({}, {"Authorization": "Bearer guess"}, {"x-api-key": "guess"}):
        response = await client.post("/v1/who", headers=headers)
        error = (await response.json())["error"]
        assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")
        assert "guess" not in error["message"]


async def test_what_exists_is_not_told_without_a_key(start: Start) -> None:
    """An address that does not exist answers 401 as well, and 404 to those with a key."""
    client = await start(RING)
    assert (await client.get("/v1/nothing")).status == 401
    assert (await client.get("/v1/nothing", headers={"x-api-key": BLUE})).status == 404


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_probes_need_no_key(start: Start, path: str) -> None:
    """Health and readiness stay open, and whoever asks for them is nobody."""
    response = await (await start(RING)).get(path)
    assert (response.status, await response.json()) == (200, {"identified": False})


async def test_the_log_has_the_id_of_the_key(start: Start) -> None:
    """The access log names the key by its id, for its own request only, and never the key."""
    client = await start(RING)
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logs:
        await client.post("/v1/who", headers={"Authorization": f"Bearer {RED}"})
        await client.get("/health")  # on the same connection
        await client.post("/v1/who", headers={"x-api-key": "guess"})
    assert [(entry["route"], entry["status"], entry.get("key_id")) for entry in logs] == [
        ("/v1/who", 200, "red"),
        ("/health", 200, None),
        ("/v1/who", 401, None),
    ]
    assert RED not in repr(logs)
