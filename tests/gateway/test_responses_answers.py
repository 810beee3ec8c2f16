"""Shaping OpenAI's Responses API: whole and streamed answers, as the official SDK reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.response_usage import ResponseUsage
from pydantic import TypeAdapter

from gateway.api.responses_answers import Answer, Stream
from gateway.api.responses_items import Item
from gateway.api.responses_request import ask_of, items_of, parse
from gateway.api.responses_shapes import usage_of
from gateway.api.responses_store import ResponseStore, Stored
from gateway.ask import Turn
from gateway.errors import Problem
from gateway.events import Began, CallArguments, CallBegan, Done, Ended, Event, Logprob, Text
from gateway.usage import Facts, PromptFacts, Written

EVENT = TypeAdapter(ResponseStreamEvent)

WEATHER: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}

FACTS = Facts(
    prompt=30,
    read=10,
    write=15,
    queue_s=0.0,
    prefill_s=0.1,
    generated=4,
    projected=23,
    decode_s=0.2,
    first_token_s=0.1,
)

LIKELY = Logprob("a", b"a", -0.5, (Logprob("a", b"a", -0.5), Logprob("b", b"\xc3", float("-inf"))))


def events(*said: Event, end: Ended | None = None) -> list[Event]:
    """An answer of these events."""
    return [Began(FACTS), *said, end or Ended("stop"), Done(FACTS)]


TALK = events(Text("Hel"), Text("lo"))
CALLS = events(
    Text("Let me see."),
    CallBegan(0, "1", "weather"),
    CallArguments(0, '{"city":'),
    CallArguments(0, ' "Rome"}'),
    CallBegan(1, "2", "weather"),
    CallArguments(1, "{}"),
    end=Ended("tool_calls"),
)
ANSWERS = {
    "talk": TALK,
    "calls": CALLS,
    "silence": events(),
    "cut": events(Text("Hel"), end=Ended("length")),
    "cut call": events(CallBegan(0, "1", "weather"), CallArguments(0, "{"), end=Ended("length")),
    "text after a call": events(CallBegan(0, "1", "weather"), CallArguments(0, "{}"), Text("Done.")),
    "logprobs": events(Text("", logprobs=(LIKELY,)), Text("aa", logprobs=(LIKELY,)), Text("", logprobs=(LIKELY,))),
}

every_answer = pytest.mark.parametrize("said", ANSWERS.values(), ids=ANSWERS)


def answer_to(response_id: str = "resp_1", **fields: Any) -> Answer:
    """An answer that is yet to come, at second 5 of a clock that stands still."""
    request = parse(json.dumps({"model": "tiny", "input": "hi", **fields}).encode())
    return Answer(request, response_id, wall=lambda: 5.9)


def whole(said: Sequence[Event], **fields: Any) -> dict[str, Any]:
    """The whole answer, which the SDK accepts."""
    answer = answer_to(**fields)
    for event in said:
        answer.take(event)
    value: dict[str, Any] = json.loads(answer.body())
    Response.model_validate(value)
    return value


def read(data: bytes) -> list[dict[str, Any]]:
    """The events of a stream, each of which the SDK accepts."""
    parts = []
    for block in data.decode().split("\n\n")[:-1]:
        name, line = block.split("\n")
        value = json.loads(line.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        EVENT.validate_python(value)
        parts.append(value)
    return parts


def streamed(said: Sequence[Event], **fields: Any) -> list[dict[str, Any]]:
    """The events of a streamed answer."""
    stream = Stream(answer_to(**fields))
    return read(b"".join(stream.shape(event) for event in said))


def kinds(parts: Sequence[dict[str, Any]]) -> list[str]:
    """What the events are, without what all have in common."""
    return [part["type"].removeprefix("response.") for part in parts]


@every_answer
def test_stream_ends_with_the_whole_answer(said: list[Event]) -> None:
    """The last event of a stream carries exactly the answer that is not streamed."""
    assert streamed(said)[-1]["response"] == whole(said)


@every_answer
def test_pieces_add_up_to_the_answer(said: list[Event]) -> None:
    """Text, arguments, log-probabilities and items, put together from the stream, are the output."""
    grown: dict[int, str] = {}
    told: list[Any] = []
    items: list[dict[str, Any]] = []
    for part in streamed(said):
        if part["type"].endswith(".delta"):
            grown[part["output_index"]] = grown.get(part["output_index"], "") + part["delta"]
            told += part.get("logprobs", [])
        elif part["type"] == "response.output_item.done":
            assert part["output_index"] == len(items)
            items.append(part["item"])
    output = whole(said)["output"]
    assert items == output
    for place, item in enumerate(output):
        expected = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert grown.get(place, "") == expected
    assert told == [entry for item in output if "content" in item for entry in item["content"][0]["logprobs"]]


@every_answer
def test_events_are_numbered_without_gaps(said: list[Event]) -> None:
    """Sequence numbers count from zero."""
    parts = streamed(said)
    assert [part["sequence_number"] for part in parts] == list(range(len(parts)))


@every_answer
def test_sdk_accumulates_the_stream(said: list[Event]) -> None:
    """The SDK's own accumulator takes every event, and what it ends with is the answer."""
    state: Any = ResponseStreamState(input_tools=[WEATHER], text_format=omit)
    for part in streamed(said):
        state.handle_event(EVENT.validate_python(part))
    final = state._completed_response
    if whole(said)["status"] == "completed":
        assert final.output_text == Response.model_validate(whole(said)).output_text
        assert final.usage.total_tokens == 34


def test_stream_of_text_in_order() -> None:
    """Text comes as an item with one part, opened, grown and closed."""
    assert kinds(streamed(TALK)) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]


def test_stream_of_calls_in_order() -> None:
    """Each call is an item of its own, done before the next begins."""
    added, delta = "output_item.added", "function_call_arguments.delta"
    done = ["function_call_arguments.done", "output_item.done"]
    assert kinds(streamed(CALLS))[8:] == [added, delta, delta, *done, added, delta, *done, "completed"]


def test_created_comes_when_the_prompt_is_processed() -> None:
    """The first event of an answer says created and in progress, with nothing put out and no usage yet."""
    created, in_progress = read(Stream(answer_to()).shape(Began(FACTS)))
    assert created["response"] == in_progress["response"]
    assert (created["response"]["status"], created["response"]["output"]) == ("in_progress", [])
    assert created["response"]["usage"] is None


def test_calls_are_output_items() -> None:
    """A call has its own id and the one that its output refers to, and its arguments as text."""
    first, second, third = whole(CALLS)["output"]
    assert first["content"][0]["text"] == "Let me see."
    assert second == {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "weather",
        "arguments": '{"city": "Rome"}',
        "status": "completed",
    }
    assert third["call_id"] == "call_2"


def test_answer_cut_short_is_incomplete() -> None:
    """Where the limit ended the answer, the response and its last item say so."""
    value = whole(ANSWERS["cut"])
    assert (value["status"], value["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (value["output"][0]["status"], value["completed_at"]) == ("incomplete", None)


def test_whole_answer_echoes_the_request() -> None:
    """The response holds what was asked and the defaults of what was not."""
    fields = {
        "instructions": "Be brief.",
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "name": "weather"},
        "parallel_tool_calls": False,
        "temperature": 0,
        "top_p": 0.5,
        "top_logprobs": 2,
        "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}, "verbosity": "low"},
        "truncation": "auto",
        "max_output_tokens": 9,
        "max_tool_calls": 1,
        "previous_response_id": "resp_0",
        "reasoning": {"effort": "low", "summary": None},
        "store": False,
        "metadata": {"a": "b"},
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
    }
    value = whole(TALK, **fields)
    echoed = {name: value[name] for name in fields}
    assert echoed == {**fields, "tools": [{**WEATHER, "description": None}]}
    assert (value["id"], value["created_at"], value["completed_at"]) == ("resp_1", 5, 5)
    assert (value["error"], value["status"], value["object"], value["model"]) == (None, "completed", "response", "tiny")
    plain = whole(TALK)
    assert (plain["store"], plain["truncation"], plain["tool_choice"]) == (True, "disabled", "auto")
    assert plain["text"] == {"format": {"type": "text"}}


@pytest.mark.parametrize(
    ("options", "echo"),
    [
        ({"ttl": "12h"}, {"mode": "implicit", "ttl": "12h"}),
        ({"mode": "explicit", "ttl": "30m"}, {"mode": "explicit", "ttl": "30m"}),
        ({"mode": "explicit"}, None),
        ({"ttl": "1h"}, None),
    ],
)
def test_cache_options_are_echoed_where_they_can_be_true(options: dict[str, str], echo: dict[str, str] | None) -> None:
    """The API's object needs one of two TTLs, so without one there is no object."""
    assert whole(TALK, prompt_cache_options=options)["prompt_cache_options"] == echo


def test_diagnostics_only_where_asked() -> None:
    """A comparison that could not be made says so; without one there is no field."""
    options = {"comparison_response_id": "resp_0"}
    assert whole(TALK, prompt_cache_options=options)["prompt_cache_diagnostics"] == {"type": "unavailable"}
    assert "prompt_cache_diagnostics" not in whole(TALK)


def test_prewarm_puts_out_nothing() -> None:
    """A pre-warm is a completed response without output, whatever ended it."""
    value = whole(events(end=Ended("length")), prompt_cache_options={"prewarm": True})
    assert (value["status"], value["output"]) == ("completed", [])


def test_log_probabilities_have_bytes_and_rivals() -> None:
    """Each token tells its bytes and likeliest rivals, and an impossible one is a number still."""
    (item,) = whole(ANSWERS["logprobs"])["output"]
    logprobs = item["content"][0]["logprobs"]
    assert len(logprobs) == 3
    assert logprobs[0]["top_logprobs"][1] == {"token": "b", "bytes": [0xC3], "logprob": -9999.0}


def test_log_probabilities_of_a_calls_spelling_are_not_shown() -> None:
    """Tokens that only spelled a call have no place in this API and make no message."""
    said = events(Text("", logprobs=(LIKELY,)), CallBegan(0, "1", "weather"), CallArguments(0, "{}"))
    assert [item["type"] for item in whole(said)["output"]] == ["function_call"]


def test_usage_and_extension_tell_the_facts() -> None:
    """Cached and written tokens are slices of the input, and the extension stands beside usage."""
    value = whole(TALK)
    assert value["usage"] == {
        "input_tokens": 30,
        "input_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 15},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 34,
    }
    assert value["keepwarm"]["computed_tokens"] == 20


@given(st.data())
def test_usage_always_adds_up(data: st.DataObject) -> None:
    """Whatever was read and written, the identities hold, and a split is given exactly where it is whole."""
    written = data.draw(
        st.lists(
            st.builds(
                Written, tokens=st.integers(0, 99), asked=st.none(), applied=st.sampled_from(["30m", "12h", "1h"])
            )
        )
    )
    listed = sum(one.tokens for one in written)
    write = listed + data.draw(st.sampled_from([0, 0, 7]))
    reading, uncached, generated = (data.draw(st.integers(0, 999)) for _ in range(3))
    prompt = write + reading + uncached
    facts = PromptFacts(prompt=prompt, read=reading, write=write, queue_s=0, prefill_s=0, written=tuple(written))
    usage = ResponseUsage.model_validate(msgspec.to_builtins(usage_of(facts, generated)))
    details = usage.input_tokens_details
    assert usage.input_tokens == facts.uncached + details.cached_tokens + details.cache_write_tokens
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    split = details.cache_write_tokens_details
    assert (split is not None) == (write == listed and all(one.applied != "1h" for one in written))
    if split is not None:
        assert split.ttl_30m_tokens + split.ttl_12h_tokens == details.cache_write_tokens


@pytest.mark.parametrize(
    ("status", "code"), [(503, "server_error"), (429, "rate_limit_exceeded"), (400, "invalid_prompt")]
)
def test_failure_ends_a_stream(status: int, code: str) -> None:
    """What grew is closed, then the error is said, then the response has failed."""
    stream = Stream(answer_to())
    data = stream.shape(Began(FACTS)) + stream.shape(Text("Hel"))
    data += stream.failure(Problem(status=status, kind="server_error", message="No.", code="engine_unavailable"))
    parts = read(data)
    assert kinds(parts)[-3:] == ["output_item.done", "error", "failed"]
    assert (parts[-2]["code"], parts[-2]["message"]) == ("engine_unavailable", "No.")
    failed = parts[-1]["response"]
    assert (failed["status"], failed["error"]) == ("failed", {"code": code, "message": "No."})
    assert failed["output"][0]["status"] == "incomplete"
    assert [part["sequence_number"] for part in parts] == list(range(len(parts)))


def test_failure_before_anything_was_said_begins_first() -> None:
    """Every stream begins with created, so that readers know what failed."""
    parts = read(Stream(answer_to()).failure(Problem(status=503, kind="server_error", message="No.")))
    assert kinds(parts) == ["created", "in_progress", "error", "failed"]


def _asked(store: ResponseStore, response_id: str, said: list[Event], **fields: Any) -> tuple[tuple[Turn, ...], Any]:
    """Answer one request and keep the response; its turns and its output as a client gets it."""
    raw = json.dumps({"model": "tiny", **fields}).encode()
    request = parse(raw)
    earlier = store.earlier("t", request.previous_response_id, request.references, 0)
    ask = ask_of(request, response_id, tenant="t", earlier=earlier)
    answer = Answer(request, response_id, wall=lambda: 0.0)
    for event in said:
        answer.take(event)
    outputs = answer.items()
    items: tuple[Item, ...] = (*items_of(request, earlier), *outputs)
    store.put("t", response_id, Stored(items=items, outputs=outputs, answer=answer.body(), size=len(raw)), 0)
    return ask.turns, json.loads(answer.body())["output"]


def test_remembered_and_sent_conversations_are_the_same_turns() -> None:
    """Three turns by `previous_response_id`, by references and with all items sent again are equal at each step."""
    store = ResponseStore()
    marked = {"type": "input_text", "text": "Rome?", "prompt_cache_breakpoint": {"mode": "explicit"}}
    steps: list[tuple[list[Any], list[Event]]] = [
        ([{"role": "developer", "content": "Help."}, {"role": "user", "content": [marked]}], CALLS),
        (
            [
                {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
                {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "?"}]},
            ],
            events(CallBegan(0, "3", "weather"), CallArguments(0, "{}"), Text("Sunny, "), Text("it seems.")),
        ),
        (
            [{"type": "function_call_output", "call_id": "call_3", "output": ""}, {"role": "user", "content": "Ta."}],
            TALK,
        ),
    ]
    sent: list[Any] = []
    referring: list[Any] = []
    previous: dict[str, str] = {}
    remembered: tuple[Turn, ...] = ()
    for number, (more, said) in enumerate(steps):
        sent += more
        referring += more
        remembered, output = _asked(store, f"resp_a{number}", said, input=more, **previous)
        stateless, again = _asked(store, f"resp_b{number}", said, input=sent, instructions=None)
        referred, _ = _asked(store, f"resp_c{number}", said, input=referring)
        assert remembered == stateless == referred
        previous = {"previous_response_id": f"resp_a{number}"}
        sent += again
        referring += [{"type": "item_reference", "id": item["id"]} for item in output]
    assert len(remembered) == 8


def test_instructions_are_not_carried_over() -> None:
    """A response's instructions are for itself: the next one has its own or none."""
    store = ResponseStore()
    _asked(store, "resp_1", TALK, input="hi", instructions="Old.")
    turns, _ = _asked(store, "resp_2", TALK, input="and?", previous_response_id="resp_1")
    assert [turn.text for turn in turns] == ["hi", "Hello", "and?"]
