"""The hour that `keepwarm demo --traffic` plays: who asks what, when, and what operators do meanwhile. Pure.

Owns the plan and its arithmetic; what a request says is `gateway.demo.tenants`'.
Rules: minutes are those of the made-up hour, and only `Pace` turns them into seconds; equal seeds give equal plans, and
a thinner plan is the fuller one with whole conversations left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from prefix_store.retention import format_duration

Tenant = Literal["support", "coding", "reports"]
Api = Literal["chat", "messages"]
Ending = Literal["whole", "cancelled", "refused"]
Kind = Literal["policy", "deploy", "dry_run"]

SUPPORT: Final = "support"
CODING: Final = "coding"
REPORTS: Final = "reports"
TENANTS: Final[tuple[Tenant, ...]] = (SUPPORT, CODING, REPORTS)

HOUR: Final = 60.0  # minutes
SHORT_TTL: Final = 5.0  # minutes of the hour, as all below
LONG_TTL: Final = 60.0
REPORTS_TTL: Final = 4.0
REPORTS_TTL_LATER: Final = 15.0
BAD_DEPLOY: Final = 26.0
ROLLED_BACK: Final = 36.0
RAISED: Final = 47.0
DRY_RUN: Final = 56.0

DENSITIES: Final = (1.0, 0.75, 0.5, 0.25, 0.1)  # shares of the conversations, fullest first
BUSY: Final = 0.6  # the share of the time that the engine may be at work for a density to fit
ANSWER_WEIGHT: Final = 35  # decoding one token takes about as long as so many tokens of a prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """One request. `talk` names its conversation, `turn` its place there; `stamped`: the bad deploy made it."""

    minute: float
    tenant: Tenant
    talk: str
    turn: int
    api: Api
    ending: Ending = "whole"
    stamped: bool = False
    answer: int = 10  # tokens
    computed: int = 0  # prompt tokens that will roughly be computed for it

    @property
    def weight(self) -> int:
        """What it costs the engine, in tokens of a prompt."""
        return 0 if self.ending == "refused" else self.computed + ANSWER_WEIGHT * self.answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What an operator does. `ttl` is the new one of a policy, in minutes."""

    minute: float
    kind: Kind
    title: str
    ttl: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The whole hour. Each talk's requests follow one another; talks and acts run beside each other."""

    seed: int
    density: float
    talks: tuple[tuple[Send, ...], ...]
    acts: tuple[Act, ...]

    @property
    def sends(self) -> tuple[Send, ...]:
        """Every request in the order of its time."""
        return tuple(sorted((send for talk in self.talks for send in talk), key=lambda send: (send.minute, send.talk)))

    @property
    def weight(self) -> int:
        """What the hour costs the engine, in tokens of a prompt."""
        return sum(send.weight for send in self.sends)


@dataclass(frozen=True, slots=True)
class Pace:
    """How the hour is squeezed into `minutes` of a clock on the wall."""

    minutes: float

    @property
    def scale(self) -> float:
        """How many times faster than life."""
        return HOUR / self.minutes

    def seconds(self, minute: float) -> float:
        """Return when, from the start, a minute of the hour comes."""
        return minute * 60.0 / self.scale

    def ttl(self, minutes: float) -> str:
        """Return a TTL of the hour as the policy has it, to the millisecond."""
        return format_duration(max(round(self.seconds(minutes), 3), 0.001))

    def clock(self, minute: float) -> str:
        """Return the time of day in the made-up hour."""
        return f"09:{min(int(minute), 59):02d}"


SCENES: Final[tuple[tuple[float, str], ...]] = (
    (0.0, "the help desk opens: conversations grow over one long system prompt"),
    (8.0, "the coding agent works through its files, the reports come every five minutes"),
    (BAD_DEPLOY, "a bad deploy of the coding agent: a time stands first in its system prompt"),
    (ROLLED_BACK, "the deploy is rolled back"),
    (RAISED, "the reports' TTL is raised above their rhythm: they begin to be read"),
    (DRY_RUN, "an operator asks what a purge would forget"),
)


def scene(minute: float) -> str:
    """Say what happens at this minute of the hour."""
    return next(words for begins, words in reversed(SCENES) if minute >= begins)


def plan(seed: int, density: float = 1.0) -> Plan:
    """Make the hour. `density` is the share of conversations that are held."""
    dice = random.Random(seed)  # noqa: S311 - traffic, not secrets
    talks = [
        talk
        for all_talks, order in (
            (list(_support(dice)), _SUPPORT_ORDER),
            (list(_coding(dice)), _CODING_ORDER),
            (list(_reports(dice)), _REPORTS_ORDER),
        )
        for talk in _thinned(all_talks, order, density)
    ]
    return Plan(seed=seed, density=density, talks=tuple(talks), acts=ACTS)


def fitting(seed: int, *, tokens_per_s: float | None, seconds: float) -> Plan:
    """Return the fullest plan that an engine of this speed does in the time it has; the thinnest if none fits.

    A speed that is not known stops nothing.
    """
    plans = [plan(seed, density) for density in DENSITIES]
    if tokens_per_s is None:
        return plans[0]
    room = tokens_per_s * seconds * BUSY
    return next((fits for fits in plans if fits.weight <= room), plans[-1])


ACTS: Final = (
    Act(minute=BAD_DEPLOY, kind="deploy", title="coding agent 1.8 (demo)"),
    Act(minute=ROLLED_BACK, kind="deploy", title="coding agent back to 1.7 (demo)"),
    Act(minute=RAISED, kind="policy", title="demo: the reports' TTL is raised", ttl=REPORTS_TTL_LATER),
    Act(minute=DRY_RUN, kind="dry_run", title="demo: what a purge of the reports would forget"),
)

_SUPPORT_ORDER: Final = (5, 1, 3, 7, 0, 6, 2, 4)  # which conversations stay longest when a plan is thinned
_SUPPORT_TURNS: Final = 5
_CODING_ORDER: Final = (3, 0, 4, 1, 5, 2)  # the third is held under the bad deploy
_CODING_TURNS: Final = 6
_REPORTS_ORDER: Final = (0, 1)
_REPORTS_EVERY: Final = 5.0


def _support(dice: random.Random) -> Iterator[tuple[Send, ...]]:
    """Conversations of a help desk; each third has a pause longer than the TTL, and a customer leaves now and then."""
    for number in range(len(_SUPPORT_ORDER)):
        minute = 0.5 + 6.0 * number + dice.uniform(0.0, 1.0)
        sends = []
        for turn in range(_SUPPORT_TURNS):
            if turn:
                pause = SHORT_TTL + 1.5 if number % 3 == 1 and turn == _SUPPORT_TURNS - 1 else 0.0
                minute += pause + dice.uniform(0.9, 2.0)
            leaves = number % 3 == 2 and turn == _SUPPORT_TURNS - 1  # noqa: PLR2004 - the third of three
            sends.append(
                Send(
                    minute=minute,
                    tenant=SUPPORT,
                    talk=f"support-{number}",
                    turn=turn,
                    api="messages",
                    ending="cancelled" if leaves else "whole",
                    answer=40 if leaves else 10,
                    computed=800 if not number and not turn else 70,
                )
            )
        yield tuple(sends)


def _coding(dice: random.Random) -> Iterator[tuple[Send, ...]]:
    """Sessions of a coding agent, on both APIs in turn; one call asks for a model that nobody serves."""
    for number in range(len(_CODING_ORDER)):
        minute = 1.0 + 9.0 * number + dice.uniform(0.0, 0.5)
        sends = []
        for turn in range(_CODING_TURNS):
            minute += dice.uniform(1.0, 1.7) if turn else 0.0
            stamped = BAD_DEPLOY <= minute < ROLLED_BACK
            sends.append(
                Send(
                    minute=minute,
                    tenant=CODING,
                    talk=f"coding-{number}",
                    turn=turn,
                    api="messages" if number % 2 else "chat",
                    stamped=stamped,
                    answer=12,
                    computed=700 + 130 * turn if stamped else 160,
                )
            )
        if not number:
            refused = minute + 1.0
            sends.append(
                Send(minute=refused, tenant=CODING, talk="coding-0", turn=_CODING_TURNS, api="chat", ending="refused")
            )
        yield tuple(sends)


def _reports(dice: random.Random) -> Iterator[tuple[Send, ...]]:
    """Come back, again and again, just after their TTL has passed."""
    for number in range(len(_REPORTS_ORDER)):
        first = 2.0 + 2.5 * number
        runs = int((HOUR - first) // _REPORTS_EVERY)
        yield tuple(
            Send(
                minute=first + _REPORTS_EVERY * run + dice.uniform(0.0, 0.3),
                tenant=REPORTS,
                talk=f"reports-{number}",
                turn=run,
                api="chat",
                answer=8,
                computed=420 if first + _REPORTS_EVERY * run < RAISED + _REPORTS_EVERY else 40,
            )
            for run in range(runs)
        )


def _thinned(talks: list[tuple[Send, ...]], order: tuple[int, ...], density: float) -> list[tuple[Send, ...]]:
    """Leave whole conversations out, the last of `order` first; one always stays."""
    keep = sorted(order[: max(1, round(len(order) * density))])
    return [talks[place] for place in keep]
