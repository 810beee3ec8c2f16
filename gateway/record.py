"""One exchange told whole, once, at its end: what metrics, ledger, page and traces are made of. Pure.

Rule: counts, times, names and digests; never text, never a token id, never a key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from engine.messages import FinishReason
from gateway.account import Account, Sums
from gateway.ask import Api, Ask
from gateway.usage import PromptFacts

Outcome = Literal["finished", "failed", "refused", "cancelled"]

UNKNOWN_MODEL = "unknown"  # what a client asked for and nobody serves: one name, whatever it was
UNNAMED = "none"  # the class of what was written under none


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """Where routing sent a request, in prompt tokens: what some replica was believed to hold, and the chosen one.

    `delivered` is what the answer said was read, None where it said nothing.
    """

    why: str
    available: int
    captured: int
    delivered: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What one exchange was, and what it cost. Durations are seconds.

    `prompt` is None where no prompt was processed. Until the first token `first_token_s` is None; `projected` is None
    where an answer was left before its end.
    """

    id: str
    at: float  # wall clock, when it arrived
    tenant: str
    key: str | None  # the id of the client's key, None where none is asked for
    api: Api
    model: str
    upstream: str  # who answered
    streamed: bool
    prewarm: bool
    outcome: Outcome
    status: int  # the HTTP status that stands for the outcome; 499: the client left
    seconds: float  # from arrival to end
    prompt: PromptFacts | None
    generated: int
    projected: int | None
    first_token_s: float | None
    decode_s: float
    routed: Routed | None = None  # None: there was nothing to choose
    reported: bool = True  # whether who answered said what was read; if not, all of the prompt is `unknown`
    ends: tuple[FinishReason, ...] = ()  # how each choice ended, where all did
    min_tokens: int = 0  # what must be read for a hit, by the policy that governed
    traceparent: str = ""  # W3C trace context of the client, as it sent it
    tracestate: str = ""

    @property
    def hit(self) -> bool:
        """Whether it counts as a hit by requests: it read at least one token, and no fewer than the policy asks for."""
        return self.prompt is not None and not self.prewarm and self.prompt.read >= max(self.min_tokens, 1)


class Draft:
    """An exchange under way, from which its record is made. Owns nothing but what it is handed."""

    def __init__(self, ask: Ask, *, served: bool, upstream: str, at: float, began: float) -> None:
        """Begin at wall-clock time `at` and at `began` on the clock that durations are measured with."""
        self._ask, self._at, self._began = ask, at, began
        self._model = ask.model if served else UNKNOWN_MODEL
        self._upstream = upstream
        self.tokens = b""
        self.account: Account | None = None

    def record(self, outcome: Outcome, status: int, now: float) -> Record:
        """Return what it has come to at `now`."""
        sums = self.account.sums() if self.account is not None else Sums()
        return Record(
            id=self._ask.id,
            at=self._at,
            tenant=self._ask.tenant,
            key=self._ask.key,
            api=self._ask.api,
            model=self._model,
            upstream=self._upstream,
            streamed=self._ask.streamed,
            prewarm=self._ask.wish.prewarm,
            outcome=outcome,
            status=status,
            seconds=now - self._began,
            prompt=None if self.account is None else self.account.prompt_facts,
            generated=sums.generated,
            projected=sums.projected,
            first_token_s=sums.first_token_s,
            decode_s=sums.decode_s,
            ends=sums.ends if outcome == "finished" else (),
            min_tokens=0 if self.account is None else self.account.min_tokens,
            traceparent=self._ask.traceparent,
            tracestate=self._ask.tracestate,
        )


class Witness(Protocol):
    """Who is told of every exchange when it ends."""

    def ended(self, record: Record, tokens: bytes) -> None:
        """Hear of one exchange. `tokens` is its prompt as little-endian uint32, empty where none was made.

        They may be counted and hashed on the spot, and must not be kept. Must not wait and must not raise.
        """
