"""Shapes of Anthropic's answers, whole and streamed, as the official SDK reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import Message, MessageTokensCount, ModelInfo
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import EngineUnavailable, Overloaded, PromptTooLong, QueueTimeout
from gateway.api.anthropic_answers import Stream, counted, message, usage_of
from gateway.api.anthropic_errors import dotted, error_body, error_event
from gateway.api.anthropic_messages import ask_of, parse
from gateway.api.anthropic_models import model_info, model_page
from gateway.ask import Ask
from gateway.errors import BadRequest, Problem, Unauthorized, UnknownModel, problem_of, problem_of_status
from gateway.events import Began, CallArguments, CallBegan, Done, Ended, Event, Logprob, Text
from gateway.usage import Facts, PromptFacts, Written
from tests.gateway.test_anthropic_messages import body

ASK = Ask(id="msg_1", model="tiny", max_tokens=9)
REQUEST = parse(b'{"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}')
WRITTEN = (Written(tokens=20, asked="1h", applied="5m"), Written(tokens=10, asked="5m", applied="5m"))


def facts(*, prompt: int = 100, read: int = 40, write: int = 30, generated: int = 7, **more: Any) -> Facts:
    """Facts of an answer."""
    times = {"queue_s": 0.0, "prefill_s": 0.1, "decode_s": 0.2, "first_token_s": 0.1}
    return Facts(
        **{
            **times,
            "prompt": prompt,
            "read": read,
            "write": write,
            "generated": generated,
            "projected": None,
            "written": WRITTEN,
            **more,
        }
    )


def answer(*events: Event, end: Ended | None = None, done: Facts | None = None) -> list[Event]:
    """All events of an answer with these in the middle."""
    known = done or facts()
    return [Began(known), *events, end or Ended("stop"), Done(known)]


def whole(events: Sequence[Event], ask: Ask = ASK) -> Message:
    """The whole answer, checked against the SDK's types."""
    return Message.model_validate(json.loads(message(ask, events, REQUEST)))


def streamed(events: Sequence[Event], ask: Ask = ASK) -> bytes:
    """The streamed answer."""
    shapes = Stream(ask, REQUEST)
    return b"".join(shapes.shape(event) for event in events)


def data_of(stream: bytes) -> list[dict[str, Any]]:
    """The data of all events, each checked against the name it is sent under."""
    parsed = []
    for event in stream.decode().split("\n\n")[:-1]:
        name, _, data = event.partition("\n")
        parsed.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {parsed[-1]['type']}"
    return parsed


def client(reply: Callable[[], httpx2.Response]) -> anthropic.Anthropic:
    """The official client, connected to a reply instead of to a network."""
    transport = httpx2.MockTransport(lambda _: reply())
    return anthropic.Anthropic(api_key="k", max_retries=0, http_client=httpx2.Client(transport=transport))


def read_by_sdk(stream: bytes) -> Message:
    """What the SDK makes of a stream."""
    reply = httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=stream)
    sdk = client(lambda: reply)
    with sdk.messages.stream(model="tiny", max_tokens=9, messages=[{"role": "user", "content": "x"}]) as events:
        return events.get_final_message()


CALLS: tuple[Event, ...] = (
    Text("Let me "),
    Text("look."),
    Text("", logprobs=(Logprob("a", b"a", -0.1),)),
    CallBegan(0, "a1", "weather"),
    CallArguments(0, '{"city":'),
    CallArguments(0, ""),
    CallArguments(0, ' "Oslo", "n": 1.50}'),
    CallBegan(1, "a2", "time"),
    CallArguments(1, "{}"),
    CallBegan(2, "a3", "noop"),
)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (Ended("stop"), "end_turn"),
        (Ended("length"), "max_tokens"),
        (Ended("stop_string", stop="END"), "stop_sequence"),
        (Ended("tool_calls"), "tool_use"),
    ],
)
def test_stop_reasons_are_the_apis(end: Ended, reason: str) -> None:
    """Each way to end has the API's own word, streamed or not, and a stop sequence is named."""
    events = answer(Text("a"), end=end)
    for read in (whole(events), read_by_sdk(streamed(events))):
        assert (read.stop_reason, read.stop_sequence) == (reason, end.stop)


def test_whole_answer_holds_text_and_calls_in_order() -> None:
    """Texts between calls are one block each, and a call's input is the object that the model wrote."""
    read = whole(answer(*CALLS, Text("Done."), end=Ended("tool_calls")))
    assert [block.to_dict() for block in read.content] == [
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "toolu_a1", "name": "weather", "input": {"city": "Oslo", "n": 1.5}},
        {"type": "tool_use", "id": "toolu_a2", "name": "time", "input": {}},
        {"type": "tool_use", "id": "toolu_a3", "name": "noop", "input": {}},
        {"type": "text", "text": "Done."},
    ]
    assert (read.id, read.model, read.role) == ("msg_1", "tiny", "assistant")


@pytest.mark.parametrize("cut", ['{"city": "Os', "[1]", '{"a": NaN}', "[" * 20_000])
def test_input_that_is_no_object_is_shown_as_text(cut: str) -> None:
    """What was cut off at the limit is not lost: it stands under the key that the API uses for it."""
    read = whole(answer(CallBegan(0, "a", "f"), CallArguments(0, cut), end=Ended("length")))
    assert read.content[0].to_dict()["input"] == {"INVALID_JSON": cut}


def test_streamed_answer_is_the_whole_one() -> None:
    """The SDK makes the same message of the stream as of the whole answer."""
    events = answer(*CALLS, Text("Done."), end=Ended("tool_calls"))
    told, read = whole(events), read_by_sdk(streamed(events))
    assert [block.to_dict() for block in read.content] == [block.to_dict() for block in told.content]
    assert (read.id, read.stop_reason, read.usage) == (told.id, told.stop_reason, told.usage)


def test_events_come_in_the_apis_order() -> None:
    """Each block is begun, added to and closed before the next one, under the next index."""
    events = data_of(streamed(answer(*CALLS)))
    assert [(event["type"].removeprefix("content_block_"), event.get("index")) for event in events] == [
        ("message_start", None),
        ("start", 0),
        ("delta", 0),
        ("delta", 0),
        ("stop", 0),
        ("start", 1),
        ("delta", 1),
        ("delta", 1),
        ("stop", 1),
        ("start", 2),
        ("delta", 2),
        ("stop", 2),
        ("start", 3),
        ("stop", 3),
        ("message_delta", None),
        ("message_stop", None),
    ]


def test_line_separators_in_text_do_not_end_an_event() -> None:
    """Characters that some readers take for line ends arrive inside the text."""
    odd = "a\u2028b\u0085c\x0bd\r\ne"
    assert read_by_sdk(streamed(answer(Text(odd)))).content[0].to_dict()["text"] == odd


def test_usage_is_known_before_the_first_text() -> None:
    """A stream begins with the same input counts and split as the whole answer has, and no output yet (P12)."""
    first = data_of(streamed(answer(Text("a"))))[0]["message"]
    assert first["usage"] == {
        "input_tokens": 30,
        "cache_creation_input_tokens": 30,
        "cache_read_input_tokens": 40,
        "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
        "output_tokens": 0,
        "service_tier": "standard",
    }
    assert (first["content"], first["stop_reason"]) == ([], None)


def test_last_usage_repeats_the_first() -> None:
    """A stream's last usage holds totals: whoever overwrites is right, whoever adds is not (P12)."""
    events = data_of(streamed(answer(Text("a"))))
    first, last = events[0]["message"]["usage"], events[-2]["usage"]
    assert {name: first[name] for name in last if name != "output_tokens"} | {"output_tokens": 7} == last


def test_extension_rides_on_the_whole_answer_and_on_the_last_event_with_usage() -> None:
    """The `keepwarm` object is the same in both, and the SDK lets it pass."""
    events = answer(Text("a"))
    streams = [event["keepwarm"] for event in data_of(streamed(events)) if "keepwarm" in event]
    assert streams == [json.loads(message(ASK, events, REQUEST))["keepwarm"]]
    assert streams[0]["computed_tokens"] == 60


@pytest.mark.parametrize("events", [answer(), answer(Text("", logprobs=(Logprob("a", b"a", -0.1),)))])
def test_empty_answer_has_no_blocks(events: list[Event]) -> None:
    """An answer without text has no empty text block, streamed or not."""
    assert (whole(events).content, read_by_sdk(streamed(events)).content) == ([], [])


def test_prompt_made_warm_has_no_answer() -> None:
    """With max_tokens 0 the content is empty and the limit was reached, whatever the engine calls the end."""
    ask = Ask(id="msg_1", model="tiny", max_tokens=0)
    read = whole(answer(end=Ended("stop"), done=facts(generated=0)), ask)
    assert (read.content, read.stop_reason, read.usage.output_tokens) == ([], "max_tokens", 0)


@st.composite
def prompts(draw: st.DrawFn) -> PromptFacts:
    """Facts of any prompt, what was written split by TTL anyhow."""
    read, uncached = draw(st.integers(0, 1000)), draw(st.integers(0, 1000))
    ttl = st.sampled_from([None, "5m", "1h", "30m", "7200s"])
    parts = draw(st.lists(st.tuples(st.integers(0, 1000), ttl), max_size=4))
    written = tuple(Written(tokens=tokens, asked=asked, applied="5m") for tokens, asked in parts)
    write = sum(part.tokens for part in written)
    prompt = read + write + uncached
    return PromptFacts(prompt=prompt, read=read, write=write, queue_s=0, prefill_s=0, written=written)


@given(prompts(), st.integers(0, 1000))
def test_counts_are_disjoint_and_sum_to_the_prompt(known: PromptFacts, output: int) -> None:
    """Input, read and creation sum to the prompt, both TTLs to creation, and none is negative (P11)."""
    usage = usage_of(known, output)
    split = usage.cache_creation
    counts = (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens)
    assert sum(counts) == known.prompt
    assert split.ephemeral_5m_input_tokens + split.ephemeral_1h_input_tokens == usage.cache_creation_input_tokens
    assert min(*counts, split.ephemeral_5m_input_tokens, split.ephemeral_1h_input_tokens) >= 0
    assert split.ephemeral_1h_input_tokens == sum(part.tokens for part in known.written if part.asked == "1h")


def test_writes_without_a_ttl_count_as_the_defaults() -> None:
    """A prompt made warm without a mark is written under no TTL of the client's: it counts as 5m."""
    usage = usage_of(facts(written=()), 0)
    assert (usage.cache_creation.ephemeral_5m_input_tokens, usage.cache_creation.ephemeral_1h_input_tokens) == (30, 0)


@pytest.mark.parametrize(
    ("field", "answered"),
    [
        ({}, {}),
        ({"diagnostics": None}, {}),
        ({"diagnostics": {}}, {"diagnostics": None}),
        ({"diagnostics": {"previous_message_id": None}}, {"diagnostics": None}),
        (
            {"diagnostics": {"previous_message_id": "msg_0"}},
            {"diagnostics": {"cache_miss_reason": {"type": "unavailable"}}},
        ),
    ],
)
def test_diagnostics_are_answered_where_asked(field: dict[str, Any], answered: dict[str, Any]) -> None:
    """Absent means not asked, null that there is nothing to compare with; whole and streamed agree."""
    request = parse(body(**field))
    ask = ask_of(request, "msg_1")
    told = json.loads(message(ask, answer(Text("a")), request))
    first = data_of(Stream(ask, request).shape(Began(facts())))[0]["message"]
    assert [{key: one[key] for key in ("diagnostics",) if key in one} for one in (told, first)] == [answered] * 2
    Message.model_validate(told)


def test_path_is_written_with_dots() -> None:
    """Paths look as the API writes them."""
    assert dotted("messages[0].content[12].cache_control.ttl") == "messages.0.content.12.cache_control.ttl"


@pytest.mark.parametrize(
    ("error", "status", "kind", "text"),
    [
        (BadRequest("is odd", param="tools[0].name"), 400, "invalid_request_error", "tools.0.name: is odd"),
        (BadRequest("is odd"), 400, "invalid_request_error", "is odd"),
        (Unauthorized(), 401, "authentication_error", "Send the right key"),
        (UnknownModel("x"), 404, "not_found_error", "model: The model 'x'"),
        (PromptTooLong("9 > 8", field="messages"), 400, "invalid_request_error", "prompt is too long: 9 > 8"),
        (Overloaded("later", retry_after_s=1), 429, "rate_limit_error", "later"),
        (QueueTimeout("waited", retry_after_s=1), 503, "overloaded_error", "waited"),
        (EngineUnavailable("gone"), 503, "api_error", "gone"),
        (ValueError("secret"), 500, "api_error", "The gateway failed"),
    ],
)
def test_errors_are_in_the_apis_envelope(error: Exception, status: int, kind: str, text: str) -> None:
    """Every error has the API's type for it, its path first, and the request's id."""
    problem = problem_of(error)
    told = json.loads(error_body(problem, "r1"))
    assert problem.status == status
    assert (told["type"], told["request_id"], told["error"]["type"]) == ("error", "r1", kind)
    assert told["error"]["message"].startswith(text)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (409, "conflict_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
def test_every_status_has_a_type(status: int, kind: str) -> None:
    """What the HTTP layer refuses has the API's words too."""
    assert json.loads(error_body(problem_of_status(status, "x"), "r"))["error"]["type"] == kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadRequest("x"), anthropic.BadRequestError),
        (Unauthorized(), anthropic.AuthenticationError),
        (UnknownModel("x"), anthropic.NotFoundError),
        (Overloaded("x", retry_after_s=1), anthropic.RateLimitError),
        (EngineUnavailable("x"), anthropic.InternalServerError),
    ],
)
def test_sdk_knows_the_errors(error: Exception, kind: type[anthropic.APIStatusError]) -> None:
    """The SDK raises the class that its users catch."""
    problem = problem_of(error)
    sdk = client(lambda: httpx2.Response(problem.status, content=error_body(problem, "r")))
    with pytest.raises(kind):
        sdk.messages.create(model="tiny", max_tokens=1, messages=[{"role": "user", "content": "x"}])


def test_error_in_a_stream_is_raised_by_the_sdk() -> None:
    """A stream that fails after its beginning ends with an event that clients take for an error."""
    problem = Problem(status=503, kind="server_error", message="gone", code="engine_unavailable")
    shapes = Stream(ASK, REQUEST)
    begun = shapes.shape(Began(facts())) + shapes.shape(Text("a"))
    with pytest.raises(anthropic.APIStatusError, match="gone"):
        read_by_sdk(begun + error_event(problem, "r"))


def test_count_is_what_the_sdk_reads() -> None:
    """A count is one number."""
    assert MessageTokensCount.model_validate(json.loads(counted(12))).input_tokens == 12


def test_models_are_what_the_sdk_reads() -> None:
    """The list and the single model have the SDK's shape."""
    page = json.loads(model_page([("tiny", 2048), ("other", None)]))
    models = [ModelInfo.model_validate(one) for one in page["data"]]
    assert [(one.id, one.display_name, one.max_input_tokens) for one in models] == [
        ("tiny", "tiny", 2048),
        ("other", "other", None),
    ]
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("tiny", "other", False)
    assert ModelInfo.model_validate(json.loads(model_info("tiny", None))).created_at.year == 1970


def test_empty_list_of_models_has_no_ends() -> None:
    """Without models there is no first one."""
    assert json.loads(model_page([])) == {"data": [], "has_more": False, "first_id": None, "last_id": None}
