"""The check of answers itself: what adds up passes, and each count that does not is noticed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.answers import Answers

CHAT: Any = {
    "object": "chat.completion",
    "usage": {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 5},
    },
    "keepwarm": {"computed_tokens": 6, "miss": [{"tokens": 2}, {"tokens": 4}], "projections": {"done": 7}},
}
MESSAGE: Any = {
    "type": "message",
    "usage": {
        "input_tokens": 1,
        "cache_creation_input_tokens": 5,
        "cache_read_input_tokens": 4,
        "output_tokens": 2,
        "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 2},
    },
    "keepwarm": CHAT["keepwarm"],
}


def changed(body: Any, path: str, value: Any) -> Any:
    """A copy of a body with one value changed."""
    body = json.loads(json.dumps(body))
    *parents, last = path.split(".")
    inner = body
    for name in parents:
        inner = inner[name]
    inner[last] = value
    return body


def read(path: str, body: Any, counted: int | None = None) -> Answers:
    """What is noted of one answer."""
    answers = Answers()
    reader = answers.reader(path, 200, "application/json", counted)
    reader.feed(json.dumps(body).encode())
    reader.end()
    return answers


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/messages", MESSAGE)])
def test_what_adds_up_passes_and_is_counted(path: str, body: Any):
    """An answer whose numbers agree leaves no complaint and counts as checked."""
    answers = read(path, body)
    assert (answers.wrong, answers.checked, answers.seen) == ([], {path: 1}, 1)


@pytest.mark.parametrize(
    ("path", "body", "counted"),
    [
        ("/v1/chat/completions", changed(CHAT, "usage.total_tokens", 13), None),
        ("/v1/chat/completions", changed(CHAT, "usage.prompt_tokens_details.cache_write_tokens", 7), None),
        ("/v1/chat/completions", changed(CHAT, "usage.prompt_tokens_details.cached_tokens", 5), None),
        ("/v1/chat/completions", changed(CHAT, "keepwarm.miss", []), None),
        ("/v1/chat/completions", changed(CHAT, "usage", None), None),
        ("/v1/messages", changed(MESSAGE, "usage.input_tokens", 2), None),
        ("/v1/messages", changed(MESSAGE, "usage.cache_creation.ephemeral_5m_input_tokens", 4), None),
        ("/v1/messages", MESSAGE, 11),
    ],
)
def test_what_does_not_add_up_is_noted(path: str, body: Any, counted: int | None):
    """Each identity that is broken is one complaint."""
    assert len(read(path, body, counted).wrong) == 1


def test_a_stream_is_checked_event_by_event():
    """Where the last event of a stream does not repeat the first one's counts, it is noted, however it is cut."""
    start = {"type": "message_start", "message": MESSAGE}
    delta = {"type": "message_delta", "usage": {**MESSAGE["usage"]}, "keepwarm": CHAT["keepwarm"]}
    for end, complaints in ((delta, 0), (changed(delta, "usage.cache_read_input_tokens", 3), 1)):
        answers = Answers()
        reader = answers.reader("/v1/messages", 200, "text/event-stream", None)
        stream = b"".join(b"event: x\ndata: " + json.dumps(event).encode() + b"\n\n" for event in (start, end))
        for at in range(0, len(stream), 7):
            reader.feed(stream[at : at + 7])
        reader.end()
        assert len(answers.wrong) == complaints
