"""What the model cannot read is refused by its place on every API; what is only unknown is accepted on every API."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.conftest import Gateway
from tests.gateway.wire import CHAT, COUNT, EVERY, INPUT_TOKENS, MESSAGES, RESPONSES, body, refusal

DATA = "data:image/png;base64,AAAA"
SOURCE = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
TEXTS: dict[str, Any] = {
    CHAT: {"type": "text", "text": "see"},
    RESPONSES: {"type": "input_text", "text": "see"},
    INPUT_TOKENS: {"type": "input_text", "text": "see"},
    MESSAGES: {"type": "text", "text": "see"},
    COUNT: {"type": "text", "text": "see"},
}
CHAT_PARTS = (
    {"type": "image_url", "image_url": {"url": DATA}},
    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    {"type": "file", "file": {"file_id": "file-1"}},
)
RESPONSES_PARTS = (
    {"type": "input_image", "image_url": DATA},
    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    {"type": "input_file", "file_id": "file-1"},
)
MESSAGES_PARTS = (
    {"type": "image", "source": SOURCE},
    {"type": "document", "source": SOURCE},
    {"type": "search_result", "source": "x", "title": "y", "content": []},
    {"type": "container_upload", "file_id": "file-1"},
)
CASES = [
    *((CHAT, part) for part in CHAT_PARTS),
    *((path, part) for path in (RESPONSES, INPUT_TOKENS) for part in RESPONSES_PARTS),
    *((path, part) for path in (MESSAGES, COUNT) for part in MESSAGES_PARTS),
]


@pytest.mark.parametrize(("path", "part"), CASES)
async def test_what_is_no_text_is_refused_by_its_place(gateway: Gateway, path: str, part: dict[str, Any]) -> None:
    """Images, audio and files are a 400 that names the part and its type, and nothing is dropped in silence."""
    response = await gateway.serving.post(path, json=body(path, [TEXTS[path], part]))
    status, message = await refusal(response, path)
    where = {CHAT: "messages[0].content[1]", MESSAGES: "messages.0.content.1", COUNT: "messages.0.content.1"}
    assert (status, message.partition(": ")[0]) == (400, where.get(path, "input[0].content[1]"))
    assert f"'{part['type']}'" in message
    assert gateway.backend.submitted == []


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
async def test_an_image_in_a_result_is_refused_by_its_place(gateway: Gateway, path: str) -> None:
    """A part inside a tool's result has a place too."""
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image", "source": SOURCE}]}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    status, message = await refusal(await gateway.serving.post(path, json=body(path, messages=messages)), path)
    assert (status, message.partition(": ")[0]) == (400, "messages.2.content.0.content.0")


@pytest.mark.parametrize(
    ("path", "where"),
    [(CHAT, "modalities"), (RESPONSES, "background"), (RESPONSES, "conversation"), (RESPONSES, "prompt")],
)
async def test_what_would_change_the_answer_is_not_ignored(gateway: Gateway, path: str, where: str) -> None:
    """A wish that cannot be granted is refused by name."""
    wish: dict[str, Any] = {"modalities": ["audio"], "background": True, "conversation": "c", "prompt": {"id": "p"}}
    status, message = await refusal(await gateway.serving.post(path, json=body(path, **{where: wish[where]})), path)
    assert (status, message.partition(": ")[0]) == (400, where)
    assert gateway.backend.submitted == []


@pytest.mark.parametrize("path", EVERY)
async def test_unknown_optional_fields_change_nothing(gateway: Gateway, path: str) -> None:
    """Fields that nobody here knows, of any type and at any level, are accepted and leave the prompt as it is."""
    plain = body(path)
    odd = body(path, metadata={"user_id": "u"}, user="u", service_tier="auto", x_unknown={"a": [1, None]})
    for turn in odd.get("messages", odd.get("input", ())):
        turn["x_unknown"] = [1]
    answers = [await gateway.serving.post(path, json=said) for said in (plain, odd)]
    assert [answer.status for answer in answers] == [200, 200]
    if path in (COUNT, INPUT_TOKENS):
        first, second = [await answer.json() for answer in answers]
        assert first == second
    else:
        first, second = gateway.backend.submitted
        assert (first.tokens, first.sampling) == (second.tokens, second.sampling)


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
async def test_beta_headers_are_accepted(gateway: Gateway, path: str) -> None:
    """Betas that a client names in a header are no error, known or not."""
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "prompt-caching-2024-07-31,odd-2099-01-01"}
    assert (await gateway.serving.post(path, json=body(path), headers=headers)).status == 200
