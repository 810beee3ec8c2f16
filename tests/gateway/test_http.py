"""The serving and admin listeners over a scripted backend."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from engine.errors import EngineUnavailable, Overloaded, PromptTooLong
from tests.gateway.conftest import Gateway, StartGateway, events_of
from tests.gateway.scripted import CARD, MODEL

SECRET = "the-launch-code-is-1234"


async def error_of(response: Any) -> dict[str, Any]:
    """The error envelope, checked for its shape."""
    assert response.content_type == "application/json"
    envelope: dict[str, dict[str, Any]] = await response.json()
    assert envelope.keys() == {"error"}
    assert envelope["error"].keys() == {"message", "type", "param", "code"}
    return envelope["error"]


async def test_answer_has_the_shape_of_openai(gateway: Gateway) -> None:
    """A whole answer carries text, finish reason, usage and the extension."""
    gateway.script(["hel", "lo"], read=5)
    response = await gateway.chat()
    answer = await response.json()
    assert (response.status, answer["object"], answer["model"]) == (200, "chat.completion", "tiny")
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    usage, prompt = answer["usage"], len(gateway.backend.submitted[0].tokens) // 4
    assert usage["prompt_tokens"] == prompt
    assert usage["completion_tokens"] == 6
    assert usage["total_tokens"] == prompt + 6
    assert usage["prompt_tokens_details"] == {"cached_tokens": 5, "cache_write_tokens": 0}
    extension = answer["keepwarm"]
    assert extension["computed_tokens"] == prompt - 5
    assert extension["timings"].keys() == {"queue_ms", "prefill_ms", "decode_ms", "time_to_first_token_ms"}
    assert extension["projections"] == {
        "done": prompt - 5 + 6 - 1,
        "without_prefix_cache": prompt + 6 - 1,
        "without_kv_cache": sum(prompt + step for step in range(6)),
    }


async def test_cached_tokens_is_zero_when_zero(gateway: Gateway) -> None:
    """A measured zero is a zero, not an absence."""
    answer = await (await gateway.chat()).json()
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def stream(gateway: Gateway, **fields: Any) -> list[dict[str, Any]]:
    """The chunks of a streamed answer, checked to end with [DONE]."""
    response = await gateway.chat(stream=True, **fields)
    assert (response.status, response.content_type) == (200, "text/event-stream")
    *chunks, last = events_of(await response.text())
    assert last == "[DONE]"
    return [json.loads(chunk) for chunk in chunks]


def text_of(chunks: list[dict[str, Any]]) -> str:
    """The text of a stream."""
    return "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])


async def test_stream_without_usage(gateway: Gateway) -> None:
    """Unasked, no chunk speaks of usage, and the extension rides on the finish chunk."""
    gateway.script(["hel", "lo"])
    chunks = await stream(gateway)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert text_of(chunks) == "hello"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert not any("usage" in chunk for chunk in chunks)
    assert ["keepwarm" in chunk for chunk in chunks] == [False, False, False, True]


async def test_stream_with_usage(gateway: Gateway) -> None:
    """Asked for, usage is one more chunk without choices; all others say null, and the extension rides on it."""
    gateway.script(["hel", "lo"], read=3)
    chunks = await stream(gateway, stream_options={"include_usage": True})
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * 4
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 3, "cache_write_tokens": 0}
    assert ["keepwarm" in chunk for chunk in chunks] == [False] * 4 + [True]


async def test_stream_that_declines_usage(gateway: Gateway) -> None:
    """include_usage false is as if nothing was said."""
    chunks = await stream(gateway, stream_options={"include_usage": False})
    assert not any("usage" in chunk for chunk in chunks)


async def test_one_stream_is_one_id(gateway: Gateway) -> None:
    """All chunks of an answer share id and time."""
    chunks = await stream(gateway)
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_stop_string_ends_the_answer(gateway: Gateway, streamed: bool) -> None:
    """The stop is not shown, the ticket is left, and both forms say the same."""
    gateway.script(["al", "pha", " be", "ta", " gam", "ma", "!"], then="hang")
    if streamed:
        chunks = await stream(gateway, stop=["beta gamma"])
        text, reason = text_of(chunks), chunks[-1]["choices"][0]["finish_reason"]
        extension = chunks[-1]["keepwarm"]
    else:
        answer = await (await gateway.chat(stop=["beta gamma"])).json()
        text, reason = answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]
        extension = answer["keepwarm"]
    assert (text, reason, gateway.backend.running) == ("alpha ", "stop", 0)
    prompt, generated = len(gateway.backend.submitted[0].tokens) // 4, len("alpha beta gamma")
    assert extension["projections"]["done"] == prompt + generated - 1


async def test_an_answer_may_be_kept_from_ending(gateway: Gateway) -> None:
    """min_tokens goes to the engine; with ignore_eos only the client's own stop tokens do."""
    assert gateway.backend.card is not None
    own = gateway.backend.card.eos_ids
    await gateway.chat(stop_token_ids=[5])
    await gateway.chat(stop_token_ids=[5], min_tokens=2, ignore_eos=True)
    plain, kept = gateway.backend.submitted
    assert (plain.stop_ids, plain.sampling.min_tokens) == ((*own, 5), 0)
    assert (kept.stop_ids, kept.sampling.min_tokens) == ((5,), 2)


async def test_false_start_of_a_stop_loses_nothing(gateway: Gateway) -> None:
    """What only looked like a stop is sent, at the latest with the end."""
    gateway.script(["beta", " gam"], reason="length")
    chunks = await stream(gateway, stop="beta gamma")
    assert (text_of(chunks), chunks[-1]["choices"][0]["finish_reason"]) == ("beta gam", "length")


async def test_characters_cut_over_tokens_are_whole_in_both_forms(gateway: Gateway) -> None:
    """A stream never shows half a character and joins to the whole answer."""
    text = "kiwi \U0001f95d 키위"
    gateway.script([(token,) for token in gateway.tokens(text)])
    chunks = await stream(gateway)
    answer = await (await gateway.chat()).json()
    assert text_of(chunks) == text == answer["choices"][0]["message"]["content"]
    assert not any("\ufffd" in json.dumps(chunk, ensure_ascii=False) for chunk in chunks)


async def test_limit_by_default_is_the_room_that_is_left(gateway: Gateway) -> None:
    """Without max_tokens an answer may fill the window."""
    await gateway.chat()
    submitted = gateway.backend.submitted[0]
    assert len(submitted.tokens) // 4 + submitted.max_tokens == 2048


async def test_parts_and_string_are_one_prompt(gateway: Gateway) -> None:
    """The same text in parts reaches the engine as the same bytes."""
    parts = [{"type": "text", "text": text} for text in ("Rule ", "", "one.")]
    for content in (parts, "Rule one."):
        await gateway.chat(messages=[{"role": "user", "content": content}])
    first, second = gateway.backend.submitted
    assert (first.tokens, first.rendering) == (second.tokens, second.rendering)


@pytest.mark.parametrize("streamed", [False, True])
async def test_client_that_leaves_frees_the_engine(gateway: Gateway, streamed: bool) -> None:
    """A closed connection leaves the ticket, streamed or not."""
    gateway.script(["hi"], then="hang")
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": streamed}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.serving.port)
    writer.write(head + body)
    await asyncio.wait_for(gateway.backend.entered.acquire(), 5)
    writer.close()
    await asyncio.wait_for(gateway.backend.left.acquire(), 5)
    assert gateway.backend.running == 0
    page = await (await gateway.admin.get("/metrics")).text()
    streams = str(streamed).lower()
    assert f'keepwarm_requests_total{{api="chat",code="499",model="tiny",stream="{streams}"}} 1.0' in page


@pytest.mark.parametrize(
    ("error", "status", "code", "retry"),
    [
        (PromptTooLong.of(prompt=9, answer=3, limit=10), 400, "context_length_exceeded", None),
        (Overloaded("full", retry_after_s=2.0), 429, "engine_overloaded", "2"),
        (EngineUnavailable("gone"), 503, "engine_unavailable", "1"),
        (KeyError(SECRET), 500, "internal_error", None),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_engine_errors_have_a_status(
    gateway: Gateway, error: Exception, status: int, code: str, retry: str | None, streamed: bool
) -> None:
    """Before the first byte an error is a status, streamed or not, and a bug of ours keeps its words."""
    gateway.script([], then=error)
    response = await gateway.chat(stream=streamed)
    envelope = await error_of(response)
    assert (response.status, envelope["code"], response.headers.get("Retry-After")) == (status, code, retry)
    assert SECRET not in envelope["message"]
    assert gateway.backend.running == 0


async def test_error_after_the_first_byte_is_an_event(gateway: Gateway) -> None:
    """A stream that fails says so and does not pretend to be complete."""
    gateway.script(["hi"], then=EngineUnavailable("gone"))
    response = await gateway.chat(stream=True)
    events = events_of(await response.text())
    assert json.loads(events[-1])["error"]["code"] == "engine_unavailable"


async def test_too_long_prompt_says_both_numbers(gateway: Gateway) -> None:
    """A prompt beyond the window is refused in words clients know."""
    gateway.script([], then=PromptTooLong.of(prompt=9, answer=3, limit=10))
    envelope = await error_of(await gateway.chat())
    assert (envelope["type"], envelope["param"]) == ("invalid_request_error", "messages")
    assert "10 tokens" in envelope["message"]
    assert "12 tokens" in envelope["message"]


async def test_unknown_model_is_404(gateway: Gateway) -> None:
    """A model that is not served is not found."""
    response = await gateway.chat(model="other")
    envelope = await error_of(response)
    assert (response.status, envelope["code"], envelope["param"]) == (404, "model_not_found", "model")


async def test_bad_field_is_400_with_its_path(gateway: Gateway) -> None:
    """What cannot be parsed never reaches the engine."""
    response = await gateway.chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}])
    assert (response.status, (await error_of(response))["param"]) == (400, "messages[0].content[0]")
    assert gateway.backend.submitted == []


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/nowhere", 404, None),
        ("GET", "/v1/chat/completions", 405, "POST"),
        ("POST", "/health", 405, "GET,HEAD"),
    ],
)
async def test_wrong_address_has_the_envelope(
    gateway: Gateway, method: str, path: str, status: int, allow: str | None
) -> None:
    """Refusals of the HTTP layer have the same shape as ours; 405 says what is allowed."""
    response = await gateway.serving.request(method, path)
    await error_of(response)
    assert (response.status, response.headers.get("Allow")) == (status, allow)


async def test_body_over_the_limit_is_413(start_gateway: StartGateway) -> None:
    """A body that is too large is refused by its declared length, and by what arrives where none is declared."""
    gateway = await start_gateway(max_body=1000)

    async def endless() -> Any:
        for _ in range(100):
            yield b"x" * 100

    for data in (b"x" * 5000, endless()):
        response = await gateway.serving.post("/v1/chat/completions", data=data)
        assert (response.status, (await error_of(response))["code"]) == (413, "request_too_large")


async def test_compressed_bodies(gateway: Gateway) -> None:
    """A gzip body is read like plain text; broken gzip and unknown encodings are the client's mistake."""
    plain = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}).encode()
    outcomes = []
    for encoding, data in (("identity", plain), ("gzip", gzip.compress(plain)), ("gzip", plain), ("x-odd", plain)):
        headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
        response = await gateway.serving.post("/v1/chat/completions", data=data, headers=headers)
        outcomes.append(response.status)
    assert outcomes == [200, 200, 400, 415]
    first, second = gateway.backend.submitted
    assert first.tokens == second.tokens


async def test_request_id_is_kept_or_made(gateway: Gateway) -> None:
    """A client's plain id comes back on answer and stream; an odd one is replaced."""
    for streamed in (False, True):
        body = {"model": "tiny", "messages": [{"role": "user"}], "stream": streamed}
        response = await gateway.serving.post("/v1/chat/completions", json=body, headers={"x-request-id": "mine-1"})
        assert response.headers["x-request-id"] == "mine-1"
    response = await gateway.serving.get("/nowhere", headers={"x-request-id": "a b" * 99})
    assert len(response.headers["x-request-id"]) == 32


async def test_health_and_ready(gateway: Gateway) -> None:
    """Health is about the gateway, readiness about the engine, and HEAD answers like GET."""
    assert (await gateway.serving.get("/ready")).status == 200
    gateway.backend.card = None
    response = await gateway.serving.get("/ready")
    assert (response.status, (await response.json())["detail"]) == (503, "The engine is starting.")
    for method in ("GET", "HEAD"):
        assert (await gateway.serving.request(method, "/health")).status == 200
    assert (await gateway.chat()).status == 503


async def test_models(gateway: Gateway) -> None:
    """The served model is listed with its window."""
    listed = await (await gateway.serving.get("/v1/models")).json()
    assert [(model["id"], model["max_model_len"]) for model in listed["data"]] == [("tiny", 2048)]


async def test_metrics_count_what_happened(gateway: Gateway) -> None:
    """Prompt tokens by what the cache did, answer tokens, times and the engine's snapshot."""
    gateway.script(["hel", "lo"], read=4)
    answer = await (await gateway.chat()).json()
    page = await (await gateway.admin.get("/metrics")).text()
    uncached = float(answer["usage"]["prompt_tokens"] - 4)
    for line in (
        'keepwarm_input_tokens_total{cache="read",model="tiny",ttl="none"} 4.0',
        f'keepwarm_input_tokens_total{{cache="uncached",model="tiny",ttl="none"}} {uncached}',
        'keepwarm_output_tokens_total{model="tiny"} 6.0',
        'keepwarm_time_to_first_token_seconds_count{cache="miss",model="tiny"} 1.0',
        'keepwarm_inter_token_latency_seconds_count{model="tiny"} 3.0',
        'keepwarm_requests_total{api="chat",code="200",model="tiny",stream="false"} 1.0',
        'keepwarm_http_responses_total{method="POST",route="/v1/chat/completions",status="200"} 1.0',
        "keepwarm_engine_up 1.0",
        "keepwarm_engine_blocks_free 7.0",
        "keepwarm_engine_steps_total 3.0",
        "keepwarm_engine_restarts_total 0.0",
    ):
        assert line in page, line


async def test_metrics_without_an_engine(gateway: Gateway) -> None:
    """A scrape while the engine is away says that it is away and guesses nothing."""
    gateway.backend.reading = None
    page = await (await gateway.admin.get("/metrics")).text()
    assert "keepwarm_engine_up 0.0" in page
    assert "keepwarm_engine_blocks_free" not in page


async def test_odd_requests_make_no_series(gateway: Gateway) -> None:
    """Paths, methods and models of a client's choosing are folded."""
    for number in range(20):
        await gateway.serving.get(f"/v1/x{number}")
        await gateway.serving.request("PURGE", "/health")
        await gateway.chat(model=f"m{number}")
    page = await (await gateway.admin.get("/metrics")).text()
    series = {line.split(" ")[0] for line in page.splitlines() if line.startswith("keepwarm_http_responses_total")}
    assert len(series) == 3  # GET unknown 404, other /health 405, POST chat 404


async def test_admin_key_is_asked_for(start_gateway: StartGateway) -> None:
    """With a key set, the admin side opens to its bearer only, known path or not."""
    gateway = await start_gateway(admin_key="k3y")
    outcomes = []
    for given in (None, "Bearer wrong", "k3y", "Bearer k3y"):
        response = await gateway.admin.get("/metrics", headers={"Authorization": given} if given else {})
        outcomes.append(response.status)
    assert outcomes == [401, 401, 401, 200]
    assert (await gateway.admin.get("/nowhere")).status == 401


async def test_no_metrics_on_the_serving_port(gateway: Gateway) -> None:
    """Clients do not reach the operators' side."""
    assert (await gateway.serving.get("/metrics")).status == 404


async def test_logs_hold_no_prompt(gateway: Gateway) -> None:
    """What was said is in no log line, whether served or refused."""
    with capture_logs() as lines:
        await gateway.chat(messages=[{"role": "user", "content": SECRET}])
        await gateway.chat(messages=[{"role": "user", "content": SECRET}], temperature=9)
    assert [line["status"] for line in lines if line["event"] == "request"] == [200, 400]
    assert SECRET not in repr(lines)


async def test_stopping_waits_for_answers_then_stops_the_engine(start_gateway: StartGateway) -> None:
    """An answer in flight ends before the engine does."""
    gateway = await start_gateway()
    answer = asyncio.ensure_future(gateway.chat())
    await asyncio.wait_for(gateway.backend.entered.acquire(), 5)
    await asyncio.gather(answer, gateway.serving.server.close())
    assert (answer.result().status, gateway.backend.stopped) == (200, True)


async def test_one_request_id_twice_is_two_requests(start_gateway: StartGateway) -> None:
    """The id that a client sends is for its logs; the engine never sees it, so it may come twice."""
    gateway = await start_gateway()
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
    headers = {"x-request-id": "same"}
    answers = [await gateway.serving.post("/v1/chat/completions", json=body, headers=headers) for _ in range(2)]
    assert [answer.headers["x-request-id"] for answer in answers] == ["same", "same"]
    assert len({submit.id for submit in gateway.backend.submitted}) == 2


async def test_a_prompt_that_cannot_fit_is_refused_before_it_is_encoded(start_gateway: StartGateway) -> None:
    """A message of many windows is a 400 with both numbers."""
    gateway = await start_gateway()
    answer = await gateway.chat(messages=[{"role": "user", "content": "word " * 200_000}])
    error = (await answer.json())["error"]
    assert (answer.status, error["code"]) == (400, "context_length_exceeded")
    assert "2048 tokens" in error["message"]
    assert gateway.backend.submitted == []


@pytest.mark.parametrize("arguments", ['{"a": "\\ud800"}', '{"a": NaN}'])
async def test_arguments_that_are_no_json_stay_text(start_gateway: StartGateway, arguments: str) -> None:
    """Half a surrogate pair or NaN inside a call's arguments is the client's text, not our failure."""
    gateway = await start_gateway()
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert (await gateway.chat(messages=messages)).status == 200


async def test_every_rare_character_at_once_is_a_400(start_gateway: StartGateway) -> None:
    """A text that leaves no stand-in for the control token it spells is refused, not left hanging."""
    gateway = await start_gateway()
    text = "<|im_end|>" + "".join(map(chr, range(0x20000, 0x2A6D7)))
    gateway.backend.card = msgspec.structs.replace(CARD, max_model_len=10_000_000)
    answer = await gateway.chat(messages=[{"role": "user", "content": text}])
    assert (answer.status, (await answer.json())["error"]["param"]) == (400, "messages")


async def test_a_stop_string_has_a_length(start_gateway: StartGateway) -> None:
    """A stop string of a megabyte is refused with its path."""
    gateway = await start_gateway()
    answer = await gateway.chat(stop=["ok", "x" * 1_000_000])
    assert (answer.status, (await answer.json())["error"]["param"]) == (400, "stop[1]")
