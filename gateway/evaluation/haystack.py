"""Facts hidden in prose: which facts, in which prose, after which of its pieces. Pure, the same for equal seeds.

A fact is a town with a number of five digits. Nothing in the prose hints at the number, so whoever tells it has read it
where it stands; other towns' numbers stand in the same prose, so that having seen a number is not enough.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Final

TOWNS: Final = tuple(
    re.findall(
        r"\w+",
        "Aarhus Bergen Bologna Bremen Cádiz Cardiff Chania Cork Delft Dijon Dresden Dundee Espoo Évora Gdansk "
        "Geneva Ghent Graz Haifa Izmir Kazan Kyoto Leeds Lima Linz Lisbon Lyon Malmö Metz Milan Mombasa Nagoya "
        "Nantes Naples Odense Oslo Ostrava Oxford Padua Palermo Parma Perth Plovdiv Porto Prague Quito Reims Riga "
        "Rouen Salzburg Seville Siena Split Tampere Tartu Toledo Trieste Turin Utrecht Valencia Verona Vienna "
        "Zadar Zagreb",
    )
)
LOWEST, HIGHEST = 10_000, 99_999
LONGEST_PIECE: Final = 240  # characters
_SENTENCE: Final = re.compile(r"(?<=[.!?;])\s+|(?<=[。！？；])")  # noqa: RUF001 - as Chinese and Japanese write them


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact, and where it is to stand: 0 before all the prose, 1 after it."""

    town: str
    number: str
    depth: float

    @property
    def sentence(self) -> str:
        """The fact as it stands in the prose."""
        return f"{self.opening}{self.number}."

    @property
    def opening(self) -> str:
        """How the answer begins, up to the number."""
        return f"The pass number of {self.town} is #"

    @property
    def question(self) -> str:
        """What is asked."""
        return f"What is the pass number of {self.town}?"


def facts(depths: Sequence[float], each: int, random: Random) -> tuple[Fact, ...]:
    """Draw `each` facts for every depth, in the order in which they stand. No town and no number comes twice."""
    count = each * len(depths)
    numbers = random.sample(range(LOWEST, HIGHEST + 1), count)
    drawn = zip(random.sample(TOWNS, count), numbers, strict=True)
    return tuple(Fact(town, str(number), depths[at // each]) for at, (town, number) in enumerate(drawn))


def candidates(right: Fact, others: Sequence[Fact], count: int, random: Random) -> tuple[str, ...]:
    """Return `count` numbers, the right one first: others of the same prose, made-up ones where those are few."""
    known = [fact.number for fact in others if fact != right]
    taken = {right.number, *known}
    wrong = random.sample(known, min(len(known), count - 1))
    while len(wrong) < count - 1:
        number = str(random.randint(LOWEST, HIGHEST))
        if number not in taken:
            taken.add(number)
            wrong.append(number)
    return (right.number, *wrong)


def pieces(text: str) -> tuple[str, ...]:
    """Cut a text into sentences, longer ones at their blanks; headings of Markdown are left out."""
    prose = " ".join(line.strip() for line in text.splitlines() if not line.lstrip().startswith("#"))
    return tuple(part for sentence in _SENTENCE.split(prose) for part in _parts(sentence.strip()) if part)


def _parts(sentence: str) -> Iterator[str]:
    while len(sentence) > LONGEST_PIECE:
        cut = sentence.rfind(" ", 1, LONGEST_PIECE) + 1 or LONGEST_PIECE
        yield sentence[:cut].strip()
        sentence = sentence[cut:]
    yield sentence


def filler(prose: Sequence[str], size: Callable[[str], int], room: int, random: Random) -> list[tuple[str, int]]:
    """Draw pieces of at most `room` tokens together, each with its size; all of them in another order once used up."""
    drawn: list[tuple[str, int]] = []
    sizes = {piece: size(piece) for piece in prose}
    smallest = min(sizes.values())
    while room >= smallest:
        for piece in random.sample(prose, len(prose)):
            if sizes[piece] <= room:
                drawn.append((piece, sizes[piece]))
                room -= sizes[piece]
    return drawn


def laid(drawn: Sequence[tuple[str, int]], hidden: Iterable[Fact]) -> str:
    """Write the pieces with each fact after the piece whose end is nearest to its depth; the earlier of two."""
    ends = [0, *accumulate(tokens for _, tokens in drawn)]
    after: dict[int, list[str]] = {}
    for fact in hidden:
        place = min(range(len(ends)), key=lambda at: abs(ends[at] - fact.depth * ends[-1]))
        after.setdefault(place, []).append(fact.sentence)
    words = list(after.get(0, ()))
    for at, (piece, _) in enumerate(drawn, 1):
        words += [piece, *after.get(at, ())]
    return " ".join(words)
