"""Which replica a request goes to: the one with the least work, of which a resident prefix is no part.

Owns beliefs and loads of one model's replicas. Knows no network and no clock; chance is given. Rules:
- the cost of a replica is what this request would compute there plus what already waits there, in tokens, for each unit
  of its weight; candidates are the replicas that hold some of the prompt and two drawn by chance, so a request that
  nobody knows goes to the less loaded of two (Mitzenmacher, The power of two choices, 2001);
- equal costs go to the one that holds more, then by chance; to hold less than `WORTH_TOKENS` is to hold nothing, or the
  few words that all prompts begin with would draw every one of them to one replica; where others choose among the same
  replicas, the prompt itself takes the place of chance, so that equal ones at one moment meet whoever chooses;
- what is sent is believed to be resident at once, so equal cold prompts follow each other: work that is under way for
  this very prompt's beginning is not held against a replica. What the answer says was read corrects the belief, and a
  replica that reads nothing of what it was believed to hold, time after time, is believed to have restarted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from random import Random
from typing import Literal

import xxhash

from gateway.routing.loads import Loads
from gateway.routing.wanted import Wanted
from prefix_store.residency import Residency
from prefix_store.residency_node import LINK_BYTES, NOTHING, Held

Policy = Literal["prefix", "least_load", "round_robin", "session"]
Why = Literal["prefix", "load", "chance", "turn", "session"]

DRAWN = 2
WORTH_TOKENS = 64
WITHIN = 0.9  # of what was believed
WIPED = 3  # answers in a row that read nothing of what was surely there
SLACK_TOKENS = 64  # whole blocks and estimates; an answer that read less than both allow contradicts the belief


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Where a request goes.

    In tokens, `available` is the most that any replica was believed to hold, and `captured` what the chosen one was.
    """

    replica: str
    why: Why
    available: int
    captured: int
    used: float | None  # when the last block of what was captured was last used, as far as is believed
    ticket: int
    pieces: int = 0  # of the prompt that the chosen one was believed to hold, however few


def refuted(choice: Choice, read: int | None) -> bool:
    """Tell whether an answer that read so much contradicts what was believed when its request was sent."""
    if read is None or choice.used is None or choice.captured <= 2 * SLACK_TOKENS:
        return False
    return read + SLACK_TOKENS < WITHIN * choice.captured


class Router:
    """Chooses among replicas, and learns from what they say."""

    def __init__(self, policy: Policy = "prefix", *, chance: Random | None = None) -> None:
        """Start with no replicas known; `choose` is told who may be chosen."""
        self.policy: Policy = policy
        self.residency = Residency()
        self.loads = Loads()
        self.together = False  # whether others choose among the same replicas at the same time
        self._weights: dict[str, float] = {}
        self._chance = chance or Random()  # noqa: S311 - nothing here is a secret
        self._turn = 0
        self._empty: dict[str, int] = {}  # by replica: answers in a row that read nothing of what was surely there

    def weigh(self, replica: str, weight: float) -> None:
        """Say how much faster than a plain one a replica is."""
        self._weights[replica] = weight

    def choose(self, wanted: Wanted, among: Sequence[str], now: float) -> Choice:
        """Choose one of `among`, which must not be empty, and count the request there until it is `over`."""
        known = self.residency.match(wanted.path, now, among)
        held = {name: one for name, one in known.items() if wanted.tokens_at(one.blocks) >= WORTH_TOKENS}
        available = max((one.blocks for one in held.values()), default=0)
        replica, why = self._pick(wanted, among, held)
        pieces = held.get(replica, NOTHING).blocks
        used = self.residency.last_use(replica, wanted.path, pieces) if pieces else None
        captured = min(wanted.tokens_at(pieces), max(0, wanted.tokens - 1))
        ticket = self.loads.add(replica, wanted.tokens - captured)
        self.residency.note(replica, wanted.path, now + wanted.ttl_s, now, sure=False)
        most = min(wanted.tokens_at(available), max(0, wanted.tokens - 1))
        return Choice(
            replica=replica,
            why=why,
            available=most,
            captured=captured,
            used=used,
            ticket=ticket,
            pieces=known.get(replica, NOTHING).blocks,
        )

    def answering(self, choice: Choice) -> None:
        """Hear that the first token has come: the prompt is computed."""
        self.loads.computed(choice.ticket)

    def over(self, choice: Choice, wanted: Wanted, now: float, *, read: int | None, computed: bool) -> None:
        """Hear that a request is over. `read` tokens came from the cache, None where nobody said.

        One whose prompt was not `computed` has left nothing behind: what was believed for it alone is believed no more.
        """
        self.loads.take(choice.ticket)
        if not computed:
            self._unsay(choice, wanted)
            return
        self.learn(choice, wanted, now, read=read)

    def learn(self, choice: Choice, wanted: Wanted, now: float, *, read: int | None) -> None:
        """Hear that a prompt is computed and how much of it was read; the answer goes on."""
        if read is not None and choice.used is not None and choice.captured > 2 * SLACK_TOKENS:
            self._compare(choice, read, choice.used)
        self.residency.note(choice.replica, wanted.path, now + wanted.ttl_s, now)

    def _compare(self, choice: Choice, read: int, used: float) -> None:
        """Hold what was read against what was believed."""
        if not refuted(choice, read):
            self._empty.pop(choice.replica, None)
            return
        empty = self._empty.get(choice.replica, 0) + 1 if read <= SLACK_TOKENS else 0
        self._empty[choice.replica] = empty
        if empty >= WIPED:
            self.gone(choice.replica)
        else:
            self.residency.contradict(choice.replica, used)

    def gone(self, replica: str) -> int:
        """Hear that a replica died, restarted or was removed. Return how many pieces are believed no longer."""
        self._empty.pop(replica, None)
        return self.residency.forget(replica)

    def _unsay(self, choice: Choice, wanted: Wanted) -> None:
        """Take back what was believed when the request was sent, beyond what was known before."""
        self.residency.cut(choice.replica, wanted.path, choice.pieces)

    # ---- policies ----

    def _pick(self, wanted: Wanted, among: Sequence[str], held: dict[str, Held]) -> tuple[str, Why]:
        match self.policy:
            case "round_robin":
                self._turn += 1
                return among[self._turn % len(among)], "turn"
            case "least_load":
                return self._least(among, {}, None), "load"
            case "session" if wanted.session:
                return max(among, key=lambda name: self._rank(wanted.session, name)), "session"
            case _:
                drawn = self._drawn(wanted, among)
                chosen = self._least(list(dict.fromkeys([*held, *drawn])), held, wanted)
                if not held:
                    return chosen, "chance"
                most = max(one.blocks for one in held.values())
                return chosen, "prefix" if held.get(chosen, NOTHING).blocks == most else "load"

    def _least(self, candidates: Sequence[str], held: dict[str, Held], wanted: Wanted | None) -> str:
        """Return the candidate of least cost, then of most held, then by chance. Without `wanted` only load counts."""
        best: list[str] = []
        least = (float("inf"), 0)
        for name in candidates:
            pieces, pending = held.get(name, NOTHING)
            work = self.loads.at(name)
            if wanted is not None:
                under_way = wanted.tokens_at(pieces) - wanted.tokens_at(pieces - pending)
                work = max(0.0, work - under_way) + wanted.tokens - wanted.tokens_at(pieces)
            cost = (work / self._weights.get(name, 1.0), -pieces)
            if cost < least:
                best, least = [name], cost
            elif cost == least:
                best.append(name)
        if len(best) == 1:
            return best[0]
        if self.together and wanted is not None:
            return max(best, key=lambda name: self._affinity(wanted, name))
        return self._chance.choice(best)

    def _drawn(self, wanted: Wanted, among: Sequence[str]) -> Sequence[str]:
        """Draw two. Together with others the prompt itself draws, so that equal ones at one moment meet."""
        if len(among) <= DRAWN:
            return among
        if self.together:
            return nlargest(DRAWN, among, key=lambda name: self._affinity(wanted, name))
        return self._chance.sample(among, DRAWN)

    def _affinity(self, wanted: Wanted, name: str) -> int:
        return xxhash.xxh3_64_intdigest(wanted.path[-LINK_BYTES:] + name.encode())

    def _rank(self, session: str, name: str) -> int:
        """Rank a replica for a session: the highest has it (Thaler and Ravishankar, rendezvous hashing, 1998)."""
        return xxhash.xxh3_64_intdigest(f"{len(session)}:{session}{name}".encode())
