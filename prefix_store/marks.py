"""From a client's marks to what the operator grants: lengths, lowered ones, and why.

Owns: whole-block coverage of a mark and the lowering of its TTL. Pure. Knows no pool (whether the promise budget
has room is the engine's to find out at admission), no tree, no clock, no wire format.
Rule: what a client asks for is never raised and never refused for being unallowed; it is lowered, and the answer
says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from prefix_store.classes import CLASSES, RetentionClasses
from prefix_store.policy import Policy
from prefix_store.retention import Kept, Retention

Reason = Literal["budget", "not_allowed", "ceiling", "below_minimum"]


class Mark(msgspec.Struct, frozen=True):
    """A client's breakpoint after the first `tokens` of its prompt. `ttl` None asks for the policy's own default."""

    tokens: int
    ttl: str | None = None


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one mark.

    `tokens` is what it covers: the whole blocks that end at or before it. `applied` and `ttl_s` are the class and
    its seconds, or None when nothing is granted: the prefix then fares like an unmarked one (`below_minimum`: it is
    not kept). `reason` is None when the client got what it asked for. `resolve` never gives `budget`: the engine
    does, with `declined`.
    """

    tokens: int
    asked: str | None
    applied: str | None
    ttl_s: float | None
    reason: Reason | None

    def declined(self) -> Resolved:
        """Return the outcome when the promise budget has no room: held for the same time, promised for none."""
        return msgspec.structs.replace(self, reason="budget")


def resolve(
    marks: Iterable[Mark], prompt_tokens: int, policy: Policy, block_tokens: int, classes: RetentionClasses = CLASSES
) -> tuple[Resolved, ...]:
    """Return one outcome per mark, in the marks' order.

    `min_tokens` is compared with the tokens a client marked, not with the whole blocks among them, so marking
    exactly the minimum is enough; a mark inside the first block covers nothing and is below any minimum. Raises
    ValueError for a TTL that is no duration above zero, whatever the policy, and for a mark outside the prompt.
    """
    outcomes = []
    for mark in marks:
        if not 0 <= mark.tokens <= prompt_tokens:
            raise ValueError(f"a mark at {mark.tokens} is outside a prompt of {prompt_tokens} tokens")
        covered = mark.tokens - mark.tokens % block_tokens
        ttl_s, reason = _granted(mark.ttl, policy, classes)
        if mark.tokens < policy.min_tokens or not covered:
            ttl_s, reason = None, "below_minimum"
        applied = None if ttl_s is None else classes.label(ttl_s)
        outcomes.append(Resolved(tokens=covered, asked=mark.ttl, applied=applied, ttl_s=ttl_s, reason=reason))
    return tuple(outcomes)


def _granted(ttl: str | None, policy: Policy, classes: RetentionClasses) -> tuple[float | None, Reason | None]:
    """Return the seconds granted for an asked TTL, and why they are fewer.

    The longest allowed length at or below both the asked one and the ceiling. Where there is none, nothing is
    granted: the shortest allowed length would be more than the client asked for. A mark that asks for no length
    takes the policy's default, which no list of allowed lengths binds, or the shortest allowed one where the policy
    has no default.
    """
    allowed_s = policy.allowed_s
    if ttl is None:
        default_s = policy.default_s or next(iter(allowed_s), None)
        return default_s, None if default_s else "not_allowed"
    asked_s = classes.seconds(ttl)
    granted_s = max((s for s in allowed_s if s <= asked_s), default=None)
    if granted_s == asked_s:
        return granted_s, None
    return granted_s, "ceiling" if asked_s > policy.max_s else "not_allowed"


def promised(resolved: Resolved, policy: Policy, since: float) -> Retention | None:
    """Return how the blocks of a granted mark are kept from the admission at `since`; None when nothing is granted."""
    if resolved.applied is None or resolved.ttl_s is None:
        return None
    kept = Kept.HELD if resolved.reason == "budget" else Kept.PROMISED
    return _retention(resolved.applied, resolved.ttl_s, kept, policy, since)


def held(policy: Policy, since: float, classes: RetentionClasses = CLASSES) -> Retention | None:
    """Return how unmarked blocks are kept from the admission at `since`; None when the policy keeps none."""
    default_s = policy.default_s
    return None if default_s is None else _retention(classes.label(default_s), default_s, Kept.HELD, policy, since)


def _retention(klass: str, ttl_s: float, kept: Kept, policy: Policy, since: float) -> Retention:
    sliding = policy.mode == "sliding"
    return Retention(klass=klass, ttl_s=ttl_s, kept=kept, sliding=sliding, priority=policy.priority, since=since)
