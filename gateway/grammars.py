"""The form that a client wants its answer in, as the llguidance grammar that confines it.

Checked here, so that what the engine is given compiles. Knows no API and no tokenizer. Rule: llguidance is imported
by the first request that needs it; it brings no torch. Blanks between JSON's signs are bounded: a model that would
write nothing else has to go on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, assert_never

from gateway.ask import OutputForm
from gateway.canonical import canonical
from gateway.errors import BadRequest

MAX_BYTES = 256 * 1024
GUIDANCE: Final[Mapping[str, str]] = {"whitespace_pattern": r"[ \t\r\n]{0,32}"}  # a line's end and eight levels deep
_MESSAGE_CHARS = 500  # llguidance repeats the grammar in its complaints


def grammar_of(form: OutputForm) -> str:
    """Return the grammar of what `form` asks for, or refuse it, naming its field."""
    from llguidance import LLMatcher  # noqa: PLC0415 - a gateway that is asked for no form needs none of it
    from llguidance.gbnf_to_lark import any_to_lark  # noqa: PLC0415

    if form.kind == "json_schema":
        canonical(form.schema, path=form.path)  # refuses what is nested too deep
    _check_size(form)
    match form.kind:
        case "json_object":
            grammar = LLMatcher.grammar_from_json_schema({"type": "object", "x-guidance": GUIDANCE})
        case "json_schema":
            grammar = LLMatcher.grammar_from_json_schema({"x-guidance": GUIDANCE, **form.schema})
        case "regex":
            grammar = LLMatcher.grammar_from_regex(form.text)
        case "lark":
            grammar = LLMatcher.grammar_from_lark(form.text)
        case "gbnf":
            try:
                grammar = LLMatcher.grammar_from_lark(any_to_lark(form.text))
            except Exception as error:  # whatever stops the converter is in the client's text
                raise _refusal(form, str(error)) from error
        case _:
            assert_never(form.kind)
    complaint = _complaint(grammar)
    if complaint:
        raise _refusal(form, complaint)
    return grammar


def check(grammar: str, *, param: str) -> str:
    """Return a grammar that the gateway wrote around a client's schemas, or refuse them in the name of `param`."""
    complaint = _complaint(grammar) if grammar else ""
    if complaint:
        raise BadRequest(f"{param!r} cannot be compiled: {_short(complaint)}", param=param, code="invalid_schema")
    return grammar


def either(form: str, calls: str) -> str:
    """Return the grammar of an answer that obeys one of two grammars: that of a form, or that of calls, which is Lark.

    A form that is JSON is written into the calls' grammar: llguidance reads the lexemes of one grammar side by side,
    but having begun one of two grammars' longer lexemes it does not come back to the shorter one.
    """
    if form.lstrip().startswith("{"):
        (part,) = json.loads(form)["grammars"]
        if part.get("json_schema") is not None:
            rules = calls.replace("start:", "called:", 1)
            return f"start: formed | called\nformed: %json {json.dumps(part['json_schema'])}\n{rules}"
    named = [_named(form, "first"), _named(calls, "second")]
    return json.dumps({"grammars": [{"lark_grammar": "start: @first | @second"}, *named]})


def _named(grammar: str, name: str) -> dict[str, object]:
    """Return one grammar as part of several. What is no JSON is Lark."""
    if not grammar.lstrip().startswith("{"):
        return {"name": name, "lark_grammar": grammar}
    (part,) = json.loads(grammar)["grammars"]
    return {**part, "name": name}


def _complaint(grammar: str) -> str:
    """Return why a grammar does not compile; warnings are none."""
    from llguidance import LLMatcher  # noqa: PLC0415 - as above

    wrong, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    return messages[0] if wrong else ""


def _check_size(form: OutputForm) -> None:
    written = json.dumps(form.schema) if form.kind == "json_schema" else form.text
    if len(written.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise _refusal(form, f"it is larger than {MAX_BYTES} bytes")


def _refusal(form: OutputForm, complaint: str) -> BadRequest:
    code = "invalid_schema" if form.kind == "json_schema" else "invalid_grammar"
    return BadRequest(f"{form.path!r} cannot be compiled: {_short(complaint)}", param=form.path, code=code)


def _short(complaint: str) -> str:
    return complaint if len(complaint) <= _MESSAGE_CHARS else complaint[:_MESSAGE_CHARS] + "…"
