"""Which grammar an answer is confined to: that of its tool calls, that of its form, or the choice between the two.

Pure but for the thread in which a client's own grammar is checked. Rule: a request that asks for neither pays nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from gateway.ask import Ask
from gateway.grammars import check, either, grammar_of
from gateway.tools import ToolFormat


async def confine(ask: Ask, form: ToolFormat) -> str:
    """Return the llguidance grammar of a request's answer, empty for none. Raises BadRequest for one that is wrong."""
    if ask.output is None and not ask.tools:
        return ""
    return await asyncio.get_running_loop().run_in_executor(None, grammar_for, ask, form)


def grammar_for(ask: Ask, form: ToolFormat) -> str:
    """Do the same here and now."""
    calls = check(form.grammar(ask.tools, ask.tool_choice), param="tools") if ask.tools else ""
    if ask.output is None or ask.tool_choice.mode == "required":
        return calls
    answer = grammar_of(ask.output)
    if not ask.tools or ask.tool_choice.mode == "none":
        return answer
    called = check(form.grammar(ask.tools, replace(ask.tool_choice, mode="required")), param="tools")
    return either(answer, called) if called else answer
