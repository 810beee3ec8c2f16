"""Haystacks and questions as the model's token ids: by its chat template, or as plain text where it has none.

Rule: all questions of one haystack begin with the same tokens, so that only the first of them computes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Final

from gateway.ask import Ask, Turn
from gateway.errors import BadRequest
from gateway.evaluation import haystack
from gateway.evaluation.errors import Unmeasurable
from gateway.evaluation.haystack import Fact
from gateway.prompt import Renderer
from prefix_store.chain import TOKEN_BYTES

CANDIDATES: Final = 10  # answers among which the right one should be the likeliest
ANSWER_TOKENS: Final = 6  # five digits, and what ends an answer whose tokens hold several
BEFORE: Final = "Here are some notes. A question about them follows."
AFTER: Final = "Answer from the notes above."


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question over one haystack."""

    length: int
    fact: Fact
    tokens: bytes  # up to where the number begins
    candidates: tuple[str, ...]  # the right one first


class Prompts:
    """Prompts for one model."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self.rendering = renderer.identity
        self._lead = self.raw("")  # what the tokenizer itself begins a text with
        self.size = lru_cache(None)(self._size)

    @property
    def templated(self) -> bool:
        """Whether questions are asked through the model's own chat template."""
        return self._renderer.chats and self._asked("", Fact(haystack.TOWNS[0], "", 0.0)) is not None

    def questions(
        self, length: int, prose: Sequence[str], *, depths: Sequence[float], each: int, seed: int
    ) -> list[Question]:
        """Make one haystack of `length` tokens with its question and answer, and all its questions.

        Raises Unmeasurable where so many facts do not fit.
        """
        random = Random(f"{seed} {length}")  # noqa: S311 - drawn to be repeated
        hidden = haystack.facts(depths, each, random)
        drawn = haystack.filler(prose, self.size, length, random)
        room = length - ANSWER_TOKENS
        while (over := self._most(drawn, hidden) - room) > 0 and drawn:
            drawn = _shortened(drawn, over)
        if not drawn:
            least = self._most([], hidden) + min(map(self.size, prose)) + ANSWER_TOKENS
            raise Unmeasurable(
                f"--lengths: {length} tokens do not hold {len(hidden)} facts, a question and prose between them; give "
                f"{least} or more, or fewer --facts or --depths"
            )
        text = haystack.laid(drawn, hidden)
        return [
            Question(
                length=length,
                fact=fact,
                tokens=self.asked(text, fact),
                candidates=haystack.candidates(fact, hidden, CANDIDATES, random),
            )
            for fact in hidden
        ]

    def asked(self, text: str, fact: Fact) -> bytes:
        """Ask about a text; the prompt ends where the answer's number begins."""
        tokens = self._asked(text, fact) if self._renderer.chats else None
        if tokens is None:
            tokens = self.raw(f"{_body(text, fact)}\n\n{fact.opening}")
        return tokens

    def raw(self, text: str) -> bytes:
        """Encode a text as the tokenizer itself begins one."""
        return self._renderer.made(Ask(id="", model="", raw=text)).tokens

    def long_text(self, text: str, most: int) -> tuple[bytes, bytes]:
        """Return what goes before each stretch of a text, and at most `most` tokens of the text."""
        lead = len(self._lead)
        return self._lead, self.raw(text)[lead : lead + most * TOKEN_BYTES]

    def _asked(self, text: str, fact: Fact) -> bytes | None:
        """Ask through the template; None: it writes no answer that goes on."""
        turns = [Turn(role="user", text=_body(text, fact)), Turn(role="assistant", text=fact.opening)]
        try:
            return self._renderer.render(turns, continues=True).tokens
        except BadRequest:
            return None

    def _size(self, piece: str) -> int:
        return max(1, (len(self.raw(f" {piece}")) - len(self._lead)) // TOKEN_BYTES)

    def _most(self, drawn: Sequence[tuple[str, int]], hidden: Sequence[Fact]) -> int:
        """Tokens of the longest question over this haystack."""
        text = haystack.laid(drawn, hidden)
        return max(len(self.asked(text, fact)) // TOKEN_BYTES for fact in hidden)


def _body(text: str, fact: Fact) -> str:
    return f"{BEFORE}\n\n{text}\n\n{fact.question} {AFTER}"


def _shortened(drawn: list[tuple[str, int]], tokens: int) -> list[tuple[str, int]]:
    """Leave out pieces at the end that have so many tokens together, and at least one."""
    kept = drawn[:-1]
    left = tokens - drawn[-1][1]
    while left > 0 and kept:
        left -= kept.pop()[1]
    return kept
