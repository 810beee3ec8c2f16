"""The host's arrays of a step on their way to the device: one copy through pinned memory for all of them.

Owns nothing: pinned memory is torch's own, which gives it out again only after the copy that uses it is over. Rule:
what arrives equals what was given. On a CPU nothing is copied at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 16  # bytes, at which each array begins


@dataclass(frozen=True, slots=True)
class Place:
    """Where one array lies in the buffer."""

    first: int  # byte
    bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]


def stage(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Return the arrays as tensors on the device. On a CPU they share the arrays' memory."""
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    buffer, places = pack(arrays, pinned=device.type == "cuda")
    return unpack(buffer.to(device, non_blocking=True), places)


def pack(arrays: Sequence[np.ndarray], *, pinned: bool) -> tuple[Tensor, list[Place]]:
    """Write the arrays into one buffer of bytes. O(bytes)."""
    places, first = [], 0
    for array in arrays:
        places.append(Place(first, array.nbytes, torch.from_numpy(array).dtype, array.shape))
        first += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    buffer = torch.empty(first, dtype=torch.uint8, pin_memory=pinned)
    host = buffer.numpy()
    for array, place in zip(arrays, places, strict=True):
        host[place.first : place.first + place.bytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return buffer, places


def unpack(buffer: Tensor, places: Sequence[Place]) -> list[Tensor]:
    """Return the arrays as views of the buffer, wherever it lies."""
    return [buffer[place.first : place.first + place.bytes].view(place.dtype).view(place.shape) for place in places]
