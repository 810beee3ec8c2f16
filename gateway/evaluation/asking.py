"""Questions and texts put to a running engine.

A candidate answer is teacher-forced: the answer is confined to its digits, and the engine tells how likely each of its
tokens was under the model itself, before anything confined it. So the haystack is computed once, and each of the other
candidates and questions reads its keys and values as they are stored.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from engine.client import EngineClient
from engine.config import EngineConfig
from engine.errors import EngineError, EngineUnavailable, ModelRefused
from engine.messages import Finished, Keep, ModelCard, Prefilled, Sampling, Submit, TokenLogprob
from gateway.evaluation.prompts import ANSWER_TOKENS, Question
from gateway.evaluation.scoring import Answered, Read
from prefix_store.chain import TOKEN_BYTES

KEPT_S: Final = 3600.0  # a haystack is asked about long before
TENANT: Final = "evaluation"


class NoNumbers(EngineError):
    """The model's log-probabilities are not numbers."""


@asynccontextmanager
async def running(config: EngineConfig) -> AsyncIterator[tuple[EngineClient, ModelCard]]:
    """Run an engine process for the length of a block. Raises ModelRefused, or EngineUnavailable when it dies."""
    client = EngineClient(config)
    await client.start()
    try:
        while client.card is None:
            if client.refusal is not None:
                raise ModelRefused(client.refusal)
            if client.restarts:
                raise EngineUnavailable("the engine died while it started; its own words are above")
            await client.changed()
        yield client, client.card
    finally:
        await client.stop()


class Asker:
    """Asks one engine, and counts what it read."""

    def __init__(self, client: EngineClient, rendering: str) -> None:
        self._client = client
        self._rendering = rendering
        self._numbers = itertools.count(1)
        self.prompt_tokens = 0
        self.read_tokens = 0

    async def answered(self, question: Question) -> Answered:
        """Find out how likely each candidate is. Raises EngineError."""
        told = await asyncio.gather(*(self._forced(question.tokens, number) for number in question.candidates))
        right, *wrong = told
        mine = sum(one.logprob for one in right)
        return Answered(
            length=question.length,
            depth=question.fact.depth,
            logprobs=tuple(one.logprob for one in right),
            found=all(one.top[0][0] == one.token for one in right),
            chosen=all(sum(one.logprob for one in other) < mine for other in wrong),
        )

    async def read(self, lead: bytes, stretch: bytes, untold: int) -> Read:
        """Find out how likely a stretch's tokens are after `lead`, but for the first `untold`. Raises EngineError.

        The very first token of a prompt comes after nothing, and so is not told either.
        """
        logprobs, prefilled = await self._told(
            Submit(id=self._id(), tokens=lead + stretch, max_tokens=0, tenant=TENANT, prompt_logprobs=1)
        )
        assert not logprobs
        of_text = prefilled.logprobs[len(lead) // TOKEN_BYTES :]
        told = numbers([one for one in of_text[untold:] if one is not None])
        return Read(nats=-sum(one.logprob for one in told), likeliest=tuple(one.top[0][0] for one in told))

    async def _forced(self, prompt: bytes, number: str) -> Sequence[TokenLogprob]:
        logprobs, prefilled = await self._told(
            Submit(
                id=self._id(),
                tokens=prompt,
                max_tokens=max(len(number), ANSWER_TOKENS - 1),
                sampling=Sampling(temperature=0.0, logprobs=1),
                tenant=TENANT,
                rendering=self._rendering,
                keep=Keep(held_ttl_s=KEPT_S),
                grammar=f'start: "{number}"',
            )
        )
        self.prompt_tokens += prefilled.prompt
        self.read_tokens += prefilled.read
        return numbers(logprobs)

    async def _told(self, submit: Submit) -> tuple[list[TokenLogprob], Prefilled]:
        logprobs: list[TokenLogprob] = []
        prefilled: Prefilled | None = None
        finished: Finished | None = None
        with self._client.open(submit) as ticket:
            async for delta in ticket:
                logprobs += delta.logprobs
                prefilled = prefilled or delta.prefilled
                finished = delta.finished
        assert prefilled is not None and finished is not None
        return logprobs, prefilled

    def _id(self) -> str:
        return f"evaluation-{next(self._numbers)}"


def numbers(told: Sequence[TokenLogprob]) -> Sequence[TokenLogprob]:
    """Hand on log-probabilities that are numbers. Raises NoNumbers."""
    if not all(math.isfinite(one.logprob) for one in told):
        raise NoNumbers("the model's log-probabilities are not numbers")
    return told
