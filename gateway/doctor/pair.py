"""Two requests, one after the other: what breaks the prefix, where, and what that costs.

Rules: lost is what both requests hold and the later one cannot read, because something before it is another; what is
only in the later one is no loss, however it differs. So two questions over one document break nothing, a document
behind two questions does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.compare import Divergence, compare
from gateway.doctor.advice import advise
from gateway.doctor.seen import Seen
from gateway.looks import looks_like
from prefix_store.fingerprints import Part, PartKind

LEAST_LOSS: Final = 16  # tokens in common that count in a changed text: a block, less is chance
_EXCERPT: Final = 32  # characters on each side


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """How a request goes on from an earlier one. Without a loss nothing is broken."""

    reason: str
    message: str  # path
    character: int | None
    token: int
    looks_like: str
    shared: int  # tokens from the beginning
    lost: int
    prompt: int
    before: str = ""  # the text at the place in the earlier request, and in this one
    after: str = ""
    details: tuple[str, ...] = ()
    advice: str = ""


def broken(current: Seen, earlier: Seen, *, reached: int = 0) -> Break:
    """Compare two requests. What is before token `reached` can be read all the same, and so is not lost."""
    found = compare(current.made, earlier.made, {**earlier.hashes, **current.hashes})
    part = found.part
    path, character, look, before, after = "model", None, "text", earlier.ask.model, current.ask.model
    if part is None and found.reason == "none":
        path, before, after = "", "", ""
    elif part is not None:
        path, character, look = _place(current, found, part)
        after = _excerpt(current.words(current.span(part))[1], character)
        before = _excerpt(_text_at(earlier, current, part), character)
    lost = _lost(current, earlier, found, max(found.token, reached))
    return Break(
        reason=found.reason,
        message=path,
        character=character,
        token=found.token,
        looks_like=look,
        shared=found.token,
        lost=lost,
        prompt=current.made.tokens,
        before=before,
        after=after,
        details=tuple(_details(found)),
        advice=advise(found.reason, look) if lost else "",
    )


def _place(current: Seen, found: Divergence, part: Part) -> tuple[str, int, str]:
    span = current.span(part)
    path, text = current.words(span)
    character = current.character(span, found.token)
    if found.shuffled:
        return path, character, "shuffled_list"
    if found.compacted:
        return path, character, "rewritten_summary"
    return path, character, "white_space" if found.whitespace else looks_like(text, character)


def _text_at(earlier: Seen, current: Seen, part: Part) -> str:
    """Return the text that stood where `part` stands now."""
    place = current.made.parts.index(part)
    if place >= len(earlier.made.parts):
        return ""
    return earlier.words(earlier.span(earlier.made.parts[place]))[1]


def _excerpt(text: str, at: int) -> str:
    begin, end = max(0, at - _EXCERPT), at + _EXCERPT
    return f"{'…' if begin else ''}{text[begin:end]}{'…' if end < len(text) else ''}"


def _lost(current: Seen, earlier: Seen, found: Divergence, begin: int) -> int:
    """Count the tokens from `begin` on that the earlier request had too."""
    if found.reason in {"new", "none"}:
        return 0
    if found.reason == "template":
        return max(0, found.until - begin)
    place = 0 if found.part is None else current.made.parts.index(found.part)
    mine, theirs = ([part for part in seen.made.parts[place:] if part.kind != "opening"] for seen in (current, earlier))
    both = Counter(part.content for part in mine) & Counter(part.content for part in theirs)
    changed, before = _unmatched(mine, both), _unmatched(theirs, both)
    lost = sum(max(0, part.end - max(part.begin, begin)) for part in mine if part not in changed)
    for kind in {part.kind for part in changed}:
        pairs = zip(_of(changed, kind), _of(before, kind), strict=False)
        lost += sum(_in_common(current, earlier, part, other, begin) for part, other in pairs)
    return lost


def _unmatched(parts: Sequence[Part], both: Counter[bytes]) -> list[Part]:
    left = Counter(both)
    unmatched = []
    for part in parts:
        if left[part.content]:
            left[part.content] -= 1
        else:
            unmatched.append(part)
    return unmatched


def _of(parts: Sequence[Part], kind: PartKind) -> list[Part]:
    return [part for part in parts if part.kind == kind]


def _in_common(current: Seen, earlier: Seen, part: Part, before: Part, begin: int) -> int:
    """Count the tokens at both ends of a changed part that it had before, too, from `begin` on; few are chance."""
    span = current.span(part)
    mine, theirs = current.words(span)[1], earlier.words(earlier.span(before))[1]
    shorter = min(len(mine), len(theirs))
    ahead = bisect_left(range(1, shorter + 1), 1, key=lambda count: mine[:count] != theirs[:count])
    room = shorter - ahead
    behind = bisect_left(range(1, room + 1), 1, key=lambda count: mine[-count:] != theirs[-count:])
    ending = part.end - max(begin, current.token(span, len(mine) - behind)) if behind else 0
    beginning = current.token(span, ahead) - max(begin, part.begin) if ahead else 0
    return sum(tokens for tokens in (beginning, ending) if tokens >= LEAST_LOSS)


def _details(found: Divergence) -> list[str]:
    said = []
    if found.shuffled:
        said.append("the same tools in another order")
    if found.whitespace:
        said.append("only white space differs")
    if found.compacted:
        said.append("several early messages became a summary")
    counts = ((found.added, "added"), (found.removed, "removed"), (found.edited, "edited"))
    said += [f"{count} tool{'s' if count > 1 else ''} {word}" for count, word in counts if count]
    return said
