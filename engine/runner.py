"""Everything that happens on the device in one step: batch, forward pass, sampling.

Owns the KV tensors. Knows no queue, no tree and no clock. Rule: it computes exactly the chunks it is given.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from engine import batch, logprobs, sampler
from engine.chunk import Chunk, Outcome
from engine.graphs import DecodeGraphs
from engine.kv_tensors import KVTensors
from engine.messages import TokenLogprob
from engine.model import PagedModel
from engine.request import TOKEN_BYTES
from engine.sampler import Draw


class Runner:
    """One model and its pool of keys and values."""

    def __init__(self, model: PagedModel, *, blocks: int, block_tokens: int, spare: int = 0) -> None:
        """Take memory for `blocks`, and for `spare` ones behind them that no sequence is given."""
        self.model = model
        self.kv = KVTensors(model.layout, blocks=blocks + spare, block_tokens=block_tokens, device=model.device)
        self.graphs: DecodeGraphs | None = None

    def run(self, chunks: Sequence[Chunk]) -> list[Outcome]:
        """Compute one step. Return what came of each chunk, in order."""
        return self.outcomes(chunks, self.logits(chunks))

    @staticmethod
    def outcomes(chunks: Sequence[Chunk], logits: Tensor) -> list[Outcome]:
        """Return what comes of the chunks, in order, by their logits."""
        sampling = [chunk for chunk in chunks if chunk.samples]
        scored, sampled = logits[: len(logits) - len(sampling)], logits[len(logits) - len(sampling) :]
        tokens = sampler.sample(sampled, [_draw(chunk) for chunk in sampling])
        fresh = zip(tokens, sampled, strict=True)
        outcomes, first = [], 0
        for chunk in chunks:
            last = first + len(chunk.scored)
            told = _scores(chunk, scored[first:last]) if last > first else ()
            first = last
            outcomes.append(_outcome(chunk, *next(fresh), told) if chunk.samples else Outcome(scored=told))
        return outcomes

    def logits(self, chunks: Sequence[Chunk]) -> Tensor:
        """Compute the chunks; return float32 logits [rows, vocab]: of scored positions first, then of what samples."""
        step = batch.build(chunks, self.model.device)
        replayed = self.graphs.replay(step) if self.graphs is not None and self.graphs.takes(chunks) else None
        logits = self.model.forward(step, self.kv) if replayed is None else replayed
        return logits.cpu()  # where tokens are drawn


def _draw(chunk: Chunk) -> Draw:
    sequence, request = chunk.sequence, chunk.sequence.request
    return Draw(
        sampling=request.sampling,
        seed=request.seed,
        position=sequence.length,
        weighing=sequence.weighing,
        allowed=None if sequence.matcher is None else sequence.matcher.allowed(),
        withheld=request.stop_ids if sequence.generated < request.sampling.min_tokens else frozenset(),
    )


def _outcome(chunk: Chunk, token: int, logits: Tensor, told: tuple[TokenLogprob, ...]) -> Outcome:
    top = chunk.sequence.request.sampling.logprobs
    (logprob,) = (None,) if top is None else logprobs.tell(logits[None], [token], top)
    return Outcome(token=token, logprob=logprob, scored=told)


def _scores(chunk: Chunk, logits: Tensor) -> tuple[TokenLogprob, ...]:
    request, positions = chunk.sequence.request, chunk.scored
    assert request.prompt_logprobs is not None
    after = (positions.start + 1) * TOKEN_BYTES
    tokens = np.frombuffer(request.tokens, dtype="<u4", count=len(positions), offset=after).tolist()
    return logprobs.tell(logits, tokens, request.prompt_logprobs)
