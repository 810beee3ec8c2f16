"""The form of an answer, as a grammar."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer

from gateway.ask import OutputForm
from gateway.errors import BadRequest
from gateway.grammars import MAX_BYTES, check, grammar_of
from tests.tiny_model import tiny_tokenizer


@cache
def _guide() -> LLTokenizer:
    return from_tokenizer(tiny_tokenizer())


def accepts(form: OutputForm, answer: str) -> bool:
    """Whether an answer may be exactly this."""
    matcher = LLMatcher(_guide(), grammar_of(form), log_level=0)
    tokens = tiny_tokenizer().encode(answer, add_special_tokens=False)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("form", "right", "wrong"),
    [
        (OutputForm(kind="json_object"), ["{}", '{ "a": [1] }'], ["[]", "1", "text", "{} "]),
        (
            OutputForm(kind="json_schema", schema=SCHEMA),
            ['{"a": 1}', '{"a":-2}'],
            ["{}", '{"a": "x"}', '{"a": 1, "b": 2}'],
        ),
        (OutputForm(kind="regex", text=r"[a-c]{2}\d?"), ["ab", "cc7"], ["a", "abx", "ab77"]),
        (
            OutputForm(kind="lark", text='start: "yes" | "no" NUMBER\nNUMBER: /[0-9]+/'),
            ["yes", "no42"],
            ["no", "maybe"],
        ),
        (OutputForm(kind="gbnf", text='root ::= "a" item+\nitem ::= [0-9] | "-"'), ["a1-2"], ["a", "b1"]),
    ],
    ids=lambda value: value.kind if isinstance(value, OutputForm) else "",
)
def test_each_form_confines(form: OutputForm, right: list[str], wrong: list[str]) -> None:
    """What a form allows is accepted, and nothing else."""
    assert [accepts(form, answer) for answer in right] == [True] * len(right)
    assert [accepts(form, answer) for answer in wrong] == [False] * len(wrong)


def nested(depth: int) -> dict[str, Any]:
    """A schema so deep."""
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("form", "code"),
    [
        (OutputForm(kind="json_schema", schema={"type": "nonsense"}), "invalid_schema"),
        (OutputForm(kind="json_schema", schema={"not": {"type": "object"}}), "invalid_schema"),
        (OutputForm(kind="json_schema", schema={"$ref": "#/$defs/missing"}), "invalid_schema"),
        (OutputForm(kind="json_schema", schema=nested(100)), "too_deep"),
        (OutputForm(kind="json_schema", schema=nested(100_000)), "too_deep"),
        (OutputForm(kind="json_schema", schema={"description": "x" * MAX_BYTES}), "invalid_schema"),
        (OutputForm(kind="regex", text="a("), "invalid_grammar"),
        (OutputForm(kind="regex", text="(" * 100_000), "invalid_grammar"),
        (OutputForm(kind="regex", text="x" * (MAX_BYTES + 1)), "invalid_grammar"),
        (OutputForm(kind="lark", text='start: "a'), "invalid_grammar"),
        (OutputForm(kind="lark", text="start: missing"), "invalid_grammar"),
        (OutputForm(kind="lark", text="start: " + "(" * 100_000), "invalid_grammar"),
        (OutputForm(kind="gbnf", text="root ::= ("), "invalid_grammar"),
        (OutputForm(kind="gbnf", text="root ::= " + "(" * 100_000), "invalid_grammar"),
        (OutputForm(kind="gbnf", text='other ::= "a"'), "invalid_grammar"),
    ],
    ids=lambda value: value.kind if isinstance(value, OutputForm) else value,
)
def test_what_does_not_compile_is_refused(form: OutputForm, code: str) -> None:
    """A form that the engine could not use is the client's mistake, told in few words in the name of its field."""
    with pytest.raises(BadRequest) as refused:
        grammar_of(form)
    assert (refused.value.param, refused.value.code) == ("response_format", code)
    assert len(str(refused.value)) < 700


@pytest.mark.parametrize("form", [OutputForm(kind="json_object"), OutputForm(kind="json_schema", schema=SCHEMA)])
def test_blanks_in_json_come_to_an_end(form: OutputForm) -> None:
    """A line's end and eight levels of indentation are allowed, and not one blank more."""
    assert accepts(form, "{\n" + " " * 31 + '"a": 1\n}')
    assert not accepts(form, "{\n" + " " * 32 + '"a": 1\n}')


def test_a_grammar_around_schemas_is_checked() -> None:
    """What the gateway wrote around a client's schema is refused in the client's words, and nothing is nothing."""
    assert check("", param="tools") == ""
    assert check('start: "a"', param="tools") == 'start: "a"'
    with pytest.raises(BadRequest) as refused:
        check('start: %json {"type": "nonsense"}', param="tools")
    assert (refused.value.param, refused.value.code) == ("tools", "invalid_schema")


def test_only_a_form_brings_llguidance_and_nothing_brings_torch() -> None:
    """The module loads without llguidance, and a grammar is made without torch, numpy or transformers."""
    program = (
        "import sys; from gateway.ask import OutputForm; from gateway.grammars import grammar_of\n"
        "assert 'llguidance' not in sys.modules\n"
        "grammar_of(OutputForm(kind='gbnf', text='root ::= \"a\"'))\n"
        "assert 'llguidance' in sys.modules\n"
        "assert not {'torch', 'numpy', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
