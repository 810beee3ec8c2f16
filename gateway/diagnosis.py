"""Why a prompt missed: each request is compared with an earlier one while the engine is at work.

Owns one `Case` per request in flight; what is remembered is `gateway.recall`'s. Rules: no answer waits for a comparison
longer than the memory's own time limit; what cannot be compared is told by what became of its blocks alone; a tenant's
requests are compared with that tenant's only.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import datetime

import msgspec
import structlog

from engine.messages import ModelCard, Prefilled
from gateway.ask import Ask, Turn
from gateway.canonical import text as json_text
from gateway.compare import Divergence, common_parts, compare
from gateway.fingerprint import Hashes, answered, fingerprint
from gateway.layout import Span
from gateway.looks import looks_like
from gateway.miss import Comparison, Explained, Where, changed_word, explain, misses
from gateway.prompt import Prompt
from gateway.recall import Recall
from prefix_store.fingerprints import Fingerprint

log = structlog.get_logger("gateway")

THREAD_TOKENS = 50_000  # longer prompts are hashed in a thread


class Diagnosis:
    """Compares requests."""

    def __init__(self, recall: Recall, *, rendering: str) -> None:
        """Remember in `recall`; `rendering` names tokenizer and template."""
        self._recall = recall
        self._rendering = rendering

    def begin(self, ask: Ask, prompt: Prompt, card: ModelCard, at: datetime) -> Case:
        """Begin to compare. Close the case when the answer is over."""
        return Case(self._recall, ask, prompt, card, self._rendering, at)


class Case:
    """One request under comparison."""

    def __init__(self, recall: Recall, ask: Ask, prompt: Prompt, card: ModelCard, rendering: str, at: datetime) -> None:
        """Begin at wall-clock time `at`."""
        self._recall = recall
        self._keyed = recall.keyed(ask.tenant)
        self._ask = ask if ask.raw is None else replace(ask, turns=(_raw_turn(ask.raw, ask.prompt_field),))
        self._prompt = prompt
        self._spans = prompt.spans or _raw_spans(len(prompt))
        self._card = card
        self._rendering = rendering
        self._at = at
        self._made: Fingerprint | None = None  # once it is remembered
        self.hashed_s = 0.0  # how long hashing took
        self._work = asyncio.create_task(self._compare())

    async def explain(self, prefilled: Prefilled, now: datetime) -> Explained:
        """Say why what was not read was not."""
        try:
            made, hashes, earlier, divergence = await self._work
        except Exception:  # an answer is worth more than its explanation
            log.exception("diagnosis_failed")
            return Explained(misses=misses(prefilled.missed, now))
        self._made = made
        self._recall.remember(self._ask.tenant, made, hashes)
        if earlier is None or divergence is None:
            comparison = Comparison(earlier=False) if self._ask.diagnosed else None
            return Explained(misses=misses(prefilled.missed, now), comparison=comparison)
        told = explain(
            divergence,
            prefilled.missed,
            read=prefilled.read,
            prompt=prefilled.prompt,
            now=now,
            same_text=changed_word(made, earlier),
            where=self._where(divergence),
        )
        comparison = self._comparison(made, earlier, divergence, prefilled) if self._ask.diagnosed else None
        return Explained(misses=told, comparison=comparison)

    def answered(self, turn: Turn, generated: bytes) -> None:
        """Remember the answer too: its tokens as generated, and the turn that it is when it comes back."""
        if self._made is None:
            return
        opening = self._spans[-1]
        before = self._prompt.tokens[opening.begin * 4 : opening.end * 4]
        answer, hashes = answered(self._keyed, turn, before, generated)
        self._recall.remember(self._ask.tenant, msgspec.structs.replace(self._made, answer=answer), hashes)

    def close(self) -> None:
        """Stop comparing."""
        self._work.cancel()

    async def _compare(self) -> tuple[Fingerprint, Hashes, Fingerprint | None, Divergence | None]:
        if len(self._prompt) > THREAD_TOKENS:
            made, hashes = await asyncio.to_thread(self._fingerprint)
        else:
            made, hashes = self._fingerprint()
        tenant = self._ask.tenant
        earlier = await self._recall.find(tenant, made, named=self._ask.compared_with)
        if earlier is None:
            return made, hashes, None, None
        place = common_parts(made, earlier)
        wanted = [part.rendered for part in earlier.parts[place : place + 1]]
        wanted += [earlier.answer.rendered] if earlier.answer else []
        theirs = await self._recall.hashes(tenant, wanted)
        return made, hashes, earlier, compare(made, earlier, {**theirs, **hashes})

    def _fingerprint(self) -> tuple[Fingerprint, Hashes]:
        began = time.perf_counter()
        made = fingerprint(
            self._keyed,
            self._ask,
            self._spans,
            self._prompt.tokens,
            id=self._ask.id,
            at=self._at.timestamp(),
            model=self._card.name,
            weights=self._card.weights,
            rendering=self._rendering,
            settings=self._ask.settings,
        )
        self.hashed_s = time.perf_counter() - began
        return made

    def _comparison(
        self, made: Fingerprint, earlier: Fingerprint, divergence: Divergence, prefilled: Prefilled
    ) -> Comparison:
        mine, theirs = made.settings, earlier.settings
        return Comparison(
            earlier=True,
            divergence=divergence,
            partition=made.partition != earlier.partition,
            settings=tuple(name for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name)),
            read=prefilled.read >= min(divergence.token, prefilled.prompt - 1) - self._card.block_tokens,
        )

    def _where(self, divergence: Divergence) -> Where | None:
        """Name the place at which the prompts part."""
        part = divergence.part
        if part is None:
            return None
        span = next(one for one in self._spans if (one.kind, one.index) == (part.kind, part.index))
        path, text = self._words(span)
        character: int | None = None
        at: int | None = None
        seen = text
        if self._prompt.encoded is not None:
            place = self._prompt.encoded.place(divergence.token)
            character = at = min(max(0, place - span.text), len(text))
            if divergence.reason == "template":  # the client's words are the same, so what was written around them
                seen, at = self._prompt.encoded.text, place
        return Where(
            message=path,
            token=divergence.token,
            character=character,
            looks_like=_looks(divergence, seen, at),
        )

    def _words(self, span: Span) -> tuple[str, str]:
        """Return the path of a span's source in the request, and its text."""
        if span.kind == "opening":
            return "", ""
        if span.kind == "tool":
            tool = self._ask.tools[span.index]
            return tool.path or f"tools[{span.index}]", json_text([tool.name, tool.description, dict(tool.parameters)])
        turn = self._ask.turns[span.index]
        return turn.path or f"messages[{span.index}]", turn.text


def _looks(divergence: Divergence, text: str, at: int | None) -> str:
    if divergence.shuffled:
        return "shuffled_list"
    if divergence.compacted:
        return "rewritten_summary"
    if divergence.whitespace:
        return "white_space"
    return "text" if at is None else looks_like(text, at)


def _raw_turn(raw: str | bytes, field: str) -> Turn:
    return Turn(role="user", text=raw if isinstance(raw, str) else raw.hex(), path=field)


def _raw_spans(tokens: int) -> tuple[Span, ...]:
    return Span("user", 0, 0, tokens), Span("opening", 0, tokens, tokens)
