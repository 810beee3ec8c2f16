"""Two requests' fingerprints: where their prompts part, what the client changed there, and how far that reaches. Pure.

Rules: one cause, the first in the prompt's order; parts are the same when their tokens are; where tokens differ though
the content is the same, it is the rendering that differs. Under another tokenizer or template tokens say nothing, so
there parts are the same when their content is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from prefix_store.fingerprints import Answer, Fingerprint, Part, PartKind

Reason = Literal["new", "model", "tools", "system", "messages", "template", "retokenised", "none"]

SPOKEN: Final[frozenset[PartKind]] = frozenset({"user", "assistant", "result"})
_MOST_SUMMARIES: Final = 2  # messages that stand for a compacted conversation: a summary, or one and a word about it


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Where a request parts from an earlier one, and why."""

    reason: Reason
    token: int  # the first that differs; the prompt's length where nothing does
    until: int  # end of what the change cost; from there on all is new
    part: Part | None = None  # of the current request, that in which they part
    offset: int = 0  # of the token within the part
    shuffled: bool = False  # the same tools in another order
    whitespace: bool = False  # but for white space the part is the same
    compacted: bool = False  # several early messages became a summary
    added: int = 0  # tools
    removed: int = 0
    edited: int = 0


def compare(current: Fingerprint, earlier: Fingerprint, hashes: Mapping[bytes, bytes]) -> Divergence:
    """Find where `current` parts from `earlier`. Without a part's token hashes its first token stands for it."""
    if current.model != earlier.model:
        return Divergence(reason="model", token=0, until=_reach(current, earlier, 0, 0))
    place = common_parts(current, earlier)
    if place == len(current.parts):
        return Divergence(reason="none", token=current.tokens, until=current.tokens)
    part = current.parts[place]
    before = earlier.parts[place] if place < len(earlier.parts) else None
    if before is None:
        return Divergence(reason="new", token=part.begin, until=part.begin, part=part)
    same_rendering = current.rendering == earlier.rendering
    offset = _agreement(part.rendered, before.rendered, hashes) if same_rendering else 0
    if before.kind == "opening":
        return _behind(current, earlier, place, offset, hashes)
    if part.kind == "opening":
        return _cut_short(current, part, offset)
    return _changed(current, earlier, place, offset)


def common_parts(current: Fingerprint, earlier: Fingerprint) -> int:
    """Count the leading parts that are the same."""
    by_tokens = current.rendering == earlier.rendering
    for place, (part, before) in enumerate(zip(current.parts, earlier.parts, strict=False)):
        same = part.rendered == before.rendered if by_tokens else part.content == before.content
        if part.kind != before.kind or not same:
            return place
    return min(len(current.parts), len(earlier.parts))


def _agreement(one: bytes, other: bytes, hashes: Mapping[bytes, bytes]) -> int:
    """Count the leading tokens that two parts or answers have in common, 0 where their hashes are not at hand."""
    mine = np.frombuffer(hashes.get(one, b""), dtype="<u2")
    theirs = np.frombuffer(hashes.get(other, b""), dtype="<u2")
    least = min(len(mine), len(theirs))
    differ = mine[:least] != theirs[:least]
    return int(differ.argmax()) if differ.any() else least


def _behind(
    current: Fingerprint, earlier: Fingerprint, place: int, offset: int, hashes: Mapping[bytes, bytes]
) -> Divergence:
    """Judge what stands where the earlier answer began."""
    part, opening, answer = current.parts[place], earlier.parts[place], earlier.answer
    reason: Reason = "new"
    lost = part.begin  # end of what the earlier request had and this one writes otherwise
    if part.kind == "opening":
        reason, lost = "template", part.end
    elif part.kind == "assistant" and current.rendering == earlier.rendering:
        came_back = answer is not None and part.content == answer.content
        if answer is not None and came_back and answer.rendered in hashes:
            reason, offset = _returned(part, opening, answer, hashes)
        elif {opening.rendered, part.rendered} <= hashes.keys() and offset < min(_length(opening), _length(part)):
            reason = "template"
        lost = part.end if came_back else min(part.begin + _length(opening), part.end)
    token = part.begin + offset
    until = token if reason == "new" else _reach(current, earlier, place, max(token, lost))
    return Divergence(reason=reason, token=token, until=until, part=part, offset=offset)


def _returned(part: Part, opening: Part, answer: Answer, hashes: Mapping[bytes, bytes]) -> tuple[Reason, int]:
    """Judge an answer that came back as history, by the opening's and the generated tokens."""
    if part.rendered not in hashes:
        return "new", 0
    same = _agreement(part.rendered, answer.rendered, hashes)
    if same < min(_length(opening), _length(part)):
        return "template", same
    return ("new" if same >= min(_length(opening) + answer.tokens, _length(part)) else "retokenised"), same


def _length(part: Part) -> int:
    return part.end - part.begin


def _cut_short(current: Fingerprint, part: Part, offset: int) -> Divergence:
    """Judge a conversation that ends where the earlier one went on."""
    token = part.begin + offset
    if token >= part.end:
        return Divergence(reason="none", token=current.tokens, until=current.tokens)
    return Divergence(reason="new", token=token, until=token, part=part, offset=offset)


def _changed(current: Fingerprint, earlier: Fingerprint, place: int, offset: int) -> Divergence:
    """Judge a part that stands where another one stood."""
    part, before = current.parts[place], earlier.parts[place]
    tools, tools_before = _contents(current, "tool"), _contents(earlier, "tool")
    other_tools = tools != tools_before
    reason = _what_changed(current, earlier, place, other_tools=other_tools)
    compacted = reason == "messages" and _compacted(current.parts[place:], earlier.parts[place:])
    gone = (Counter(tools_before) - Counter(tools)).total() if reason == "tools" else 0
    came = (Counter(tools) - Counter(tools_before)).total() if reason == "tools" else 0
    return Divergence(
        reason=reason,
        token=part.begin + offset,
        until=_reach(current, earlier, place, part.end),
        part=part,
        offset=offset,
        shuffled=reason == "tools" and not gone and not came,
        whitespace=reason != "template" and part.kind == before.kind and part.loose == before.loose,
        compacted=compacted,
        added=came - min(came, gone),
        removed=gone - min(came, gone),
        edited=min(came, gone),
    )


def _what_changed(current: Fingerprint, earlier: Fingerprint, place: int, *, other_tools: bool) -> Reason:
    part, before = current.parts[place], earlier.parts[place]
    kinds = {part.kind, before.kind}
    same_content = part.kind == before.kind and part.content == before.content
    if other_tools and ("tool" in kinds or same_content):  # some templates write the tools into a message
        return "tools"
    if same_content:
        return "template"
    if "system" in kinds and not any(one.kind in SPOKEN for one in current.parts[:place]):
        return "system"
    return "template" if "tool" in kinds else "messages"  # the same tools, written elsewhere


def _contents(request: Fingerprint, kind: PartKind) -> list[bytes]:
    return [part.content for part in request.parts if part.kind == kind]


def _reach(current: Fingerprint, earlier: Fingerprint, place: int, least: int) -> int:
    """Return where the last part ends that the earlier request or its answer had too, but not before `least`."""
    known = Counter(part.content for part in earlier.parts[place:] if part.kind != "opening")
    if earlier.answer is not None:
        known[earlier.answer.content] += 1
    reach = least
    for part in current.parts[place:]:
        if part.kind != "opening" and known[part.content]:
            known[part.content] -= 1
            reach = max(reach, part.end)
    return reach


def _compacted(parts: Sequence[Part], before: Sequence[Part]) -> bool:
    """Whether the first of `parts` stands for several of those `before`, and what followed them still follows.

    Not where at least as much stands in its old place: then messages were edited, and some of them are alike.
    """
    mine = [part.content for part in parts if part.kind in SPOKEN or part.kind == "system"]
    theirs = [part.content for part in before if part.kind in SPOKEN or part.kind == "system"]
    in_place = sum(one == other for one, other in zip(mine, theirs, strict=False))
    for summaries in range(1, min(_MOST_SUMMARIES, len(mine) - 1) + 1):
        for dropped in range(summaries + 1, len(theirs) - in_place):
            rest = theirs[dropped:]
            if mine[summaries : summaries + len(rest)] == rest:
                return True
    return False
