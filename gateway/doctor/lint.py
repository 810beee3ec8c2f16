"""One request alone: what in it tends to be another in each request, and what stands in the wrong order. Pure.

Rules: an error is what changes with each request and stands before what stays; what only may is advice. The newest
message may hold anything: nothing stands behind it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from gateway.doctor.advice import advise
from gateway.doctor.findings import Finding, Level
from gateway.doctor.seen import Seen
from gateway.layout import Span
from gateway.looks import Found, volatile
from gateway.nonces import normalise

LONG: Final = 256  # characters that make a text worth keeping in front
_VERY_LONG: Final = 2048
_EXCERPT: Final = 24
_NEAR: Final = 48  # characters before a date or time that say whether it is now

_NOW: Final = re.compile(
    r"\b(?:now|today|current\w*|date|time\w*|clock|as of|generated|created|updated|at)\b", re.IGNORECASE
)
_OF_REQUESTS: Final = re.compile(
    r"(?:req|turn|session|run|attempt|try|call|visit|iter|message|msg|seq|build)", re.IGNORECASE
)
_KEYED: Final = re.compile(r"[=:]")
_WHAT: Final = {
    "time": "a time",
    "date": "a date",
    "uuid": "a UUID",
    "counter": "a counter",
    "hash": "a nonce or digest",
    "signed_url": "a signed URL",
}


def lint(seen: Seen) -> tuple[Finding, ...]:
    """Find what breaks this request's prefix, or may, in the prompt's order; what was found in reading comes first."""
    found = [*_volatile(seen), *_order(seen), *_tools(seen), *_nonces(seen)]
    return (*seen.body.findings, *sorted(found, key=lambda one: (one.level != "error", one.token or 0)))


def _volatile(seen: Seen) -> Iterator[Finding]:
    spans = [span for span in seen.prompt.spans if span.kind != "opening"]
    said = [span for span in spans if span.kind not in {"tool", "system"}]
    for span in spans:
        path, text = seen.words(span)
        dropped = len(text) - len(normalise(text)[0]) if span.kind == "system" else 0
        if span.kind in {"tool", "system"} or span is said[0]:
            pieces = list(volatile(text[dropped:]))
        else:  # what was said stays as it was said, but for URLs that are signed anew
            pieces = [one for one in volatile(text) if one.looks_like == "signed_url"]
        counts = Counter(_family(text[dropped:], one) for one in pieces)
        for one in pieces:
            repeated = counts[_family(text[dropped:], one)] > 1
            moved = Found(one.looks_like, one.begin + dropped, one.end + dropped)
            behind = len(text) - moved.end
            if span is spans[-1] and behind < LONG:
                continue  # the newest words of all
            if span is said[0] and span is not spans[-1] and one.looks_like != "signed_url" and behind < LONG:
                continue  # a message of the history that stays as it is
            level: Level = "error" if _is_now(text, moved, repeated=repeated) else "advice"
            yield _finding(seen, span, path, text, moved, level)


def _family(text: str, one: Found) -> str:
    """Return what counters of one kind share: `step 1` and `step 2` are a list, not a count of requests."""
    return re.sub(r"[\W\d_]+", "", text[one.begin : one.end]).lower() if one.looks_like == "counter" else str(one.begin)


def _is_now(text: str, one: Found, *, repeated: bool) -> bool:
    """Whether a piece most likely is another in each request."""
    piece, before = text[one.begin : one.end], text[max(0, one.begin - _NEAR) : one.begin]
    match one.looks_like:
        case "uuid" | "signed_url":
            return True
        case "time" | "date":
            exact = one.looks_like == "time" and len(piece) >= len("2027-03-03T10")
            return exact or _NOW.search(before) is not None
        case "counter":
            return not repeated and _OF_REQUESTS.match(piece) is not None
        case _:
            return _KEYED.search(piece) is not None


def _finding(seen: Seen, span: Span, path: str, text: str, one: Found, level: Level) -> Finding:
    token = seen.token(span, one.begin)
    behind = seen.made.tokens - token
    likely = "changes" if level == "error" else "may change"
    return Finding(
        level=level,
        kind=one.looks_like,
        where=path,
        says=f"{_WHAT[one.looks_like]} that {likely} with each request, before {behind:,} tokens of the prompt",
        advice=advise("", one.looks_like),
        character=one.begin,
        token=token,
        tokens=behind,
        excerpt=text[max(0, one.begin - _EXCERPT) : one.end + _EXCERPT],
    )


def _order(seen: Seen) -> Iterator[Finding]:
    """Find what stays behind what changes."""
    spoken = [span for span in seen.prompt.spans if span.kind not in {"tool", "opening"}]
    systems = [span for span in spoken if span.kind == "system"]
    if systems and spoken[0].kind != "system" and len(seen.words(systems[0])[1]) >= LONG:
        yield _misplaced(
            seen,
            systems[0],
            "error",
            "the system text stands behind the conversation's first words",
            "Put the system text first: then every conversation begins alike.",
        )
    first = next((span for span in spoken if span.kind == "user"), None)
    if first is None:
        return
    opening, _, rest = seen.words(first)[1].partition("\n")
    if 0 < len(opening.strip()) < LONG and len(rest) >= _VERY_LONG:
        yield _misplaced(
            seen,
            first,
            "advice",
            "a short line stands before a long text: if the line is the question, each question makes the text new",
            "Put the document first and the question behind it.",
        )


def _misplaced(seen: Seen, span: Span, level: Level, says: str, advice: str) -> Finding:
    path, text = seen.words(span)
    token = seen.token(span, 0)
    tokens = seen.made.tokens - token
    excerpt = text[: 2 * _EXCERPT]
    return Finding(
        level=level, kind="order", where=path, says=says, advice=advice, token=token, tokens=tokens, excerpt=excerpt
    )


def _tools(seen: Seen) -> Iterator[Finding]:
    names = [tool.name for tool in seen.ask.tools]
    if names == sorted(names):
        return
    yield Finding(
        level="advice",
        kind="tools",
        where="tools",
        says="the tools are not sorted by name; whether their order is the same in each request, one body cannot tell",
        advice="Sort them by name if they come out of a map or a set.",
        token=0,
        tokens=seen.made.tokens,
        excerpt=", ".join(names),
    )


def _nonces(seen: Seen) -> Iterator[Finding]:
    """Find telemetry that Keepwarm takes out and others do not."""
    for turn in seen.ask.turns[:1]:
        kept, rules = normalise(turn.text) if turn.role == "system" else (turn.text, ())
        for rule in rules:
            yield Finding(
                level="advice",
                kind="nonce",
                where=turn.path or "system",
                says=f"telemetry that changes with each request opens the system text ({rule}); Keepwarm takes it out, "
                "other servers do not",
                advice="Turn the header off in the client where it can be.",
                character=0,
                token=0,
                tokens=seen.made.tokens,
                excerpt=turn.text[: len(turn.text) - len(kept)].strip(),
            )
