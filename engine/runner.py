"""Everything that happens on the device in one step: batch, forward pass, sampling.

Owns the KV tensors. Knows no queue, no tree and no clock. Rule: it computes exactly the chunks it is given.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from engine import batch, sampler
from engine.kv_tensors import KVTensors
from engine.model import PagedModel
from engine.scheduler import Chunk


class Runner:
    """One model and its pool of keys and values."""

    def __init__(self, model: PagedModel, *, blocks: int, block_tokens: int) -> None:
        self.model = model
        self.kv = KVTensors(model.layout, blocks=blocks, block_tokens=block_tokens, device=model.device)

    def run(self, chunks: Sequence[Chunk]) -> list[int]:
        """Compute one step. Return one sampled token per chunk that samples, in order."""
        logits = self.logits(chunks)
        sampling = [chunk.sequence for chunk in chunks if chunk.samples]
        return sampler.sample(
            logits,
            [sequence.request.sampling for sequence in sampling],
            [sequence.request.seed for sequence in sampling],
            [sequence.length for sequence in sampling],
        )

    def logits(self, chunks: Sequence[Chunk]) -> Tensor:
        """Compute the chunks; return float32 logits [samples, vocab] of those that sample, in order."""
        return self.model.forward(batch.build(chunks, self.model.device), self.kv)
