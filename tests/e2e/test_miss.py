"""Why prompts missed, told by a live server: the change, where it is, what it cost, and what became of the blocks."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from tests.e2e.conftest import Server
from tests.tiny_model import tiny_tokenizer

RULES = "Answer in one short line. Never guess: say that you do not know. Keep names as they are written. "
TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"The tool {name}.", "parameters": {}}}
    for name in ("alpha", "beta", "gamma")
]


def chat(client: openai.OpenAI, server: Server, partition: str, messages: list[Any], **fields: Any) -> Any:
    """The answer to a conversation under a cache key of its own."""
    fields = {"max_tokens": 2, "seed": 1, **fields}
    return client.chat.completions.create(model=server.model, messages=messages, prompt_cache_key=partition, **fields)


def misses(answer: Any) -> list[dict[str, Any]]:
    """What the answer says of its misses; their tokens are exactly what was not read."""
    told: list[dict[str, Any]] = answer.keepwarm["miss"]
    usage = answer.usage
    assert sum(miss["tokens"] for miss in told) == usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens
    return told


def system(text: str) -> dict[str, str]:
    """A system message."""
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, str]:
    """A user message."""
    return {"role": "user", "content": text}


def test_first_request_was_never_written(openai_client: openai.OpenAI, server: Server) -> None:
    """Where nothing is known, the reason is what became of the blocks."""
    talk = [system("Nobody has ever sent these very words to this server."), user("So nothing is like them?")]
    (miss,) = misses(chat(openai_client, server, "first", talk))
    assert (miss["reason"], miss["fate"]) == ("never_written", "never_written")


def test_next_turn_is_new(openai_client: openai.OpenAI, server: Server) -> None:
    """What extends the earlier request is new, and nothing else is told."""
    talk = [system("Next. " + RULES), user("Hello, who are you?")]
    chat(openai_client, server, "next", talk)
    talk += [{"role": "assistant", "content": "I am a lighthouse."}, user("And what can you do?")]
    assert {miss["reason"] for miss in misses(chat(openai_client, server, "next", talk))} == {"new"}


def test_answer_that_encodes_otherwise_is_told(openai_client: openai.OpenAI, server: Server) -> None:
    """An answer whose text has another encoding than its tokens is read up to there, and named as the reason."""
    ids = tiny_tokenizer().get_vocab()
    apart = {str(ids["t"]): 100}  # so that the answer is `t`, `h`, which together encode as `th`
    talk = [system("Spelling. " + RULES), user("Spell it.")]
    regex = {"structured_outputs": {"regex": "[a-z]h"}}
    answer = chat(openai_client, server, "spell", talk, logit_bias=apart, max_tokens=4, extra_body=regex)
    assert answer.choices[0].message.content == "th"
    talk += [{"role": "assistant", "content": "th"}, user("Well done.")]
    told = misses(chat(openai_client, server, "spell", talk))
    assert [miss["reason"] for miss in told] == ["retokenised", "new"]
    assert (told[0]["where"]["message"], told[0]["tokens"]) == ("messages[2]", 1)


def test_time_in_the_system_text_is_found(openai_client: openai.OpenAI, server: Server) -> None:
    """A changed system text is named with its place, and the text there looks like a time."""
    first, second = (f"Be kind. It is {time} now. {RULES}" for time in ("10:31:07", "10:44:52"))
    chat(openai_client, server, "clock", [system(first), user("Hello, who are you?")])
    told = misses(chat(openai_client, server, "clock", [system(second), user("Hello, who are you?")]))
    (miss,) = [miss for miss in told if miss["reason"] == "system"]
    assert (miss["where"]["message"], miss["where"]["looks_like"]) == ("messages[0]", "time")
    assert miss["where"]["character"] == second.index("44:52")
    assert miss["tokens"] > len("44:52 now. ")


def test_reordered_tools_are_found(openai_client: openai.OpenAI, server: Server) -> None:
    """The same tools in another order are a shuffled list."""
    talk = [system(RULES), user("Hello?")]
    chat(openai_client, server, "tools", talk, tools=TOOLS)
    told = misses(chat(openai_client, server, "tools", talk, tools=TOOLS[::-1]))
    (miss,) = [miss for miss in told if miss["reason"] == "tools"]
    assert (miss["where"]["message"], miss["where"]["looks_like"]) == ("tools[0]", "shuffled_list")


def test_timestamp_put_first_leaves_no_shared_prefix_and_is_found(openai_client: openai.OpenAI, server: Server) -> None:
    """Without a cache key the nearest request is found by what both have in common, wherever it stands."""
    question = "Please tell me about the lighthouse keeper's third journey to the northern islands. " * 3
    stamps = ("2026-11-29T10:31:07Z", "2027-01-02T23:59:58Z")
    talks: list[Any] = [[system(f"{stamp} {RULES}"), user(question)] for stamp in stamps]
    _, answer = [
        openai_client.chat.completions.create(model=server.model, messages=talk, max_tokens=1) for talk in talks
    ]
    told = misses(answer)
    (miss,) = [miss for miss in told if miss["reason"] == "system"]
    assert miss["where"]["looks_like"] in {"time", "date"}
    assert miss["tokens"] > len(question)


def test_timestamp_before_rules_that_stay_is_found_whatever_is_asked(
    openai_client: openai.OpenAI, server: Server
) -> None:
    """Two requests that share no whole message are compared all the same: by the sentences that both hold."""
    rules = "Every answer names the harbour master's ledger. Never mention the price of amber to a stranger."
    asked = (("10:31:07", "Who is there?"), ("10:44:52", "What is the time?"))
    talks: list[Any] = [[system(f"It is {stamp} now. {rules}"), user(question)] for stamp, question in asked]
    _, answer = [
        openai_client.chat.completions.create(model=server.model, messages=talk, max_tokens=1) for talk in talks
    ]
    told = misses(answer)
    (miss,) = [miss for miss in told if miss["reason"] == "system"]
    assert (miss["where"]["message"], miss["where"]["looks_like"]) == ("messages[0]", "time")


def test_edited_message_is_found(openai_client: openai.OpenAI, server: Server) -> None:
    """A changed message in the middle is named by its place; what follows it is its cost."""
    talk = [system(RULES), user("The sky is blue today."), {"role": "assistant", "content": "Yes."}, user("Why is it?")]
    chat(openai_client, server, "edit", talk)
    talk[1] = user("The sky is grey today.")
    told = misses(chat(openai_client, server, "edit", talk))
    (miss,) = [miss for miss in told if miss["reason"] == "messages"]
    assert (miss["where"]["message"], miss["where"]["character"]) == ("messages[1]", len("The sky is "))


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_says_what_changed(anthropic_client: anthropic.Anthropic, server: Server, stream: bool) -> None:
    """`diagnostics` is answered in the API's own words, streamed or not."""

    def ask(text: str, **fields: Any) -> Any:
        body: dict[str, Any] = {
            "model": server.model,
            "max_tokens": 2,
            "system": text,
            "messages": [{"role": "user", "content": "Hello, who are you?"}],
            **fields,
        }
        if not stream:
            return anthropic_client.messages.create(**body)
        with anthropic_client.messages.stream(**body) as events:
            return events.get_final_message()

    first = ask(f"Anthropic {stream}. {RULES}", diagnostics={"previous_message_id": None})
    assert first.diagnostics is None
    same = ask(f"Anthropic {stream}. {RULES}", diagnostics={"previous_message_id": first.id})
    assert same.diagnostics is None
    other = ask(f"Anthropic {stream}! {RULES}", diagnostics={"previous_message_id": first.id})
    assert other.diagnostics.cache_miss_reason.type == "system_changed"
    assert other.diagnostics.cache_miss_reason.cache_missed_input_tokens > 50
    unknown = ask(RULES, diagnostics={"previous_message_id": "msg_unknown"})
    assert unknown.diagnostics.cache_miss_reason.type == "previous_message_not_found"


@pytest.mark.parametrize("stream", [False, True])
def test_openai_says_what_changed(openai_client: openai.OpenAI, server: Server, stream: bool) -> None:
    """`prompt_cache_diagnostics` is answered in the API's own words, streamed or not."""

    def ask(text: str, earlier: str | None, **fields: Any) -> Any:
        options = {"mode": "implicit"} | ({"comparison_response_id": earlier} if earlier else {})
        body: dict[str, Any] = {
            "model": server.model,
            "input": text,
            "instructions": f"OpenAI {stream}. {RULES}",
            "max_output_tokens": 2,
            "extra_body": {"prompt_cache_options": options},
            **fields,
        }
        if not stream:
            return openai_client.responses.create(**body)
        with openai_client.responses.create(stream=True, **body) as events:
            return list(events)[-1].response

    first = ask("Hello, who are you?", None)
    hit = ask("Hello, who are you?", first.id)
    assert hit.prompt_cache_diagnostics.type == "cache_hit"
    other = ask("Hello, what are you?", first.id)
    assert (other.prompt_cache_diagnostics.type, other.prompt_cache_diagnostics.reason) == (
        "cache_miss",
        "input_changed",
    )
    key = ask("Hello, who are you?", first.id, prompt_cache_key="other")
    assert key.prompt_cache_diagnostics.reason == "prompt_cache_key_changed"
    unknown = ask("Hello?", "resp_unknown")
    assert unknown.prompt_cache_diagnostics.type == "comparison_response_not_found"
