"""The memory that K and V lie in, and how much of it there may be.

Owns the tensors; block numbers come from outside. Layout: [slots, kv_heads, head_dim] per layer, for K and for V, page
after page, so that contiguous pages are one contiguous stretch of tokens. What it is stored in: `engine.stored`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import ModelRefused
from engine.stored import NAMES, SCALE_BYTES, Stored

DEFAULT_SHARE = 0.25  # of the free memory, when the operator names no number
DEFAULT_CEILING = 4 << 30  # bytes, on a CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """What one token's keys and values look like in the pool."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype  # stored

    @property
    def name(self) -> str:
        """What it is stored in, as `kv_cache_dtype` has it."""
        return NAMES[self.dtype]

    @property
    def bytes_per_token(self) -> int:
        """K and V of all layers, and their scales."""
        head = self.head_dim * int(self.dtype.itemsize) + (SCALE_BYTES if self.dtype == torch.int8 else 0)
        return 2 * self.layers * self.kv_heads * head


class KVTensors:
    """K and V of every layer. Untouched pages of a fresh pool cost no physical memory on a CPU."""

    def __init__(self, layout: KVLayout, *, blocks: int, block_tokens: int, device: torch.device) -> None:
        self.layout = layout
        size = (blocks * block_tokens, layout.kv_heads, layout.head_dim)
        self.rows = [
            (Stored.empty(*size, layout.dtype, device), Stored.empty(*size, layout.dtype, device))
            for _ in range(layout.layers)
        ]

    def read(self, layer: int, dtype: torch.dtype) -> tuple[Tensor | Stored, Tensor | Stored]:
        """Return a layer's rows of slots [slots, kv_heads, head_dim] for attention that computes in `dtype`."""
        keys, values = self.rows[layer]
        return keys.seen(dtype), values.seen(dtype)

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write new K/V [tokens, kv_heads, head_dim] to `slots` [tokens]; return them as they will be read."""
        keys, values = self.rows[layer]
        return keys.write(slots, key), values.write(slots, value)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy `tokens` slots of every layer, for a sequence that goes on inside another's block."""
        for keys, values in self.rows:
            keys.copy(source, target, tokens)
            values.copy(source, target, tokens)


def plan_blocks(
    layout: KVLayout, *, kv_bytes: int | None, free_bytes: int, block_tokens: int, max_model_len: int
) -> int:
    """Return how many blocks the pool gets.

    A pool smaller than the window is allowed: requests that could never fit it are refused one by one. Raises
    ModelRefused when it would hold not even one block.
    """
    budget = min(DEFAULT_CEILING, int(free_bytes * DEFAULT_SHARE)) if kv_bytes is None else kv_bytes
    per_block = layout.bytes_per_token * block_tokens
    blocks = budget // per_block
    if not blocks:
        raise ModelRefused(
            f"{budget:,} bytes of KV memory hold not even one block of {block_tokens} tokens. "
            f"Give --kv-bytes {per_block} or more; a whole window takes {layout.bytes_per_token * max_model_len}."
        )
    return blocks
