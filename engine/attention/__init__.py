"""One attention interface, several implementations, one plain reference.

attend(query, key, value, keys, values, batch, scoring) -> output

query [tokens, heads, head_dim]          the new tokens of all sequences, one after another
key, value [tokens, kv_heads, head_dim]  of the same tokens, as they were written to the pool and read back
keys, values [slots, kv_heads, head_dim] this layer's pool, seen as one row of slots (engine.stored.Slots)
batch                                    which rows attend to which slots (engine.batch.Batch)
scoring                                  how this layer weighs what it sees (Scoring)
output [tokens, heads, head_dim]
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a query weighs the keys before it."""

    scaling: float  # of every score
    window: int | None = None  # tokens that a token sees, itself included; None: all before it
    softcap: float | None = None  # scores come no nearer to ± this: softcap · tanh(score / softcap)
    sinks: Tensor | None = None  # [heads] scores of keys without a value: they only take weight away
