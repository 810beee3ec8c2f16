"""What one request of the demo cost, the toy sum that opens it, and the sentence that says what happened.

Owns: the arithmetic and the words. Pure: no clock, no network, no terminal.
Rule: a sentence is made from the facts of the answer alone. It never says what ought to have happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

TOY_PROMPT_TOKENS: Final = 4
TOY_NEW_TOKENS: Final = 2
MS_PER_S: Final = 1000

DEFINITIONS: Final = (
    "done = computed + generated - 1",
    "without_prefix_cache = prompt + generated - 1",
    "without_kv_cache = sum over k = 0 .. generated - 1 of (prompt + k)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Toy:
    """The sum that can be checked by hand: every token is fed one by one, the last one too."""

    prompt_tokens: int
    new_tokens: int
    with_kv_cache: int  # one projection a token
    without_kv_cache: int  # step n projects tokens 1..n again


def toy(prompt_tokens: int = TOY_PROMPT_TOKENS, new_tokens: int = TOY_NEW_TOKENS) -> Toy:
    """Feed `prompt_tokens + new_tokens` tokens one by one and count the projections, with a KV cache and without."""
    total = prompt_tokens + new_tokens
    return Toy(
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        with_kv_cache=total,
        without_kv_cache=sum(range(1, total + 1)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and what its answer says about its cost. `cached + computed == prompt`, in tokens."""

    name: str
    question: str
    answer: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    generated_tokens: int
    first_token_ms: float  # as the client saw it, from sending the request on
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    done: int  # projections, here and below
    without_prefix_cache: int
    without_kv_cache: int

    @property
    def inter_token_ms(self) -> float | None:
        """Decoding time for each token after the first; None when there was no second one."""
        return self.decode_ms / (self.generated_tokens - 1) if self.generated_tokens > 1 else None

    @property
    def saved(self) -> int:
        """Projections that the prefix cache made unnecessary. Recomputing after a preemption lowers it."""
        return self.without_prefix_cache - self.done

    @property
    def mostly_cached(self) -> bool:
        """Whether at least half of the prompt came from the cache."""
        return 2 * self.cached_tokens >= self.prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The sums over all requests of a run."""

    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    generated_tokens: int
    done: int  # projections, here and below
    without_prefix_cache: int
    without_kv_cache: int


def total(exchanges: Sequence[Exchange]) -> Totals:
    """Add up what the requests cost."""
    return Totals(
        prompt_tokens=sum(each.prompt_tokens for each in exchanges),
        cached_tokens=sum(each.cached_tokens for each in exchanges),
        computed_tokens=sum(each.computed_tokens for each in exchanges),
        generated_tokens=sum(each.generated_tokens for each in exchanges),
        done=sum(each.done for each in exchanges),
        without_prefix_cache=sum(each.without_prefix_cache for each in exchanges),
        without_kv_cache=sum(each.without_kv_cache for each in exchanges),
    )


def explain(exchange: Exchange, earlier: Exchange | None, first: Exchange | None) -> str:
    """Say in one sentence what happened to a prompt.

    `earlier` is the turn whose history this prompt repeats, None when it repeats none. `first` is the first request
    of the run, the one to compare the waiting time with; None for the first request itself.
    """
    if exchange.cached_tokens == 0:
        return (
            f"Nothing of this prompt was cached, so all {exchange.prompt_tokens:,} tokens were computed "
            f"and the first token took {seconds(exchange.first_token_ms)}."
        )
    if not exchange.mostly_cached:
        return (
            f"Only the first {counted(exchange.cached_tokens)} of {exchange.prompt_tokens:,} "
            f"{were(exchange.cached_tokens)} cached, "
            f"so {exchange.computed_tokens:,} were computed and the first token took "
            f"{seconds(exchange.first_token_ms)}."
        )
    return f"{_what_was_reused(exchange, earlier)}; {_what_it_bought(exchange, first)}."


def _what_was_reused(exchange: Exchange, earlier: Exchange | None) -> str:
    computed = f"only {counted(exchange.computed_tokens)} {were(exchange.computed_tokens)} computed"
    if earlier is None or exchange.cached_tokens < earlier.prompt_tokens:
        return f"The first {counted(exchange.cached_tokens)} came from the cache and {computed}"
    of_answer = exchange.cached_tokens - earlier.prompt_tokens
    answer = f" and {counted(of_answer)} more, from the answer on," if of_answer else ""
    return f"All {earlier.prompt_tokens:,} tokens of the turn before{answer} came from the cache and {computed}"


def _what_it_bought(exchange: Exchange, first: Exchange | None) -> str:
    took = f"the first token took {seconds(exchange.first_token_ms)}"
    if first is None or first.mostly_cached or first.first_token_ms <= exchange.first_token_ms:
        return took
    return f"{took} instead of the {seconds(first.first_token_ms)} of the first request"


def explain_all(exchanges: Sequence[Exchange], questions: int) -> list[str]:
    """One sentence a request. The first `questions` of them stand alone; the rest are turns of one conversation."""
    return [
        explain(
            exchange,
            earlier=exchanges[index - 1] if index > questions else None,
            first=exchanges[0] if index else None,
        )
        for index, exchange in enumerate(exchanges)
    ]


def counted(tokens: int) -> str:
    """Say a number of tokens: `1 token`, `2,000 tokens`."""
    return f"{tokens:,} {'token' if tokens == 1 else 'tokens'}"


def were(tokens: int) -> str:
    """Pick the verb that goes with `counted`."""
    return "was" if tokens == 1 else "were"


def seconds(milliseconds: float) -> str:
    """Say a duration: `85 ms` below a second, `4.9 s` from there on."""
    rounded = round(milliseconds)
    return f"{rounded} ms" if rounded < MS_PER_S else f"{milliseconds / MS_PER_S:.1f} s"
