"""What answers come to: shares and likelihoods by place and by dtype, chance, and what was kept of the first. Pure.

Rules: what cannot be told is None, never 0; every comparison is between equal prompts; a share that guessing gives too
is said to be chance, and nothing is concluded from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Json = dict[str, Any]

CHANCE: Final = 0.05  # a result that guessing reaches at least so often says nothing
STEEPEST: Final = 700.0  # nats a token, beyond which a perplexity is no number any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One fact that was asked for."""

    length: int
    depth: float
    logprobs: tuple[float, ...]  # of the right answer's tokens, each after the right ones before it
    found: bool  # each of them was the likeliest of all tokens
    chosen: bool  # the right answer was likelier than every other candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One stretch of the long text: how likely its tokens were together, and which was likeliest at each."""

    nats: float  # minus the sum
    likeliest: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one KV dtype gave. `refused` says why it gave nothing."""

    dtype: str
    stored: str | None = None
    kv_bytes_per_token: int | None = None
    answers: tuple[Answered, ...] = ()
    text: tuple[Read, ...] = ()
    prompt_tokens: int = 0
    read_tokens: int = 0  # of those, from the cache
    seconds: float = 0.0
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Scores:
    """Answers, summed up."""

    facts: int
    found: float  # share
    chosen: float  # share
    probability: float  # geometric mean over tokens
    right: int = field(repr=False)

    def document(self) -> Json:
        """Return it for JSON."""
        return {"facts": self.facts, "found": self.found, "chosen": self.chosen, "probability": self.probability}


def scores(answers: Sequence[Answered]) -> Scores:
    """Sum answers up; there is at least one."""
    logprobs = [logprob for one in answers for logprob in one.logprobs]
    right = sum(one.chosen for one in answers)
    return Scores(
        len(answers),
        sum(one.found for one in answers) / len(answers),
        right / len(answers),
        math.exp(sum(logprobs) / len(logprobs)),
        right,
    )


def by_place(answers: Iterable[Answered]) -> list[Json]:
    """Sum up by length and depth, in that order."""
    places: dict[tuple[int, float], list[Answered]] = {}
    for one in answers:
        places.setdefault((one.length, one.depth), []).append(one)
    return [
        {"length": length, "depth": depth, **scores(these).document()}
        for (length, depth), these in sorted(places.items())
    ]


def at_chance(right: int, facts: int, candidates: int) -> bool:
    """Whether guessing among the candidates gives so many right answers or more at least `CHANCE` of the time."""
    share = 1 / candidates
    above = sum(math.comb(facts, k) * share**k * (1 - share) ** (facts - k) for k in range(right, facts + 1))
    return above >= CHANCE


def perplexity(text: Sequence[Read]) -> float | None:
    """Return e to the mean of nats a token; None of a text without a token to tell."""
    tokens = sum(len(read.likeliest) for read in text)
    return math.exp(min(STEEPEST, sum(read.nats for read in text) / tokens)) if tokens else None


def told(measured: Measured, first: Measured | None, candidates: int) -> Json:
    """Tell what one dtype came to, beside the `first` that was measured; None: this is it."""
    base: Json = {
        "kv_cache_dtype": measured.dtype,
        "stored": measured.stored,
        "refused": measured.refused,
        "kv_bytes_per_token": measured.kv_bytes_per_token,
    }
    if measured.refused is not None:
        return base
    mine = scores(measured.answers)
    return base | {
        **mine.document(),
        "at_chance": at_chance(mine.right, mine.facts, candidates),
        "perplexity": perplexity(measured.text),
        "against_first": None if first is None else against(measured, first, candidates),
        "cells": by_place(measured.answers),
        "prompt_tokens": measured.prompt_tokens,
        "read_tokens": measured.read_tokens,
        "seconds": measured.seconds,
    }


def against(measured: Measured, first: Measured, candidates: int) -> Json:
    """Compare with the first dtype, in ratios: 1 is as good as it. `kept` is the least of those that tell something."""
    mine, theirs = scores(measured.answers), scores(first.answers)
    chosen = None if at_chance(theirs.right, theirs.facts, candidates) else mine.chosen / theirs.chosen
    own, other = perplexity(measured.text), perplexity(first.text)
    ratios = {
        "chosen": chosen,
        "probability": mine.probability / theirs.probability if theirs.probability else None,
        "perplexity": None if own is None or other is None else other / own,
    }
    return {
        **ratios,
        "same_likeliest": _same(measured.text, first.text),
        "worst": _worst(measured.answers, first.answers),
        "kept": min((ratio for ratio in ratios.values() if ratio is not None), default=None),
    }


def _same(text: Sequence[Read], other: Sequence[Read]) -> float | None:
    pairs = [
        pair for mine, its in zip(text, other, strict=True) for pair in zip(mine.likeliest, its.likeliest, strict=True)
    ]
    return sum(mine == its for mine, its in pairs) / len(pairs) if pairs else None


def _worst(answers: Sequence[Answered], other: Sequence[Answered]) -> Json:
    """Return the place where the right answer lost most of its probability."""
    pairs = zip(by_place(answers), by_place(other), strict=True)
    mine, its = min(pairs, key=lambda pair: pair[0]["probability"] - pair[1]["probability"])
    place: Mapping[str, Any] = {"length": mine["length"], "depth": mine["depth"]}
    return {**place, "probability": mine["probability"], "first": its["probability"]}


def failed(rows: Iterable[Json], fail_under: float | None) -> list[str]:
    """Return the dtypes that kept less than asked for."""
    if fail_under is None:
        return []
    compared = ((row["kv_cache_dtype"], row.get("against_first")) for row in rows)
    return [
        name for name, against in compared if against and against["kept"] is not None and against["kept"] < fail_under
    ]
