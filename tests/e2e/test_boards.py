"""Every query of every shipped board and rule, and of vLLM's, asks for what a real gateway emits and gets a number."""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests import boards
from tests.e2e.conftest import Server, StartServer, until
from tests.e2e.fakes import MODEL, TOKENS, fakes
from tests.e2e.metrics import metric, scrape
from tests.e2e.talk import handbook, messages
from tests.promql import Window, operands, parsed, selectors

QUERIES = [(name, query) for name, queries in boards.shipped().items() for query in queries]
QUERIES += [("vllm_kv_cache", query) for query in boards.VLLM]
POOL = "256KiB"  # 64 blocks of the tiny model: a few long prompts, then the oldest must go


def post(server: Server, path: str, body: dict[str, Any]) -> int:
    """Send a body and read the whole answer; return the status."""
    data = json.dumps({"model": server.model} | body).encode()
    headers = {"Content-Type": "application/json", "anthropic-version": "2023-06-01"}
    request = urllib.request.Request(server.url + path, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code


def chat(server: Server, name: str, **fields: Any) -> int:
    """Ask over a long beginning of that name."""
    return post(server, "/v1/chat/completions", {"messages": messages(handbook(name, 3)), "max_tokens": 6} | fields)


def leave(server: Server) -> None:
    """Begin to read a stream, and go."""
    lasting = {"max_tokens": 900, "ignore_eos": True, "stream": True}
    body = {"model": server.model, "messages": messages("Stay."), **lasting}
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read(20)
    gone = 'keepwarm_client_disconnects_total{phase="answering"}'
    until(lambda: metric(server, gone) >= 1)


def talk(server: Server) -> list[int]:
    """Traffic of every kind."""
    marked = [{"type": "text", "text": handbook("marked", 3), "cache_control": {"type": "ephemeral"}}]
    statuses = [
        chat(server, "one"),
        chat(server, "one"),
        chat(server, "one", stream=True),
        chat(server, "warm", prompt_cache_options={"prewarm": True}, max_tokens=1),
        chat(server, "warm"),
        post(server, "/v1/messages", {"max_tokens": 4, "system": marked, "messages": messages("", "Why?")[1:]}),
        post(server, "/v1/messages", {"max_tokens": 4, "system": marked, "messages": messages("", "How?")[1:]}),
        post(server, "/v1/responses", {"input": "Short.", "max_output_tokens": 16, "stream": True}),
        post(server, "/v1/completions", {"prompt": "Once", "max_tokens": 4}),
        *(chat(server, f"filler {number}") for number in range(6)),
        chat(server, "one", model="nobody"),
        chat(server, "one", messages=[]),
        post(server, "/v1/completions", {"prompt": "x " * 4000}),
        *(chat(server, "relayed", model=MODEL, turn=turn) for turn in range(6)),
    ]
    leave(server)
    until(lambda: metric(server, "keepwarm_engine_running") == 0)
    return statuses


@pytest.fixture(scope="module")
def window(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Window]:
    """What two scrapes see of a server with two upstreams, before and after traffic of every kind."""
    with fakes(tmp_path_factory.mktemp("upstreams"), one=300, two=300) as (file, _):
        pool = ("--kv-bytes", POOL, "--max-model-len", "1024")
        server = start_server(*pool, "--metrics-tenants", "default", "--config", str(file))
        began, first = scrape(server)
        assert talk(server) == [200] * 15 + [404, 400, 400] + [200] * 6
        ended, last = scrape(server)
        yield Window(first, last, ended - began)


@pytest.mark.parametrize(("source", "query"), QUERIES)
def test_every_query_is_answered(window: Window, source: str, query: str):
    """Each selector matches a live series, and each thing that is shown or compared is a finite number."""
    expression = parsed(query)
    for selector in selectors(expression):
        assert window.matching(selector), f"{source}: nothing emits {selector}"
    for part in operands(expression):
        values = window.vector(part)
        assert values, f"{source}: {part.prettify()} is empty"
        assert all(map(math.isfinite, values.values())), f"{source}: {part.prettify()} is {values}"


@pytest.mark.parametrize("name", boards.RULES)
def test_no_rule_cries(window: Window, name: str):
    """A gateway that is well sets off no alert."""
    rules = [rule for group in boards.RULES[name]["groups"] for rule in group["rules"]]
    assert len(rules) == 8
    assert [rule["alert"] for rule in rules if window.value(parsed(rule["expr"]))] == []


def test_the_pool_was_too_small(window: Window):
    """The traffic was such that blocks went for room, so that no number above is a number of nothing."""
    gone = 'sum(increase(keepwarm_cache_evicted_blocks_total{reason="evicted"}[1m]))'
    (evicted,) = window.vector(parsed(gone)).values()
    assert evicted > 0


def test_upstreams_were_asked(window: Window):
    """Six requests were relayed and each said what it read; all but the first went where the prompt was believed."""

    def sums(query: str) -> float:
        (value,) = window.vector(parsed(query)).values()
        return value

    assert sums("sum(increase(keepwarm_upstream_requests_total[1m]))") == 6
    assert sums('sum(increase(keepwarm_prefix_tokens_total{stage="delivered"}[1m]))') == 6 * 300
    assert sums(f'sum(increase(keepwarm_input_tokens_total{{model="{MODEL}"}}[1m]))') == 6 * TOKENS
    assert sums('sum(increase(keepwarm_route_decisions_total{outcome="prefix"}[1m]))') == 5
