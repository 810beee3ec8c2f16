"""A relayed request told as every other is told. Pure.

Rule: what the upstream did not say is unknown, not zero.
"""

from __future__ import annotations

from typing import Final

from gateway.ask import Api
from gateway.record import Outcome, Record, Routed
from gateway.relay.attempt import Attempt
from gateway.relay.call import Call
from gateway.relay.upstream import Endpoint
from gateway.relay.usage import Reported
from gateway.usage import PromptFacts, Written

APIS: Final[dict[Endpoint, Api]] = {
    "chat": "chat",
    "completions": "completions",
    "responses": "responses",
    "input_tokens": "responses",
    "messages": "messages",
    "count_tokens": "messages",
}
NOBODY: Final = "none"  # in the place of an upstream's name


def record_of(
    call: Call,
    attempt: Attempt | None,
    outcome: Outcome,
    status: int,
    *,
    at: float,
    seconds: float,
    first_token_s: float | None,
) -> Record:
    """Tell a relayed request as every other is told."""
    told = attempt.tap.reported if attempt is not None else None
    facts = None
    if told is not None and told.prompt is not None:
        known = told.read is not None
        facts = PromptFacts(
            prompt=told.prompt,
            read=told.read or 0,
            write=(told.write or 0) if known else 0,
            queue_s=0.0,
            prefill_s=0.0,
            timed=False,
            written=_written(told) if known else (),
            unknown=0 if known else told.prompt,
        )
    return Record(
        id=call.id,
        at=at,
        tenant=call.tenant,
        key=call.key,
        api=APIS[call.endpoint],
        model=call.model,
        upstream=attempt.replica.name if attempt is not None else NOBODY,
        streamed=call.streamed,
        prewarm=False,
        outcome=outcome,
        status=status,
        seconds=seconds,
        prompt=facts,
        generated=(told.output or 0) if told is not None else 0,
        projected=None,
        first_token_s=first_token_s,
        decode_s=0.0 if first_token_s is None else seconds - first_token_s,
        routed=routed_of(attempt) if attempt is not None else None,
        reported=told is not None and told.read is not None,
    )


def routed_of(attempt: Attempt) -> Routed:
    """Say where routing sent a request, and what came of that."""
    choice = attempt.choice
    return Routed(
        why=choice.why, available=choice.available, captured=choice.captured, delivered=attempt.tap.reported.read
    )


def _written(told: Reported) -> tuple[Written, ...]:
    """Return what was written by class, where the upstream says under which."""
    said = (("5m", told.write_5m), ("1h", told.write_1h))
    return tuple(Written(tokens=tokens, asked=None, applied=klass) for klass, tokens in said if tokens)
