"""The memory that K and V lie in, and how much of it there may be.

Owns the tensors; block numbers come from outside. Layout: [pages, page, kv_heads, head_dim] per layer, for K and for V,
so that contiguous pages are one contiguous stretch of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from engine.errors import ModelRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """What one token's keys and values look like in the model."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """K and V of all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * int(self.dtype.itemsize)


class KVTensors:
    """K and V of every layer. Untouched pages of a fresh pool cost no physical memory on a CPU."""

    def __init__(self, layout: KVLayout, *, blocks: int, block_tokens: int, device: torch.device) -> None:
        self.layout = layout
        shape = (blocks, block_tokens, layout.kv_heads, layout.head_dim)
        new = partial(torch.empty, shape, dtype=layout.dtype, device=device)
        self.pages = [(new(), new()) for _ in range(layout.layers)]
        # the same memory as one row of slots per layer: [slots, kv_heads, head_dim]
        self.rows = [(keys.flatten(0, 1), values.flatten(0, 1)) for keys, values in self.pages]

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write new K/V [tokens, kv_heads, head_dim] to `slots` [tokens]; return the layer's rows of slots."""
        keys, values = self.rows[layer]
        keys.index_copy_(0, slots, key.to(keys.dtype))
        values.index_copy_(0, slots, value.to(values.dtype))
        return keys, values

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy `tokens` slots of every layer, for a sequence that goes on inside another's block."""
        for keys, values in self.rows:
            keys[target : target + tokens] = keys[source : source + tokens]
            values[target : target + tokens] = values[source : source + tokens]


@dataclass(frozen=True, slots=True)
class Room:
    """What K and V may take, who says so, and what else than `--kv-bytes` would give more."""

    size: int
    source: str
    grows: str = ""


def plan_blocks(layout: KVLayout, room: Room, *, block_tokens: int, max_model_len: int, window: bool = False) -> int:
    """Return how many blocks the pool gets. Raises ModelRefused, with what would fit, when one sequence would not.

    `window` says that the model's own window is the longest sequence, because the operator named none.
    """
    per_block = layout.bytes_per_token * block_tokens
    blocks = room.size // per_block
    fits = blocks * block_tokens
    if fits >= max_model_len:
        return blocks
    needed = -(-max_model_len // block_tokens) * per_block
    cures = [f"--kv-bytes {needed} or more", *([room.grows] if room.grows else [])]
    if fits:
        cures.insert(0, f"--max-model-len {fits} or less")
    whose = "the model's own window" if window else "--max-model-len"
    raise ModelRefused(
        f"Keys and values of one sequence of {max_model_len} tokens ({whose}) need {needed} bytes, and {room.size} "
        f"bytes are there for them ({room.source}). Give {' or '.join(cures)}."
    )
