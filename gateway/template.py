"""A model's chat template: messages in, text out, in a Jinja sandbox.

Owns the compiled template and the names it may use. A template comes with the model, so it is not trusted: it sees
plain JSON values only and cannot reach Python. Its clock is an argument, so that a date in the prompt can be tested,
and stands still for a day.
Rule: messages that the template cannot write, whether it refuses them (`raise_exception`) or fails on them, are the
caller's error, not ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.runtime
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.errors import BadRequest
from gateway.signs import signs_behind, with_keys

Message = Mapping[str, Any]

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
OURS: Final = frozenset({"messages", "tools", "add_generation_prompt"})  # names that no client's argument may have
_SIGNS: Final = "keepwarm_signs"
_FAILURES = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class _GenerationBlocks(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; for serving its body is plain text."""

    tags = {"generation"}  # noqa: RUF012 - an instance attribute by Jinja's typing

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _day(time: datetime) -> datetime:
    """Return the day's beginning: a prompt that tells the time would never begin as the one before it."""
    return time.replace(hour=0, minute=0, second=0, microsecond=0)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


@jinja2.pass_context
def _tojson(
    context: jinja2.runtime.Context,
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - the signature that templates call it with
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """JSON as the model saw it in training: Jinja's own filter escapes for HTML."""
    signs: str = context.get(_SIGNS, "")
    value = with_keys(value) if signs else value
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    if ensure_ascii:
        for sign in signs:
            text = text.replace(json.dumps(sign).strip('"'), sign)
    return signs_behind(text, signs) if signs else text


class ChatTemplate:
    """One compiled template. `render` may run in several threads at once."""

    def __init__(self, source: str, *, names: Mapping[str, str], clock: Callable[[], datetime]) -> None:
        """Compile `source`; `names` are the special tokens it may write, such as `bos_token`."""
        self.source = source
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals |= {
            "raise_exception": _refuse,
            "strftime_now": lambda form: _day(clock()).strftime(form),
        }
        self._names = dict(names)
        self._template = environment.from_string(source)
        self.arguments = (
            frozenset(jinja2.meta.find_undeclared_variables(environment.parse(source))) - self._names.keys()
        )

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] = (),
        *,
        arguments: Mapping[str, Any] = NOTHING,
        answer_begins: bool = True,
        signs: str = "",
    ) -> str:
        """Write the conversation as the model expects it, up to where its answer begins.

        `arguments` are more names for the template; `signs` are the characters that stand in for or mark something in
        what it is given, so that JSON keeps them as they are.
        """
        variables = {
            **arguments,
            **self._names,
            "messages": list(messages),
            "tools": list(tools) or None,
            "add_generation_prompt": answer_begins,
            _SIGNS: signs,
        }
        try:
            return self._template.render(variables)
        except _FAILURES as error:
            raise BadRequest(f"The model's chat template refused these messages: {error}", param="messages") from error
