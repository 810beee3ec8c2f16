"""What is learnt of an upstream's cost, in every API, and what of it the client sees."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.record import Record
from gateway.relay.usage import NOTHING, Reported, Usage
from tests.relay.faults.conftest import CHAT, COMPLETIONS, MESSAGES, RESPONSES, StartFake, StartFront, facing
from tests.relay.faults.fakes import (
    DONE,
    STREAM,
    TOLD,
    WHOLE,
    answering,
    costs,
    delta,
    event,
    message_stream,
    response_stream,
    streaming,
    usage_chunk,
)

INCLUDED: dict[str, Any] = {"stream_options": {"include_usage": True}}


def heard(*said: object, anthropic: bool = False) -> Reported:
    """What is learnt of usage told in this order."""
    usage = Usage(anthropic=anthropic)
    for one in said:
        usage.hear(msgspec.Raw(json.dumps(one).encode()))
    return usage.reported


def counts(record: Record) -> tuple[int, int, int, int, bool] | None:
    """Prompt, read, written and unknown tokens of a record, and whether somebody told what was read."""
    facts = record.prompt
    return None if facts is None else (facts.prompt, facts.read, facts.write, facts.unknown, record.reported)


LIES: list[tuple[Any, tuple[int | None, int | None, int | None]]] = [
    (costs(), (100, 80, 2)),
    (costs(cached=0), (100, 0, 2)),
    (costs(cached=100), (100, 100, 2)),
    (costs(cached=None), (100, None, 2)),
    (costs(cached=101), (100, None, 2)),
    ({"prompt_tokens": 9, "prompt_tokens_details": None}, (9, None, None)),
    ({"prompt_tokens": 9, "prompt_tokens_details": {}}, (9, None, None)),
    ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": None}}, (9, None, None)),
    ({"prompt_tokens_details": {"cached_tokens": 8}}, (None, 8, None)),
    ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 5}}, (9, None, None)),
    (costs(cached=-1), (None, None, None)),
    (costs(prompt=-1), (None, None, None)),
    (costs(prompt="100"), (None, None, None)),
    (costs(prompt=1.5), (None, None, None)),
    (costs(prompt=True), (None, None, None)),
    (costs(prompt=10**30), (None, None, None)),
    ([], (None, None, None)),
    ("all", (None, None, None)),
    (7, (None, None, None)),
    ({}, (None, None, None)),
]


@pytest.mark.parametrize(("usage", "known"), LIES)
def test_only_what_can_be_true_is_learnt(usage: Any, known: tuple[int | None, int | None, int | None]) -> None:
    """Absent stays absent; more cached than there is, below zero, text and fractions are no counts."""
    told = heard(usage)
    assert (told.prompt, told.read, told.output) == known


@pytest.mark.parametrize("usage", [usage for usage, _ in LIES])
@pytest.mark.parametrize("streamed", [False, True])
async def test_no_usage_breaks_an_answer(
    usage: Any, streamed: bool, start_fake: StartFake, start_front: StartFront
) -> None:
    """Whatever an upstream says of its cost, the client gets its answer as it came and the record adds up."""
    stream = [*TOLD, usage_chunk(usage), DONE]
    body = {**WHOLE, "usage": usage}
    fake = await start_fake("fake", streaming(stream) if streamed else answering(200, body))
    front = await start_front(facing(fake))
    options: dict[str, Any] = dict(INCLUDED) if streamed else {}
    response = await front.ask(stream=streamed, **options)
    assert await response.read() == (b"".join(stream) if streamed else json.dumps(body).encode())
    record, told = await front.last(), heard(usage)
    assert (record.outcome, record.reported, record.generated) == ("finished", told.read is not None, told.output or 0)
    facts = record.prompt
    assert (facts is None) is (told.prompt is None)
    if facts is not None:
        assert (facts.prompt, facts.read) == (told.prompt, told.read or 0)
        assert facts.read + facts.write + facts.uncached + facts.unknown == facts.prompt
        assert min(facts.read, facts.write, facts.uncached, facts.unknown) >= 0
    delivered = None if record.routed is None else record.routed.delivered
    assert delivered == told.read


@pytest.mark.parametrize("streamed", [False, True])
async def test_no_usage_at_all(streamed: bool, start_fake: StartFake, start_front: StartFront) -> None:
    """Where nothing is said nothing is known: no prompt, no zero."""
    body = {name: value for name, value in WHOLE.items() if name != "usage"}
    fake = await start_fake("fake", streaming([*TOLD, DONE]) if streamed else answering(200, body))
    front = await start_front(facing(fake))
    await (await front.ask(stream=streamed)).read()
    record = await front.last()
    assert (counts(record), record.reported, record.outcome) == (None, False, "finished")
    assert (front.replica("fake").prompt_tokens, front.replica("fake").read_tokens) == (0, 0)


def test_the_later_word_counts_field_by_field() -> None:
    """What a later event leaves out or voids stays what it was, and only the whole is judged."""
    assert heard(costs(), {"completion_tokens": 9}) == Reported(prompt=100, read=80, output=9)
    assert heard(costs(), {"prompt_tokens": 50}) == Reported(prompt=50, read=None, output=2)
    assert heard({"prompt_tokens": 50}, costs()) == Reported(prompt=100, read=80, output=2)
    assert heard(costs(), None, "noise", {"prompt_tokens": -1}) == Reported(prompt=100, read=80, output=2)
    assert heard(None) == heard() == NOTHING


START = {"input_tokens": 20, "cache_read_input_tokens": 70, "cache_creation_input_tokens": 10, "output_tokens": 1}
SPLIT = {"cache_creation": {"ephemeral_5m_input_tokens": 4, "ephemeral_1h_input_tokens": 6}}
MERGES: list[tuple[Any, Any, tuple[int | None, int | None, int | None, int | None]]] = [
    (START, {"output_tokens": 5}, (100, 70, 10, 5)),
    (START, START | {"output_tokens": 5}, (100, 70, 10, 5)),
    (START, {"input_tokens": 20, "output_tokens": 5}, (100, 70, 10, 5)),
    (START, {"input_tokens": 20, "cache_read_input_tokens": None, "output_tokens": 5}, (100, 70, 10, 5)),
    ({"input_tokens": 0, "output_tokens": 0}, START | {"output_tokens": 5}, (100, 70, 10, 5)),
    ({"input_tokens": 9, "output_tokens": 1}, {"output_tokens": 5}, (9, None, None, 5)),
    (None, {"output_tokens": 5}, (None, None, None, 5)),
    ({"input_tokens": "many"}, None, (None, None, None, None)),
]


@pytest.mark.parametrize(("start", "end", "known"), MERGES)
def test_a_message_says_its_cost_in_two_events(start: Any, end: Any, known: tuple[int | None, ...]) -> None:
    """The first and the last word of Anthropic's stream together make one usage."""
    told = heard(start, end, anthropic=True)
    assert (told.prompt, told.read, told.write, told.output) == known


def test_writes_by_ttl_are_taken_where_they_add_up() -> None:
    """Writes are told apart by how long they are kept only where the parts make the whole."""
    told = heard(START | SPLIT, {"output_tokens": 2}, anthropic=True)
    assert (told.write_5m, told.write_1h) == (4, 6)
    wrong = heard(START | SPLIT | {"cache_creation_input_tokens": 9}, anthropic=True)
    assert (wrong.write, wrong.write_5m, wrong.write_1h) == (9, None, None)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_message_costs_the_same_streamed_and_whole(
    streamed: bool, start_fake: StartFake, start_front: StartFront
) -> None:
    """A warm message's numbers reach client and record unchanged, in both ways of answering."""
    parts = message_stream(START, {"output_tokens": 5})
    body = {"type": "message", "content": [], "usage": START | {"output_tokens": 5}}
    fake = await start_fake("fake", streaming(parts) if streamed else answering(200, body))
    front = await start_front(facing(fake))
    response = await front.ask(MESSAGES, stream=streamed, max_tokens=9)
    assert await response.read() == (b"".join(parts) if streamed else json.dumps(body).encode())
    record = await front.last()
    assert (counts(record), record.generated) == ((100, 70, 10, 0, True), 5)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_response_says_its_cost(streamed: bool, start_fake: StartFake, start_front: StartFront) -> None:
    """The Responses API's usage stands in its last event."""
    front = await start_front(facing(await start_fake()))
    response = await front.ask(RESPONSES, stream=streamed)
    body = await response.read()
    assert not streamed or body == b"".join(response_stream())
    assert counts(await front.last()) == (100, 80, 0, 0, True)


# ---- usage that the client did not ask for ----

OPTIONS: list[tuple[dict[str, Any], bool]] = [
    ({}, False),
    ({"stream_options": None}, False),
    ({"stream_options": {}}, False),
    ({"stream_options": {"include_usage": False}}, False),
    ({"stream_options": {"include_usage": None}}, False),
    (INCLUDED, True),
    ({"stream_options": {"include_usage": True, "include_obfuscation": False}}, True),
    ({"stream_options": {"include_obfuscation": False}}, False),
]


@pytest.mark.parametrize(("options", "shown"), OPTIONS)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_usage_is_asked_for_and_hidden(
    path: str, options: dict[str, Any], shown: bool, start_fake: StartFake, start_front: StartFront
) -> None:
    """The upstream is always asked; the client sees the last chunk only if it asked; both ways it is counted."""
    front = await start_front(facing(fake := await start_fake()))
    body = await (await front.ask(path, stream=True, **options)).read()
    assert body == b"".join(STREAM if shown else [*TOLD, DONE])
    sent = fake.received[0].json["stream_options"]
    assert sent == {**(options.get("stream_options") or {}), "include_usage": True}
    assert counts(await front.last()) == (100, 80, 0, 0, True)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream": True, "stream_options": "yes"}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": "true"}}, "stream_options.include_usage"),
        ({"stream": "yes"}, "stream"),
    ],
)
async def test_options_that_cannot_be_meant_are_refused(
    fields: dict[str, Any], param: str, start_fake: StartFake, start_front: StartFront
) -> None:
    """What the gateway would write over is checked first, and named."""
    front = await start_front(facing(fake := await start_fake()))
    response = await front.ask(**fields)
    assert (response.status, (await response.json())["error"]["param"]) == (400, param)
    assert (fake.received, front.kept.records) == ([], [])


async def test_usage_in_every_chunk_passes(start_fake: StartFake, start_front: StartFront) -> None:
    """Chunks that carry text and usage are no usage chunks: they pass, and the last word counts."""
    parts = [delta("a", usage=costs(output=1)), delta("b", finish="stop", usage=costs(output=2))]
    front = await start_front(facing(await start_fake("fake", streaming([*parts, usage_chunk(costs(output=3)), DONE]))))
    assert await (await front.ask(stream=True)).read() == b"".join([*parts, DONE])
    assert (await front.last()).generated == 3


async def test_chunks_without_choices_that_are_no_usage_pass(start_fake: StartFake, start_front: StartFront) -> None:
    """A chunk of filter results, or with a null usage, goes on though it has no choices."""
    odd = [event({"choices": [], "prompt_filter_results": []}), event({"choices": [], "usage": None})]
    front = await start_front(facing(await start_fake("fake", streaming([*odd, *STREAM]))))
    assert await (await front.ask(stream=True)).read() == b"".join([*odd, *TOLD, DONE])


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "prompt_tokens": st.one_of(st.none(), st.integers(-5, 200), st.just("9")),
                "completion_tokens": st.one_of(st.none(), st.integers(-5, 200)),
                "prompt_tokens_details": st.one_of(
                    st.none(), st.fixed_dictionaries({"cached_tokens": st.one_of(st.none(), st.integers(-5, 200))})
                ),
            },
        ),
        max_size=5,
    )
)
def test_learnt_usage_is_always_sound(said: list[dict[str, Any]]) -> None:
    """In whatever order whatever is told, no more was read than there was and nothing is below zero."""
    told = heard(*said)
    assert all(value is None or value >= 0 for value in (told.prompt, told.read, told.write, told.output))
    assert told.prompt is None or (told.read or 0) <= told.prompt
