"""What a comparison told, in the providers' own words: each of them reached, and read by their SDKs."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from anthropic.types import Message
from anthropic.types.cache_miss_reason import CacheMissReason
from msgspec.structs import replace
from openai.types.responses import Response
from openai.types.responses.response import PromptCacheDiagnostics, PromptCacheDiagnosticsCacheMiss
from pydantic import TypeAdapter

from gateway.api.diagnostics import anthropic_reason, openai_diagnostics
from gateway.compare import Divergence, Reason
from gateway.miss import Comparison
from gateway.prompt import Renderer
from tests.gateway.conftest import Gateway, StartGateway
from tests.gateway.diagnosed import answer_of
from tests.gateway.scripted import CARD
from tests.gateway.wire import MESSAGES, RESPONSES, body
from tests.tiny_model import CHATML, save_tiny_tokenizer

REASONS: tuple[Reason, ...] = get_args(Reason)
ANTHROPIC = TypeAdapter(CacheMissReason)
OPENAI = TypeAdapter(PromptCacheDiagnostics)
SETTINGS = {
    "response_format": "text_format_changed",
    "reasoning_effort": "reasoning_effort_changed",
    "verbosity": "verbosity_changed",
    "service_tier": "service_tier_changed",
}
# The settings come behind the messages, so that all of these are the same when a setting is another.
ASKING = CHATML + "".join(f"{{{{ {name} | default('') }}}} " for name in SETTINGS)
TALK = [("user", "Where do you keep the atlases?"), ("assistant", "Upstairs."), ("user", "And the novels?")]


def compared(reason: Reason, **fields: Any) -> Comparison:
    """A comparison that found 30 tokens lost behind 10 that are the same."""
    shape = {name: fields.pop(name) for name in ("compacted",) if name in fields}
    found = Divergence(reason=reason, token=10, until=40, **shape)
    return Comparison(earlier=True, divergence=found, **fields)


def missed(reason: str, lost: int = 30) -> dict[str, Any]:
    """What OpenAI's diagnostics say of a miss."""
    return {"type": "cache_miss", "reason": reason, "cache_missed_tokens": lost, "comparison_reusable_tokens": 10}


def anthropic_word(comparison: Comparison | None) -> str | None:
    """Anthropic's word for a comparison, if their SDK knows it; a change has its cost."""
    reason = anthropic_reason(comparison)
    if reason is None:
        return None
    told = msgspec.to_builtins(reason)
    assert ANTHROPIC.validate_python(told).to_dict() == told
    assert ("cache_missed_input_tokens" in told) == reason.type.endswith("_changed")
    return reason.type


def openai_word(comparison: Comparison | None) -> dict[str, Any]:
    """OpenAI's diagnostics of a comparison, if their SDK knows them."""
    told: dict[str, Any] = msgspec.to_builtins(openai_diagnostics(comparison))
    assert OPENAI.validate_python(told).to_dict() == told
    return told


def test_every_change_has_anthropics_word_or_is_unavailable() -> None:
    """Four changes have a word, no change has none, and the template's doing is unavailable."""
    assert {reason: anthropic_word(compared(reason)) for reason in REASONS} == {
        "new": None,
        "none": None,
        "model": "model_changed",
        "tools": "tools_changed",
        "system": "system_changed",
        "messages": "messages_changed",
        "template": "unavailable",
        "retokenised": "unavailable",
    }


def test_anthropics_word_is_of_the_text_alone() -> None:
    """Neither the cache key nor what was read changes it."""
    for reason, partition, read in product(REASONS, (False, True), (False, True)):
        assert anthropic_word(compared(reason, partition=partition, read=read)) == anthropic_word(compared(reason))


def test_every_change_has_openais_word_or_is_unavailable() -> None:
    """Four changes have a word, an earlier prompt that was read whole is a hit, and all else is unavailable."""
    hit, unavailable = {"type": "cache_hit"}, {"type": "unavailable"}
    changes: dict[str, Any] = {
        "model": missed("model_changed"),
        "tools": missed("tools_changed"),
        "system": missed("input_changed"),
        "messages": missed("input_changed"),
    }
    changes["template"] = unavailable
    unchanged = {"new", "none", "retokenised"}
    assert {reason: openai_word(compared(reason)) for reason in REASONS} == changes | dict.fromkeys(unchanged, hit)
    unread = {reason: openai_word(compared(reason, read=False)) for reason in REASONS}
    assert unread == changes | dict.fromkeys(unchanged, unavailable)


@pytest.mark.parametrize("reason", REASONS)
def test_another_cache_key_comes_before_all_but_the_model(reason: Reason) -> None:
    """Under another key nothing is shared, so all up to the end of the change is lost."""
    word = "model_changed" if reason == "model" else "prompt_cache_key_changed"
    assert openai_word(compared(reason, partition=True)) == missed(word, 40)


def test_a_compacted_conversation_is_told_before_its_input() -> None:
    """Messages that became a summary have a word of their own."""
    assert openai_word(compared("messages", compacted=True)) == missed("context_compacted")
    assert openai_word(compared("messages", compacted=True, partition=True)) == missed("prompt_cache_key_changed", 40)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("reason", REASONS)
def test_a_setting_is_the_cause_only_where_the_template_is(name: str, reason: Reason) -> None:
    """A setting that changed is named where the same parts render otherwise, and nowhere else."""
    told = openai_word(compared(reason, settings=(name,)))
    assert told == (missed(SETTINGS[name]) if reason == "template" else openai_word(compared(reason)))


def test_what_is_not_remembered_is_not_found_and_what_failed_is_unavailable() -> None:
    """No earlier request, and no comparison at all."""
    nothing = Comparison(earlier=False)
    assert (anthropic_word(nothing), anthropic_word(None)) == ("previous_message_not_found", "unavailable")
    assert openai_word(nothing) == {"type": "comparison_response_not_found"}
    assert openai_word(None) == {"type": "unavailable"}


def test_all_words_of_both_sdks_are_spoken() -> None:
    """Whatever their types know, some comparison is told by it."""
    every = [None, Comparison(earlier=False), *(compared(reason, read=False) for reason in REASONS)]
    every += [compared("none"), compared("none", partition=True), compared("messages", compacted=True)]
    every += [compared("template", settings=(name,)) for name in SETTINGS]
    known = {get_args(one.model_fields["type"].annotation)[0] for one in get_args(get_args(CacheMissReason)[0])}
    assert {anthropic_word(one) for one in every} - {None} == known
    known = {get_args(one.model_fields["type"].annotation)[0] for one in get_args(get_args(PromptCacheDiagnostics)[0])}
    assert {openai_word(one)["type"] for one in every} == known
    reasons = set(get_args(PromptCacheDiagnosticsCacheMiss.model_fields["reason"].annotation))
    assert {openai_word(one).get("reason") for one in every} - {None} == reasons


@pytest.fixture
async def asking(start_gateway: StartGateway, tmp_path: Path) -> Gateway:
    """A gateway whose template asks for the settings; the engine read all that it could."""
    return await start_gateway(speaking=Renderer.load(save_tiny_tokenizer(tmp_path, ASKING)))


def tool(name: str) -> dict[str, Any]:
    """A function as the Responses API takes it."""
    return {"type": "function", "name": name, "parameters": {"type": "object"}, "strict": False}


FIRST: dict[str, Any] = {
    "instructions": "Be brief.",
    "input": [{"role": role, "content": text} for role, text in TALK],
    "tools": [tool("weather")],
    "prompt_cache_key": "one",
    "text": {"verbosity": "low", "format": {"type": "text"}},
    "reasoning": {"effort": "low"},
    "service_tier": "auto",
}


async def respond(gateway: Gateway, earlier: str | None = None, **fields: Any) -> Response:
    """Ask, and read the answer as their SDK does."""
    options = {"prompt_cache_options": {"comparison_response_id": earlier}} if earlier else {}
    said = {"model": gateway.backend.model, **FIRST, **options, **fields}
    return Response.model_validate(await answer_of(gateway, RESPONSES, said), strict=False)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"prompt_cache_key": "two"}, "prompt_cache_key_changed"),
        ({"tools": [tool("weather"), tool("time")]}, "tools_changed"),
        ({"instructions": "Be long."}, "input_changed"),
        ({"input": "Where is it?"}, "input_changed"),
        ({"input": [{"role": "user", "content": "We spoke of atlases."}, FIRST["input"][2]]}, "context_compacted"),
        ({"text": {"verbosity": "low", "format": {"type": "json_object"}}}, "text_format_changed"),
        ({"text": {"verbosity": "high", "format": {"type": "text"}}}, "verbosity_changed"),
        ({"reasoning": {"effort": "high"}}, "reasoning_effort_changed"),
        ({"service_tier": "flex"}, "service_tier_changed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
async def test_openais_reasons_on_the_wire(asking: Gateway, fields: dict[str, Any], reason: str) -> None:
    """Every change that a client can make to the same request is told by its name."""
    first = await respond(asking)
    told = (await respond(asking, first.id, **fields)).prompt_cache_diagnostics
    assert isinstance(told, PromptCacheDiagnosticsCacheMiss)
    assert (told.reason, told.cache_missed_tokens > 0) == (reason, True)


async def test_openais_other_words_on_the_wire(asking: Gateway) -> None:
    """Another model, a hit, the same text that was not read, and an answer that nobody knows."""
    first = await respond(asking)
    unread = await respond(asking, first.id)
    prompt = unread.usage.input_tokens if unread.usage else 0
    asking.script(["hi"], read=prompt - 1)
    told = [unread, await respond(asking, first.id), await respond(asking, "resp_unknown")]
    asking.backend.model, asking.backend.card = "other", replace(CARD, name="other")
    told.append(await respond(asking, first.id))
    diagnostics = [answer.prompt_cache_diagnostics for answer in told]
    assert [one.type for one in diagnostics if one] == [
        "unavailable",
        "cache_hit",
        "comparison_response_not_found",
        "cache_miss",
    ]
    assert isinstance(diagnostics[-1], PromptCacheDiagnosticsCacheMiss)
    assert diagnostics[-1].reason == "model_changed"


async def test_no_diagnostics_where_none_were_asked_for(asking: Gateway) -> None:
    """An answer to a request that names no other has none."""
    assert (await respond(asking)).prompt_cache_diagnostics is None


ANTHROPIC_FIRST: dict[str, Any] = {
    "system": "Be brief.",
    "messages": [{"role": role, "content": text} for role, text in TALK],
    "tools": [{"name": "weather", "input_schema": {"type": "object"}}],
}


async def converse(gateway: Gateway, earlier: str | None, **fields: Any) -> Message:
    """Ask, and read the answer as their SDK does."""
    said = {**ANTHROPIC_FIRST, "diagnostics": {"previous_message_id": earlier}, **fields}
    return Message.model_validate(
        await answer_of(gateway, MESSAGES, body(MESSAGES, model=gateway.backend.model) | said)
    )


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"messages": [*ANTHROPIC_FIRST["messages"], {"role": "assistant", "content": "Here."}]}, None),
        ({"system": "Be long."}, "system_changed"),
        ({"tools": [{"name": "time", "input_schema": {"type": "object"}}]}, "tools_changed"),
        ({"messages": ANTHROPIC_FIRST["messages"][2:]}, "messages_changed"),
        ({"diagnostics": {"previous_message_id": "msg_unknown"}}, "previous_message_not_found"),
    ],
    ids=["same", "appended", "system", "tools", "messages", "unknown"],
)
async def test_anthropics_reasons_on_the_wire(gateway: Gateway, fields: dict[str, Any], reason: str | None) -> None:
    """The first has nothing to be compared with; then every change is told by its name, and none by null."""
    first = await converse(gateway, None)
    assert first.diagnostics is None
    told = (await converse(gateway, first.id, **fields)).diagnostics
    assert (told and told.cache_miss_reason and told.cache_miss_reason.type) == reason


async def test_another_model_has_anthropics_word_on_the_wire(gateway: Gateway) -> None:
    """The same conversation with another model says so."""
    first = await converse(gateway, None)
    gateway.backend.model, gateway.backend.card = "other", replace(CARD, name="other")
    told = (await converse(gateway, first.id)).diagnostics
    assert told is not None
    assert told.cache_miss_reason is not None
    assert told.cache_miss_reason.type == "model_changed"


async def test_the_templates_doing_is_unavailable_on_the_wire(start_gateway: StartGateway, tmp_path: Path) -> None:
    """Where the last turn renders otherwise as history, neither API has a word for the loss."""
    text = "{{ message['content'] }}"
    template = CHATML.replace(text, "{% if loop.last %}(In English.) {% endif %}" + text)
    gateway = await start_gateway(speaking=Renderer.load(save_tiny_tokenizer(tmp_path, template)))
    gateway.script(["hi"], read=32)
    message = await converse(gateway, None, messages=ANTHROPIC_FIRST["messages"][:1])
    told = (await converse(gateway, message.id)).diagnostics
    assert told is not None
    assert told.cache_miss_reason is not None
    assert told.cache_miss_reason.type == "unavailable"
    response = await respond(gateway, input=FIRST["input"][:1])
    diagnostics = (await respond(gateway, response.id)).prompt_cache_diagnostics
    assert (diagnostics and diagnostics.type) == "unavailable"
