"""A model's chat template: messages in, text out, in a Jinja sandbox.

Owns the compiled template and the names it may use. A template comes with the model, so it is not trusted: it sees
plain JSON values only and cannot reach Python. Its clock is an argument, so that a date in the prompt can be tested.
Rule: a refusal by the template (`raise_exception`) is the caller's error, not ours.
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
from gateway.signs import signs_behind

Message = Mapping[str, Any]

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_SIGNS: Final = "keepwarm_signs"


class _GenerationBlocks(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; for serving its body is plain text."""

    tags = {"generation"}  # noqa: RUF012 - an instance attribute by Jinja's typing

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


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
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return signs_behind(text, context.get(_SIGNS, ""))


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
            "strftime_now": lambda form: clock().strftime(form),
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

        `arguments` are more names for the template; `signs` are the characters that mark places in what it is given.
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
        except jinja2.TemplateError as error:
            raise BadRequest(f"The model's chat template refused these messages: {error}", param="messages") from error
