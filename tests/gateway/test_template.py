"""What a chat template is given beside messages: names, the clock, control tokens of its own."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tokenizers import processors

from gateway.ask import Ask
from gateway.encoding import Encoder
from gateway.errors import BadRequest
from gateway.prompt import Renderer
from gateway.template import ChatTemplate
from tests.gateway.chats import (
    ASK,
    CLOCK,
    WEATHER,
    call,
    ids,
    nested,
    styles,
    text,
)
from tests.gateway.templates import LLAMA, MISTRAL, NOON, QWEN, Style, tokenizer

NAMES = (
    (QWEN, "enable_thinking", False),
    (LLAMA, "date_string", "01 Feb 2020"),
    (LLAMA, "tools_in_user_message", False),
)


@pytest.mark.parametrize(("style", "name", "value"), NAMES, ids=[name for _, name, _ in NAMES])
def test_template_arguments_shape_the_prompt(style: Style, name: str, value: object) -> None:
    """Each name that a template reads changes its prompt."""
    renderer = style.renderer()
    assert ids(renderer, replace(ASK, template_arguments={name: value})) != ids(renderer)


@styles
@pytest.mark.parametrize(
    "name", ["nonsense", "messages", "tools", "add_generation_prompt", "bos_token", "strftime_now", "keepwarm_signs"]
)
def test_names_that_the_template_does_not_leave_to_clients_are_refused(style: Style, name: str) -> None:
    """Neither unknown names nor the gateway's own may be set."""
    with pytest.raises(BadRequest) as refused:
        style.renderer().made(replace(ASK, template_arguments={name: 1}))
    assert (refused.value.param, refused.value.code) == (f"chat_template_kwargs.{name}", "unknown_name")


def test_a_value_that_breaks_the_template_is_the_callers_error() -> None:
    """A number where the template joins text is refused, not a failure of the gateway."""
    with pytest.raises(BadRequest, match="refused these messages"):
        LLAMA.renderer().made(replace(ASK, template_arguments={"date_string": 7}))


@styles
@pytest.mark.parametrize("canonical", [True, False])
def test_deep_values_are_refused_in_the_name_of_their_field(style: Style, canonical: bool) -> None:
    """Schemas, arguments and template arguments of any depth are refused before they are written."""
    renderer = style.renderer(canonical=canonical)
    deep = nested(5_000)
    asks = {
        "tools[1]": replace(ASK, tools=(WEATHER, replace(CLOCK, parameters=deep))),
        "messages": call(arguments=deep),
    }
    if style.arguments:
        name = style.arguments[0]
        asks[f"chat_template_kwargs.{name}"] = replace(ASK, template_arguments={name: deep})
    for path, ask in asks.items():
        with pytest.raises(BadRequest) as refused:
            renderer.made(ask)
        assert (refused.value.param, refused.value.code) == (path, "too_deep")


def test_the_clock_is_given_and_stands_still_for_a_day() -> None:
    """A date in the prompt comes from the given clock, the same all day, and another the next day."""
    now = [NOON]
    renderer = LLAMA.renderer(clock=lambda: now[0])
    first = ids(renderer)
    now[0] = datetime(2026, 3, 1, 23, 59, tzinfo=UTC)
    assert ids(renderer) == first
    assert "Today Date: 01 Mar 2026" in text(renderer)
    now[0] += timedelta(minutes=1)
    assert "Today Date: 02 Mar 2026" in text(renderer)
    seconds = Style(name="s", source="{{ strftime_now('%H:%M:%S') }}", specials=("<s>",))
    assert text(seconds.renderer(clock=lambda: now[0] + timedelta(seconds=7))) == "00:00:00"


@styles
def test_bos_is_written_once(style: Style) -> None:
    """The template's BOS is the only one, and a prompt without a template has the tokenizer's default."""
    renderer = style.renderer()
    if style.bos:
        bos = renderer._encoder.special_ids[style.bos]
        assert (ids(renderer)[0], ids(renderer).count(bos)) == (bos, 1)
    assert ids(renderer, Ask(id="a", model="m", raw="hi")) == renderer._encoder.encode("hi")


@pytest.mark.parametrize("adds", [True, False])
def test_raw_prompts_begin_as_the_tokenizer_begins(adds: bool) -> None:
    """Where the tokenizer adds BOS by itself, a raw prompt has one and a chat still has only its template's."""
    made = tokenizer(MISTRAL.specials)
    if adds:
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    template = ChatTemplate(MISTRAL.source, names={"bos_token": "<s>"}, clock=lambda: NOON)
    renderer = Renderer(Encoder(made), template)
    assert ids(renderer, Ask(id="a", model="m", raw="hi")).count(0) == adds
    assert ids(renderer).count(0) == 1
