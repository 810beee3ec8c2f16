"""A real engine: hostile requests harm nobody, and the least length that is kept is exact."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.e2e.conftest import Server, StartServer

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = "/v1/messages"
LEAST = 64  # tokens, four blocks
HEAD = len("<|im_start|>system\n") - len("<|im_start|>") + 1  # tokens before a system text
LONG = 1500  # tokens of the answer that goes on meanwhile


def post(server: Server, path: str, body: Any, *, method: str = "POST") -> Any:
    """Send JSON; return the answer, still open."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        server.url + path, data=data, headers={"Content-Type": "application/json"}, method=method
    )
    return urllib.request.urlopen(request, timeout=60)


def refusal(server: Server, path: str, body: Any) -> tuple[int, str | None]:
    """Status of a refusal and the field that it names."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(server, path, body)
    with caught.value as answer:
        return answer.code, json.load(answer)["error"]["param"]


def completion(server: Server, **fields: Any) -> dict[str, Any]:
    """A body of one token's answer."""
    return {"model": server.model, "prompt": [5, 6, 7], "max_tokens": 1, **fields}


def test_hostile_requests_leave_a_stream_alone(server: Server):
    """Ids that the model does not have, numbers that are none and endless nesting are 400s; the stream goes on."""
    calm = completion(server, max_tokens=LONG, temperature=0, logit_bias={"2": -100}, stream=True)
    calm["stream_options"] = {"include_usage": True}
    with post(server, COMPLETIONS, calm) as stream:
        first = stream.readline()
        hostile: list[tuple[Any, str | None]] = [
            (completion(server, prompt=[999_999_999]), "prompt"),
            (completion(server, prompt=[-1]), "prompt[0]"),
            (completion(server, prompt=[1.5]), "prompt[0]"),
            (completion(server, prompt=[True]), "prompt[0]"),
            (completion(server, logit_bias={"999999999": 5}), "logit_bias"),
            (completion(server, stop_token_ids=[-3]), "stop_token_ids[0]"),
            (completion(server, stop_token_ids=[999_999]), "stop_token_ids"),
            (completion(server, temperature=-1), "temperature"),
            (json.dumps(completion(server, temperature="@")).replace('"@"', "1e999").encode(), "temperature"),
            (json.dumps(completion(server, temperature=float("nan"))).encode(), None),
            (b"[" * 20_000, None),
            (b'{"a":' * 20_000, None),
            (completion(server, max_tokens=10**15), "max_tokens"),
        ]
        assert [refusal(server, COMPLETIONS, body) for body, _ in hostile] == [(400, param) for _, param in hostile]
        with post(server, COMPLETIONS, completion(server)) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 1
        events = [line.removeprefix(b"data: ") for line in [first, *stream] if line.startswith(b"data: ")]
    assert events[-1] == b"[DONE]\n"
    assert json.loads(events[-2])["usage"]["completion_tokens"] == LONG


def test_a_tool_schema_of_a_thousand_levels_is_refused(server: Server):
    """It is no more than a 400, and the next request is served."""
    schema = '{"properties":' * 1000 + "{}" + "}" * 1000
    tool = {"type": "function", "function": {"name": "f", "parameters": "@"}}
    chat = {"model": server.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    assert refusal(server, CHAT, json.dumps(chat | {"tools": [tool]}).replace('"@"', schema).encode()) == (400, None)
    with post(server, CHAT, chat) as answer:
        assert answer.status == 200


def command(server: Server, path: str, body: Any = None, method: str = "GET") -> Any:
    """Do what operators do; return what is told."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.admin_url}/admin/v1/{path}", data=data, headers=headers, method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def strict(start_server: StartServer) -> Server:
    """A server that keeps only what is marked, from `LEAST` tokens on."""
    server = start_server("--kv-bytes", "8MiB")
    policy = command(server, "policies/default")
    command(server, "policies/default", policy | {"default_ttl": None, "min_tokens": LEAST}, "PUT")
    return server


def marked(server: Server, path: str, text: str) -> tuple[int, int]:
    """Tokens written and read by a request whose mark stands behind this system text."""
    if path == MESSAGES:
        block = {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}
        said: dict[str, Any] = {"system": [block], "messages": [{"role": "user", "content": "go"}]}
    else:
        block = {"type": "text", "text": text, "prompt_cache_breakpoint": {"mode": "explicit"}}
        said = {"messages": [{"role": "system", "content": [block]}, {"role": "user", "content": "go"}]}
        said["prompt_cache_options"] = {"mode": "explicit"}
    with post(server, path, {"model": server.model, "max_tokens": 2, **said}) as answer:
        usage = json.load(answer)["usage"]
    if path == MESSAGES:
        return usage["cache_creation_input_tokens"], usage["cache_read_input_tokens"]
    details = usage["prompt_tokens_details"]
    return details["cache_write_tokens"], details["cached_tokens"]


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_the_least_length_is_exact(strict: Server, path: str):
    """One token too few is never written or read; the least, and one more, are written once and then read."""
    command(strict, "purge", {"all": True}, "POST")
    below, least, above = (letter * (LEAST - HEAD + more) for letter, more in zip("bcd", (-1, 0, 1), strict=True))
    assert [marked(strict, path, below) for _ in range(2)] == [(0, 0), (0, 0)]
    for text in (least, above):
        written, read = marked(strict, path, text)
        assert (written + read, read <= HEAD) == (LEAST, True)
        written, read = marked(strict, path, text)
        assert (written, read >= LEAST) == (0, True)


def test_tools_count_towards_the_least_length(strict: Server):
    """A text that is too short alone is kept where the tools before it make up for it."""
    block = {"type": "text", "text": "k" * 20, "cache_control": {"type": "ephemeral"}}
    body = {"model": strict.model, "max_tokens": 2, "system": [block], "messages": [{"role": "user", "content": "go"}]}
    tool = {"name": "look_up", "description": "m" * LEAST, "input_schema": {"type": "object"}}
    reasons = []
    for fields in ({}, {"tools": [tool]}):
        with post(strict, MESSAGES, body | fields) as answer:
            reasons.append(json.load(answer)["keepwarm"]["retention"][0]["reason"])
    assert reasons == ["below_minimum", None]
