"""What Anthropic promises of its cache, row by row, through its SDK."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic

from tests.e2e.conftest import Server
from tests.e2e.talk import ANTHROPIC_TOOLS, BLOCK, extension, handbook, whole_blocks

SHORT: Any = {"type": "ephemeral"}
LONG: Any = {"type": "ephemeral", "ttl": "1h"}


def text(words: str, mark: Any = None) -> dict[str, Any]:
    """A text block, marked or not."""
    return {"type": "text", "text": words} | ({} if mark is None else {"cache_control": mark})


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    """A user message."""
    return {"role": "user", "content": list(blocks)}


def ask(server: Server, *turns: Any, **fields: Any) -> Any:
    """The arguments of a request at temperature 0."""
    asked = {"model": server.model, "max_tokens": 4, "messages": list(turns or [user(text("Go."))])}
    return {**asked, "extra_body": {"temperature": 0}, **fields}


def counts(message: Any) -> tuple[int, int, int]:
    """Read, written and uncached tokens."""
    usage = message.usage
    return usage.cache_read_input_tokens, usage.cache_creation_input_tokens, usage.input_tokens


def split(message: Any) -> tuple[int, int]:
    """Tokens written for an hour and for five minutes."""
    creation = message.usage.cache_creation
    return creation.ephemeral_1h_input_tokens, creation.ephemeral_5m_input_tokens


def test_the_same_request_twice(anthropic_client: Anthropic, server: Server):
    """With a mark on system the first creates and the second reads at least that, creating nothing."""
    asked = ask(server, system=[text(handbook("twice", 3), SHORT)])
    _, created, _ = counts(anthropic_client.messages.create(**asked))
    read, again, _ = counts(anthropic_client.messages.create(**asked))
    assert created > 150
    assert again == 0
    assert read >= created


def test_a_conversation_that_grows_by_a_turn(anthropic_client: Anthropic, server: Server):
    """It reads the whole earlier prefix and creates only the new part."""
    first = user(text(handbook("grows", 3), SHORT))
    before = anthropic_client.messages.create(**ask(server, first))
    turns = [first, {"role": "assistant", "content": "So."}, user(text(handbook("more", 1), SHORT))]
    after = anthropic_client.messages.create(**ask(server, *turns))
    assert counts(after)[0] >= counts(before)[0] + counts(before)[1]
    (mark,) = extension(after)["retention"][-1:]
    assert counts(after)[0] + counts(after)[1] == whole_blocks(mark["tokens"])


def test_a_mark_that_moved(anthropic_client: Anthropic, server: Server):
    """With the same content a mark elsewhere still hits."""
    one, two = handbook("moved", 2), handbook("moved on", 2)
    first = anthropic_client.messages.create(**ask(server, user(text(one), text(two, SHORT))))
    second = anthropic_client.messages.create(**ask(server, user(text(one, SHORT), text(two))))
    assert counts(second)[0] >= counts(first)[0] + counts(first)[1]
    assert counts(second)[1] == 0


def test_tools_in_another_order(anthropic_client: Anthropic, server: Server):
    """Nothing is read from where the list of tools differs."""
    asked = ask(server, system=handbook("order", 1))
    first, second = (
        anthropic_client.messages.create(**asked, tools=tools) for tools in (ANTHROPIC_TOOLS, ANTHROPIC_TOOLS[::-1])
    )
    size = sum(counts(first))
    assert sum(counts(second)) == size
    again = anthropic_client.messages.create(**asked, tools=ANTHROPIC_TOOLS)
    assert counts(again)[0] >= whole_blocks(size)
    assert counts(second)[0] < size - len(handbook("order", 1))


def test_another_tool_choice(anthropic_client: Anthropic, server: Server):
    """Tools, system and messages are still read."""
    asked = ask(server, system=handbook("choice", 1), tools=ANTHROPIC_TOOLS)
    first = anthropic_client.messages.create(**asked, tool_choice={"type": "auto"})
    second = anthropic_client.messages.create(**asked, tool_choice={"type": "any"})
    assert counts(second)[0] >= whole_blocks(sum(counts(first)))


def test_a_prefix_below_the_minimum(anthropic_client: Anthropic, server: Server):
    """It is answered, creates nothing and says that it is too short."""
    answer = anthropic_client.messages.create(**ask(server, system=[text("1", SHORT)]))
    assert counts(answer)[1] == 0
    (mark,) = extension(answer)["retention"]
    assert (mark["kept"], mark["reason"]) == ("none", "below_minimum")


FIVE = [text(f"{number}.", SHORT) for number in range(5)]


@pytest.mark.parametrize(
    ("fields", "path", "words"),
    [
        ({"messages": [user(*FIVE)]}, "", "A maximum of 4 blocks with cache_control may be provided. Found 5."),
        (
            {"system": [text("a", SHORT)], "messages": [user(text("b", LONG))]},
            "messages.0.content.0.cache_control.ttl",
            "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block.",
        ),
        (
            {"messages": [user(text("a"), text("", SHORT))]},
            "messages.0.content.1",
            "cache_control cannot be set for empty text blocks",
        ),
        (
            {
                "messages": [
                    user(text("a")),
                    {
                        "role": "assistant",
                        "content": [{"type": "thinking", "thinking": "h", "signature": "", "cache_control": SHORT}],
                    },
                    user(text("b")),
                ]
            },
            "messages.1.content.0.thinking.cache_control",
            "Extra inputs are not permitted",
        ),
        ({"messages": [user(*FIVE[:4])], "cache_control": SHORT | {"ttl": "1h"}}, "cache_control", "ttl"),
        ({"messages": [user(*FIVE[:4], text("e"))], "cache_control": SHORT}, "", "Found 5."),
    ],
)
def test_the_refusals_of_marks(anthropic_client: Anthropic, server: Server, fields: Any, path: str, words: str):
    """Each is a 400 that names the path first and says it in the API's words."""
    with pytest.raises(anthropic.BadRequestError) as refused:
        anthropic_client.messages.create(**ask(server) | fields)
    error = refused.value.body["error"]  # type: ignore[index]
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith(path)
    assert words in error["message"]


def test_tools_and_system_and_messages_are_counted_together(anthropic_client: Anthropic, server: Server):
    """One mark on a tool, two on system and two on messages are five; four of them are answered."""
    tools = [ANTHROPIC_TOOLS[0] | {"cache_control": SHORT}]
    system = [text("a.", SHORT), text("b.", SHORT)]
    with pytest.raises(anthropic.BadRequestError, match="Found 5"):
        anthropic_client.messages.create(**ask(server, user(*FIVE[:2]), tools=tools, system=system))
    answer = anthropic_client.messages.create(**ask(server, user(*FIVE[:1]), tools=tools, system=system))
    assert len(extension(answer)["retention"]) == 4


def test_mixed_ttls_split_the_writes(anthropic_client: Anthropic, server: Server):
    """Read up to A, the longest hit; for an hour from A to B, its last mark; for five minutes from B to C, the last."""
    parts = [handbook(f"mixed {number}", 2) for number in range(3)]
    warm = anthropic_client.messages.create(**ask(server, user(text(parts[0], LONG))))
    asked = ask(server, user(text(parts[0], LONG), text(parts[1], LONG), text(parts[2], SHORT), text("Go.")))
    answer = anthropic_client.messages.create(**asked)
    first, hour, last = (whole_blocks(mark["tokens"]) for mark in extension(answer)["retention"])
    read, written, uncached = counts(answer)
    assert read >= first == whole_blocks(counts(warm)[0] + counts(warm)[1])
    assert split(answer) == (hour - read, last - hour)
    assert (written, uncached) == (last - read, sum(counts(answer)) - last)
    again = anthropic_client.messages.create(**asked)
    assert (counts(again)[1], split(again)) == (0, (0, 0))


def test_an_automatic_mark_moves_with_the_conversation(anthropic_client: Anthropic, server: Server):
    """The top-level cache_control marks the last block, so each turn writes itself and reads what was there."""
    turns: list[Any] = [user(text(handbook("automatic", 2)))]
    first = anthropic_client.messages.create(**ask(server, *turns), cache_control=SHORT)
    assert counts(first)[1] > 100
    turns += [{"role": "assistant", "content": "So."}, user(text(handbook("further", 1)))]
    second = anthropic_client.messages.create(**ask(server, *turns), cache_control=SHORT)
    assert counts(second)[0] >= counts(first)[0] + counts(first)[1]
    assert counts(second)[1] > BLOCK
    marked = [*turns[:-1], user(text(handbook("further", 1), SHORT))]
    third = anthropic_client.messages.create(**ask(server, *marked), cache_control=SHORT)
    assert len(extension(third)["retention"]) == 1


async def test_cold_requests_at_once(async_anthropic_client: AsyncAnthropic, server: Server):
    """All of them are answered alike, and their sums are the prompt's; a later one reads it all."""
    asked = ask(server, system=[text(handbook("at once", 3), SHORT)])
    together = await asyncio.gather(*(async_anthropic_client.messages.create(**asked) for _ in range(4)))
    assert len({message.content[0].text for message in together if message.content[0].type == "text"}) == 1
    assert len({sum(counts(message)) for message in together}) == 1
    later = await async_anthropic_client.messages.create(**asked)
    assert counts(later)[0] >= whole_blocks(sum(counts(later)))


def test_a_pre_warming_request(anthropic_client: Anthropic, server: Server):
    """With max_tokens 0 there is no output, and the next request reads what was created."""
    asked = ask(server, system=[text(handbook("warming", 3), LONG)])
    warmed = anthropic_client.messages.create(**asked | {"max_tokens": 0})
    assert (warmed.content, warmed.usage.output_tokens, warmed.stop_reason) == ([], 0, "max_tokens")
    _, created, _ = counts(warmed)
    assert split(warmed) == (created, 0)
    read, again, _ = counts(anthropic_client.messages.create(**asked))
    assert read >= created > 150
    assert again == 0


def test_streamed_totals(anthropic_client: Anthropic, server: Server):
    """A stream tells the totals of the whole answer in its first event, and its last one repeats them."""
    asked = ask(server, system=[text(handbook("streamed totals", 3), SHORT)])
    with anthropic_client.messages.stream(**asked) as stream:
        cold = stream.get_final_message()
    assert counts(cold)[1] > 150
    whole = anthropic_client.messages.create(**asked)
    events = list(anthropic_client.messages.create(**asked, stream=True))
    (start,) = [event.message for event in events if event.type == "message_start"]
    (delta,) = [event for event in events if event.type == "message_delta"]
    assert counts(start) == counts(delta) == counts(whole)
    assert sum(counts(cold)) == sum(counts(whole))
    assert delta.usage.output_tokens == whole.usage.output_tokens


def test_unknown_fields_and_old_beta_headers(anthropic_client: Anthropic, server: Server):
    """They are accepted and change nothing."""
    asked = ask(server, system=handbook("betas", 1), metadata={"user_id": "u"})
    old = {"anthropic-beta": "prompt-caching-2024-07-31,extended-cache-ttl-2025-04-11"}
    plain = anthropic_client.messages.create(**asked)
    asked["extra_body"] = asked["extra_body"] | {"context_management": {"edits": []}, "mcp_servers": []}
    beta = anthropic_client.messages.create(**asked, extra_headers=old)
    assert beta.content == plain.content
    assert counts(beta)[0] >= whole_blocks(sum(counts(plain)))


def test_output_with_a_warm_cache(anthropic_client: Anthropic, server: Server):
    """At temperature 0 it is the output of the cold one."""
    asked = ask(server, system=handbook("warm output", 3)) | {"max_tokens": 24}
    cold, warm = (anthropic_client.messages.create(**asked) for _ in range(2))
    assert counts(cold)[0] < 2 * BLOCK < counts(warm)[0]
    assert cold.content == warm.content
