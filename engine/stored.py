"""Keys or values as they are stored, which may be in fewer bits than a model computes in. Knows no model and no blocks.

A float is rounded, what is too large for it is the largest it has. fp8 is e4m3: 4 bits of exponent, 3 of fraction.
`int8` is scaled to the largest number of each token and KV head, and the scales lie beside it, float32. Rule: what is
read back is all that anybody attends to, a step's own new tokens too; so a token weighs the same cold and warm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from engine.config import AUTO

STORED: Final[Mapping[str, torch.dtype]] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}
NAMES: Final = {dtype: name for name, dtype in STORED.items()}
MOST_INT8: Final = 127
SCALE_BYTES: Final = 4  # one float32 for each token and KV head, of K and of V
_LEAST_SCALE: Final = 1e-30  # of a token that is all zeros
# The bits of an fp8 (sign, 4, 3), read as int8, widened and shifted, are those of a float16 (sign, 5, 10) 256 times as
# small, once the copy of the sign in its highest exponent bit is gone. torch's own conversion takes five times as long.
# Only an fp8 that is no number comes out as one, 480; a step that computes such keys still sees what they are.
_FP8_SHIFT: Final = 7
_FP8_MASK: Final = -0x4001
_FP8_FACTOR: Final = 256.0


def stored_dtype(name: str, computed: torch.dtype) -> torch.dtype:
    """Return what `kv_cache_dtype` means for a model that computes in `computed`."""
    return computed if name == AUTO else STORED[name]


@dataclass(frozen=True, slots=True)
class Stored:
    """One layer's K or V as stored, with the scales of `int8`. Sliced like a tensor, it gives what it stands for."""

    data: Tensor  # [slots, kv_heads, head_dim]
    scales: Tensor | None  # [slots, kv_heads]
    read_as: torch.dtype

    @classmethod
    def empty(cls, slots: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> Stored:
        """Return room for so many tokens. Untouched, it costs no physical memory on a CPU."""
        data = torch.empty(slots, kv_heads, head_dim, dtype=dtype, device=device)
        scales = torch.empty(slots, kv_heads, device=device) if dtype == torch.int8 else None
        return cls(data, scales, torch.float32)

    @property
    def dtype(self) -> torch.dtype:
        """What it is stored in."""
        return self.data.dtype

    @property
    def shape(self) -> torch.Size:
        """[slots, kv_heads, head_dim]."""
        return self.data.shape

    def __len__(self) -> int:
        """Slots."""
        return len(self.data)

    def __getitem__(self, slots: slice | Tensor) -> Tensor:
        """Read [slots, kv_heads, head_dim] in `read_as`."""
        if self.dtype == torch.float8_e4m3fn:
            wide = _bits(self.data)[slots].to(torch.int16).bitwise_left_shift_(_FP8_SHIFT).bitwise_and_(_FP8_MASK)
            return wide.view(torch.float16).to(self.read_as).mul_(_FP8_FACTOR)
        read = self.data[slots].to(self.read_as)
        return read if self.scales is None else read.mul_(self.scales[slots][..., None])

    def together(self, stretches: Sequence[tuple[int, int]]) -> Stored:
        """Return stretches of slots (first, tokens) as one, a copy."""
        data, scales = (
            None if part is None else torch.cat([part[slot : slot + tokens] for slot, tokens in stretches])
            for part in (_bits(self.data), self.scales)
        )
        assert data is not None
        return Stored(data.view(self.dtype), scales, self.read_as)

    def seen(self, dtype: torch.dtype) -> Tensor | Stored:
        """Return what attention in `dtype` reads: the numbers themselves where they are stored in it, else a view."""
        return self.data if self.dtype == dtype else Stored(self.data, self.scales, dtype)

    def write(self, slots: Tensor, given: Tensor) -> Tensor:
        """Store [tokens, kv_heads, head_dim] in `slots` [tokens]; return it as it will be read."""
        if self.dtype == given.dtype:
            self.data.index_copy_(0, slots, given)
            return given
        data, scales = stored(given, self.dtype)
        _bits(self.data).index_copy_(0, slots, _bits(data))
        if scales is None or self.scales is None:
            return data.to(given.dtype)
        self.scales.index_copy_(0, slots, scales)
        return data.to(given.dtype).mul_(scales[..., None])

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy so many slots, which do not overlap."""
        for part in (self.data, self.scales):
            if part is not None:
                part[target : target + tokens] = part[source : source + tokens]


Slots = Tensor | Stored  # of one layer: [slots, kv_heads, head_dim]


def stored(given: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Return numbers in `dtype`, and the scales [tokens, kv_heads] where that is int8."""
    if dtype == torch.int8:
        scales = given.abs().amax(dim=-1).float().div_(MOST_INT8).clamp_(min=_LEAST_SCALE)
        return (given / scales[..., None]).round_().to(dtype), scales
    most = torch.finfo(dtype).max
    if most < torch.finfo(given.dtype).max:
        given = given.clamp(-most, most)
    return given.to(dtype), None


def _bits(data: Tensor) -> Tensor:
    """See fp8 as bytes, which can be moved where its numbers cannot."""
    return data.view(torch.int8) if data.dtype == torch.float8_e4m3fn else data
