"""The three tenants of `keepwarm demo --traffic`: their policies, their texts, and the bodies of their requests. Pure.

Rule: what is said follows from the plan and from what was answered before, so that equal plans make equal prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.demo.handbook import HANDBOOK
from gateway.demo.scenario import (
    CODING,
    LONG_TTL,
    REPORTS,
    REPORTS_TTL,
    SHORT_TTL,
    SUPPORT,
    Pace,
    Send,
)

Json = dict[str, Any]
History = Sequence[tuple[str, str]]  # role and text, oldest first

NOBODYS_MODEL: Final = "smollm2-turbo"  # what the refused request asks for
PREFIX: Final = "demo-"  # of the policies' names


def policy_name(tenant: str) -> str:
    """Return the name of the policy that the demo makes for a tenant."""
    return PREFIX + tenant


def policies(pace: Pace) -> list[Json]:
    """Return the three policies, without versions: TTLs of the hour, as short as the hour is."""
    short, long = pace.ttl(SHORT_TTL), pace.ttl(LONG_TTL)
    return [
        _policy(SUPPORT, default_ttl=short, allowed_ttls=[short, long], max_ttl=long, priority=60),
        _policy(CODING, default_ttl=short, allowed_ttls=[short], max_ttl=short),
        reports_policy(pace, REPORTS_TTL),
    ]


def reports_policy(pace: Pace, minutes: float) -> Json:
    """Return the policy of the reports with a TTL of so many minutes of the hour."""
    ttl = pace.ttl(minutes)
    return _policy(REPORTS, default_ttl=ttl, allowed_ttls=[ttl], max_ttl=ttl, priority=30)


def _policy(tenant: str, **fields: object) -> Json:
    return {"name": policy_name(tenant), "tenant": tenant, **fields}


def body(send: Send, history: History, *, model: str, clock: str) -> Json:
    """Return the body of a request after `history`. `clock` is the time that a bad deploy writes into it."""
    asked = model if send.ending != "refused" else NOBODYS_MODEL
    system, turns = _said(send, history, clock)
    if send.api == "messages":
        return _messages_body(send, asked, system, turns)
    return {
        "model": asked,
        "messages": [{"role": "system", "content": system}] + [{"role": who, "content": text} for who, text in turns],
        "max_tokens": send.answer,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **({"tools": TOOLS} if send.tenant == CODING else {}),
    }


def warmings(model: str) -> list[tuple[str, Json]]:
    """Return who makes which prompt warm before the hour begins: the agent and the first report."""
    prewarm = {"model": model, "temperature": 0, "prompt_cache_options": {"prewarm": True}}
    agent = [{"role": "system", "content": AGENT}, {"role": "user", "content": question(CODING, 0, 0)}]
    report = [{"role": "system", "content": _report(0)}, {"role": "user", "content": question(REPORTS, 0, 0)}]
    return [(CODING, {**prewarm, "messages": agent, "tools": TOOLS}), (REPORTS, {**prewarm, "messages": report})]


def question(tenant: str, talk: int, turn: int) -> str:
    """Return what is asked in a turn of a conversation."""
    if tenant == SUPPORT:
        return f"{_WORRIES[(talk + turn) % len(_WORRIES)]} (ticket {4100 + talk})"
    if tenant == CODING:
        return f"Here is tides_{talk}{turn}.py. What would you change first?\n\n{_SOURCE.format(turn=turn, talk=talk)}"
    return f"Write run {turn + 1} of report {'AB'[talk % 2]} in one line."


def _said(send: Send, history: History, clock: str) -> tuple[str, list[tuple[str, str]]]:
    talk = int(send.talk.rpartition("-")[2])
    asked = ("user", question(send.tenant, talk, send.turn))
    if send.tenant == REPORTS:  # each run stands alone
        return _report(talk), [asked]
    system = HELP_DESK if send.tenant == SUPPORT else AGENT
    stamp = f"Now: 2026-03-02T{clock}:{send.turn * 7 % 60:02d}Z. " if send.stamped else ""
    return stamp + system, [*history, asked]


def _report(talk: int) -> str:
    return f"Report {'AB'[talk % 2]}. {_REPORT}\n\n{_chapters(9 + 3 * talk, 2)}"


def _messages_body(send: Send, model: str, system: str, turns: Sequence[tuple[str, str]]) -> Json:
    """Mark the help desk's system prompt for an hour, and all that the agent says for five minutes."""
    marked = {"type": "ephemeral", "ttl": "1h" if send.tenant == SUPPORT else "5m"}
    messages: list[Json] = [{"role": who, "content": [{"type": "text", "text": text}]} for who, text in turns]
    if send.tenant == CODING:
        messages[-1]["content"][0]["cache_control"] = marked
    return {
        "model": model,
        "system": [{"type": "text", "text": system, "cache_control": marked}],
        "messages": messages,
        "max_tokens": send.answer,
        "temperature": 0,
        "stream": True,
        **({"tools": ANTHROPIC_TOOLS} if send.tenant == CODING else {}),
    }


def _chapters(first: int, count: int) -> str:
    """Return chapters of the handbook."""
    parts = HANDBOOK.split("\n## ")
    return "\n".join(f"## {part.strip()}" for part in parts[first : first + count])


_REPORT: Final = "From the rules below, list what the watch officer has to look at today, shortest first."
_WORRIES: Final = (
    "I arrive tonight with a boat of eleven metres. Where do I lie?",
    "What do I pay for two nights, and when?",
    "The light at the end of the wall is red. May I wait at the buoy?",
    "My neighbour's lines are slack. Whom do I tell?",
    "Is there electricity on pontoon B, and what does it cost?",
    "Fog is coming in. Does the horn sound at night as well?",
    "May I anchor near Gull Rock until the morning?",
)

HELP_DESK: Final = (
    "You are the help desk of the harbour of Saltmarsh Ness. Answer in one short sentence, politely, from these "
    f"chapters alone.\n\n{_chapters(2, 4)}"
)

AGENT: Final = """\
You are a coding agent in the repository of the harbour's tide tables. Work in small steps. Read before you write, and
run the tests after each change. Never touch what you were not asked to touch.
Rules of the house: functions are short and say what they do; a name is a word, not an abbreviation; times are in UTC
and heights in centimetres above the sill; a table is sorted by time and has no gaps; a number that came from the gauge
is never rounded before it is stored. Tests compare with exact values and need no network. A change of a public name
goes into the log of changes, with a line for whoever has to follow it. Where two rules contradict each other, stop and
ask. Where a file is longer than you can keep in mind, read its first page and the part that you need.
Answer with the one change that matters most, in one sentence, then stop."""

_TEXT: Final = {"type": "string"}


def _tool(name: str, about: str, **fields: Mapping[str, str]) -> tuple[str, str, Json]:
    return name, about, {"type": "object", "properties": fields, "required": sorted(fields)}


_TOOLS: Final = (
    _tool("read_file", "Return the text of a file of the repository.", path=_TEXT),
    _tool("edit_file", "Replace a passage that occurs once in a file.", path=_TEXT, old=_TEXT, new=_TEXT),
    _tool("run_tests", "Run the tests under a path and return what failed.", path=_TEXT),
)
TOOLS: Final[list[Json]] = [
    {"type": "function", "function": {"name": name, "description": about, "parameters": form}}
    for name, about, form in _TOOLS
]
ANTHROPIC_TOOLS: Final[list[Json]] = [
    {"name": name, "description": about, "input_schema": form} for name, about, form in _TOOLS
]

_SOURCE: Final = '''\
def high_water_{turn}(readings, sill={talk}20):
    """Return the highest readings between two low waters."""
    found, rising = [], False
    for before, after in zip(readings, readings[1:]):
        if rising and after.height < before.height:
            found.append(before)
        rising = after.height >= before.height
    return [reading for reading in found if reading.height > sill]
'''
