"""The OpenAPI document is valid, complete, and what the server really answers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from aiohttp.test_utils import TestServer
from hypothesis import HealthCheck, Phase, settings
from openapi_spec_validator import OpenAPIV31SpecValidator

from gateway.api import openapi
from gateway.api.openapi_http import routes_of
from gateway.app import build_serving_app
from gateway.config import Settings
from gateway.house import build_house
from gateway.prompt import Renderer
from prefix_store.sqlite_ledger import SqliteLedger
from prefix_store.sqlite_store import SqliteStore
from tests.gateway.conftest import Gateway, StartGateway
from tests.gateway.scripted import MODEL, Script, ScriptedBackend

EXAMPLES = 30
SUMMARIES = tuple((method, path, "An operation.") for method, path in openapi.OPERATIONS)


def modelled() -> dict[str, Any]:
    """The document, with the model's name for clients to send."""
    document: dict[str, Any] = json.loads(openapi.document(SUMMARIES))
    for operation in openapi.OPERATIONS.values():
        if operation.request is not None:
            document["components"]["schemas"][operation.request]["properties"]["model"] = {"enum": [MODEL]}
    return document


schema = schemathesis.openapi.from_dict(modelled())


@pytest.fixture(scope="module")
def url(tokenizer_folder: Path) -> Iterator[str]:
    """Where a gateway over a scripted backend listens, in a thread."""
    loop = asyncio.new_event_loop()

    async def start() -> TestServer:
        backend = ScriptedBackend(Script(deltas=[(70, 71), (72,)]))
        state, ledger = await SqliteStore.open(":memory:"), await SqliteLedger.open(":memory:")
        house = build_house(Settings(), backend, Renderer.load(tokenizer_folder), state, ledger=ledger)
        server = TestServer(build_serving_app(house))
        await server.start_server()
        return server

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    yield str(server.make_url("/"))
    asyncio.run_coroutine_threadsafe(server.close(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_one_that_the_document_tells(case: schemathesis.Case[Any], url: str) -> None:
    """Whatever is sent, status, type, headers and body are the document's, and nothing is a failure of the server."""
    case.call_and_validate(
        base_url=url,
        checks=[
            schemathesis.checks.not_a_server_error,
            schemathesis.checks.status_code_conformance,
            schemathesis.checks.content_type_conformance,
            schemathesis.checks.response_headers_conformance,
            schemathesis.checks.response_schema_conformance,
            schemathesis.checks.unsupported_method,
        ],
    )


async def test_the_document_is_valid_and_open(start_gateway: StartGateway) -> None:
    """It keeps the rules of OpenAPI 3.1 and needs no key."""
    gateway = await start_gateway()
    response = await gateway.serving.get("/openapi.json")
    document = await response.json()
    assert (response.status, response.content_type, document["openapi"]) == (200, "application/json", "3.1.0")
    assert list(OpenAPIV31SpecValidator(document).iter_errors()) == []


async def test_the_document_names_every_route_and_no_other(gateway: Gateway) -> None:
    """Methods and addresses are the application's, each with a summary and an id of its own."""
    document = await (await gateway.serving.get("/openapi.json")).json()
    told = {(method.upper(), path): op for path, ops in document["paths"].items() for method, op in ops.items()}
    assert set(told) == {(method, path) for method, path, _ in routes_of(gateway.serving.app)}
    assert set(told) == set(openapi.OPERATIONS)
    assert all(operation["summary"].endswith(".") for operation in told.values())
    assert len({operation["operationId"] for operation in told.values()}) == len(told)
