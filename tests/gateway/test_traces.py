"""Spans of exchanges, as a collector gets them over OTLP/HTTP."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from engine.errors import EngineError
from gateway.config import Settings
from gateway.config_values import parse_url
from gateway.traces import Traces
from tests.gateway.conftest import StartGateway
from tests.gateway.records import AT, facts, missed, record

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


class Collector:
    """A receiver of OTLP over HTTP that keeps every span."""

    def __init__(self) -> None:
        """Have nothing yet."""
        self.spans: list[Any] = []
        self.bodies: list[bytes] = []
        self.services: set[str] = set()
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        """Read one batch."""
        body = await request.read()
        self.bodies.append(body)
        batch = ExportTraceServiceRequest.FromString(body)
        for resource in batch.resource_spans:
            self.services |= {
                one.value.string_value for one in resource.resource.attributes if one.key == "service.name"
            }
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        return web.Response(
            body=ExportTraceServiceResponse().SerializeToString(), content_type="application/x-protobuf"
        )

    def named(self, name: str) -> Any:
        """The one span of this name."""
        (span,) = (span for span in self.spans if span.name == name)
        return span


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    """A collector that listens."""
    collector = Collector()
    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/v1/traces", collector.take)
    server = TestServer(app)
    await server.start_server()
    collector.url = str(server.make_url("/")).rstrip("/")
    yield collector
    await server.close()


def attributes(span: Any) -> dict[str, Any]:
    """A span's attributes as Python has them."""
    found: dict[str, Any] = {}
    for one in span.attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        found[one.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


async def sent(collector: Collector, *records: Any) -> list[Any]:
    """Spans of these exchanges."""
    traces = Traces.towards(collector.url)
    for one in records:
        traces.ended(one, b"tokens")
    await asyncio.to_thread(traces.close)
    return collector.spans


async def test_a_span_says_what_a_request_cost(collector: Collector):
    """Input tokens include what was read and written, under the conventions' names."""
    prompt = facts(100, 60, 30, misses=(missed("messages", 25), missed("new", 10), missed("messages", 5)))
    await sent(collector, record(prompt=prompt, key="k1", ends=("stop", "length")))
    span = collector.named("chat tiny")
    assert attributes(span) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "keepwarm",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.finish_reasons": ["stop", "length"],
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 60,
        "gen_ai.usage.cache_creation.input_tokens": 30,
        "keepwarm.usage.uncached_tokens": 10,
        "keepwarm.miss.reasons": ["messages", "new"],
        "keepwarm.api": "chat",
        "keepwarm.key": "k1",
        "keepwarm.outcome": "finished",
        "keepwarm.stream": False,
        "keepwarm.tenant": "default",
        "keepwarm.upstream": "bundled",
        "http.response.status_code": 200,
    }
    assert collector.services == {"keepwarm"}
    assert (span.kind, span.status.code) == (span.SPAN_KIND_SERVER, span.status.STATUS_CODE_UNSET)


async def test_children_are_the_phases_in_their_order(collector: Collector):
    """Queue, prefill and decode lie within the request, each as long as it was, placed by the first token."""
    prompt = facts(10, 4, 6, queue_s=0.25, prefill_s=0.5)
    await sent(collector, record(prompt=prompt, first_token_s=1.0, decode_s=0.75, seconds=2.0))
    whole = collector.named("chat tiny")
    began = round(AT * 1e9)
    assert (whole.start_time_unix_nano - began, whole.end_time_unix_nano - began) == (0, 2_000_000_000)
    times = {"queue": (250, 500), "prefill": (500, 1000), "decode": (1000, 1750)}
    for name, (start, end) in times.items():
        child = collector.named(name)
        assert child.parent_span_id == whole.span_id
        assert child.trace_id == whole.trace_id
        assert ((child.start_time_unix_nano - began) / 1e6, (child.end_time_unix_nano - began) / 1e6) == (start, end)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"prompt": None, "outcome": "refused", "status": 400}, []),
        ({"first_token_s": None, "generated": 0, "prewarm": True}, ["queue", "prefill"]),
    ],
)
async def test_what_did_not_happen_has_no_span(collector: Collector, changes: dict[str, Any], names: list[str]):
    """A refused request has no phases, and one that only warms the cache decodes nothing."""
    spans = await sent(collector, record(**changes))
    assert [span.name for span in spans[:-1]] == names


async def test_what_failed_is_an_error_without_usage(collector: Collector):
    """Its status is the type of the error; tokens that nobody counted are absent, not 0."""
    (span,) = await sent(collector, record(prompt=None, outcome="failed", status=503))
    told = attributes(span)
    assert told["error.type"] == "503"
    assert not [name for name in told if name.startswith(("gen_ai.usage", "gen_ai.response.model"))]
    assert span.status.code == span.status.STATUS_CODE_ERROR


async def test_the_clients_trace_is_gone_on_with(collector: Collector):
    """Its span is the parent, and its vendors' state is handed on."""
    await sent(collector, record(traceparent=f"00-{TRACE}-{PARENT}-01", tracestate="vendor=1,other=2"))
    span = collector.named("chat tiny")
    assert (span.trace_id.hex(), span.parent_span_id.hex(), span.trace_state) == (TRACE, PARENT, "vendor=1,other=2")
    assert collector.named("decode").trace_id.hex() == TRACE


async def test_what_the_client_does_not_sample_is_not_sent(collector: Collector):
    """A parent that is not recorded has no children that are."""
    assert await sent(collector, record(traceparent=f"00-{TRACE}-{PARENT}-00")) == []


@pytest.mark.parametrize("header", ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01", "00-" + "x" * 5000])
async def test_a_broken_trace_context_begins_a_new_trace(collector: Collector, header: str):
    """What is no W3C trace context is ignored."""
    await sent(collector, record(traceparent=header))
    span = collector.named("chat tiny")
    assert span.parent_span_id == b""
    assert span.trace_id.hex() not in {TRACE, "0" * 32}


async def test_a_gateway_sends_the_spans_of_what_it_answers(start_gateway: StartGateway, collector: Collector):
    """Each request is one span under the client's, whole, streamed, refused or failed, and no text leaves."""
    gateway = await start_gateway(otlp_endpoint=collector.url)
    gateway.script(["hel", "lo"])
    header = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    said = {"model": "tiny", "messages": [{"role": "user", "content": "my secret word"}]}
    whole = await (await gateway.serving.post("/v1/chat/completions", json=said, headers=header)).json()
    await (await gateway.chat(stream=True)).read()
    await (await gateway.chat(model="nobody-knows-it")).read()
    gateway.script([], then=EngineError("broken"))
    await (await gateway.chat()).read()
    assert gateway.house.traces is not None
    await asyncio.to_thread(gateway.house.traces.close)
    spans = [span for span in collector.spans if span.name.startswith("chat ")]
    assert [attributes(span)["http.response.status_code"] for span in spans] == [200, 200, 404, 500]
    assert [span.name for span in spans] == ["chat tiny", "chat tiny", "chat unknown", "chat tiny"]
    first = attributes(spans[0])
    assert first["gen_ai.usage.input_tokens"] == whole["usage"]["prompt_tokens"]
    assert first["gen_ai.response.id"] == whole["id"]
    assert (spans[0].trace_id.hex(), spans[0].parent_span_id.hex()) == (TRACE, PARENT)
    assert attributes(spans[1])["keepwarm.stream"] is True
    assert not [body for body in collector.bodies if b"secret" in body or b"nobody" in body or b"hello" in body]


async def test_a_collector_that_is_away_delays_nobody(start_gateway: StartGateway):
    """Answers go on, and so does stopping."""
    gateway = await start_gateway(otlp_endpoint="http://127.0.0.1:9")
    assert (await gateway.chat()).status == 200
    await gateway.serving.close()
    assert gateway.backend.stopped


async def test_without_an_address_there_are_no_traces(start_gateway: StartGateway):
    """Off by default: no witness, no thread, and the library is not even read."""
    gateway = await start_gateway()
    assert gateway.house.traces is None


def test_a_full_address_is_taken_as_it_is():
    """A collector's base and its whole address are the same place."""
    for endpoint in ("http://c:4318", "http://c:4318/", "http://c:4318/v1/traces"):
        traces = Traces.towards(endpoint)
        processor = traces._provider._active_span_processor._span_processors[0]
        assert processor.span_exporter._endpoint == "http://c:4318/v1/traces"
        traces.close()


@pytest.mark.parametrize("text", ["localhost:4318", "ftp://x", "http://", "http://x?y=1", ""])
def test_what_is_no_address_is_refused(text: str):
    """The setting says what would do."""
    with pytest.raises(ValueError, match="expected a URL such as"):
        parse_url(text)


def test_no_server_imports_opentelemetry_for_nothing():
    """The wiring loads the library only when an address is given."""
    assert Settings().otlp_endpoint is None
    code = "import sys, gateway.app; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
