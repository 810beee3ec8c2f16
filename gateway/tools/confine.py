"""Writes llguidance grammars in which an answer's calls obey the tools' schemas; the parts that conventions share.

Pure text. Rules: the frame of a call is spelled literally, as models were trained to write it, so only its arguments
are a schema's, whose references keep their root; a tool that is not strict is confined as far as its schema is known to
llguidance, and where the model may choose not to call, only to an object; blanks end, as in every JSON here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.ask import Tool, ToolChoice
from gateway.grammars import GUIDANCE

ANY = "/(?s:.*)/"


def wanted(tools: Sequence[Tool], choice: ToolChoice) -> tuple[Tool, ...]:
    """Return the tools that the grammar is about; none where nothing is confined."""
    allowed = tuple(tool for tool in tools if choice.names is None or tool.name in choice.names)
    confined = choice.mode == "required" or (choice.mode == "auto" and any(tool.strict for tool in allowed))
    return allowed if confined else ()


def literal(text: str) -> str:
    """Spell text in Lark."""
    return json.dumps(text, ensure_ascii=False)


def marker(text: str, ids: Mapping[str, int]) -> str:
    """Spell a marker: as the special token that it is to the tokenizer, or as text."""
    return f"<[{ids[text]}]>" if text in ids else literal(text)


def arguments(tool: Tool, choice: ToolChoice) -> str:
    """Spell what a tool's arguments may be."""
    schema: dict[str, Any] = {"type": "object", "x-guidance": dict(GUIDANCE)}
    if tool.strict or choice.mode == "required":
        schema = {**tool.parameters, **schema}
    if not tool.strict:
        schema["x-guidance"]["lenient"] = True
    return f"%json {json.dumps(schema, ensure_ascii=False)}"


def objects(tools: Sequence[Tool], choice: ToolChoice, key: str) -> str:
    """Write the rules `call` and `call_0` …: each call is an object of a name and, under `key`, arguments."""
    rules = ["call: " + " | ".join(f"call_{index}" for index in range(len(tools)))]
    for index, tool in enumerate(tools):
        head = ("{", '"name"', ":", " ", literal(tool.name), ",", " ", f'"{key}"', ":", " ")
        spelled = " ".join(map(literal, head))  # in JSON's own lexemes, so that other JSON may stand beside a call
        rules.append(f"call_{index}: {spelled} {arguments(tool, choice)} {literal('}')}")
    return "\n".join(rules)


def several(rule: str, separator: str, choice: ToolChoice) -> str:
    """Spell one or more of a rule, or exactly one where calls may not be parallel."""
    return f"{rule} ({literal(separator)} {rule})*" if choice.parallel else rule


def without(*markers: str) -> str:
    """Spell text in which none of `markers` comes."""
    return " & ".join((ANY, *(f"~/(?s:.*){_pattern(text)}(?s:.*)/" for text in markers)))


def beginning(start: str) -> str:
    """Spell text that does not begin with the regex `start`."""
    return f"{ANY} & ~/{start}(?s:.*)/"


def announced(opening: str, ids: Mapping[str, int], body: str, choice: ToolChoice) -> str:
    """Write the rules of free text in which each `opening` must go on as `body`, at most once if not parallel."""
    times = "*" if choice.parallel else "?"
    if opening in ids:
        return f"start: tagged{times} TEXT\nTEXT: {without(opening)}\ntagged: TEXT {marker(opening, ids)} {body}"
    return (
        f"start: tagged{times} TAIL\nTEXT: {ANY}\nTAIL: {without(opening)}\n"
        f"head[lazy]: TEXT {literal(opening)}\ntagged: head {body}"
    )


def _pattern(text: str) -> str:
    return re.escape(text).replace("/", "\\/")
