"""Which attention a device gets, and what it demands of the pool. Refuses what cannot work, by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.attention import Scoring, packed
from engine.attention.varlen import Varlen
from engine.batch import Batch
from engine.config import device_block_tokens
from engine.errors import ModelRefused
from engine.stored import NAMES, Slots, stored_dtype

Attend = Callable[[Tensor, Tensor, Tensor, Slots, Slots, Batch, Scoring], Tensor]
LEAST_CAPABILITY = (8, 0)  # of a GPU that has flash attention


def usable(name: str) -> torch.device:
    """Return the device of that name. Raises ModelRefused when torch cannot compute on it."""
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelRefused(f"--device {name}: torch {torch.__version__} finds no GPU here. Use --device cpu.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ModelRefused(f"--device {name}: there are {torch.cuda.device_count()} GPUs, counted from 0.")
    return device


def refuse_unread(name: str, computed: torch.dtype, device: torch.device) -> None:
    """Raise ModelRefused when attention on a device does not read K and V that are stored so."""
    if device.type != "cpu" and stored_dtype(name, computed) != computed:
        raise ModelRefused(
            f"--kv-cache-dtype {name}: attention on {device} reads keys and values only as the model computes. "
            f"Use auto or {NAMES[computed]}, or --device cpu."
        )


def attention_for(
    device: torch.device,
    block_tokens: int,
    capability: Callable[[torch.device], tuple[int, int]] = torch.cuda.get_device_capability,
) -> Attend:
    """Return the attention of a device over blocks of that size."""
    if device.type == "cpu":
        return packed.attend
    if device.type != "cuda":
        raise ModelRefused(f"--device {device}: there is no attention for {device.type}. Use cpu or cuda.")
    if capability(device) < LEAST_CAPABILITY:
        had, wanted = (".".join(map(str, one)) for one in (capability(device), LEAST_CAPABILITY))
        raise ModelRefused(f"--device {device}: compute capability {had}, but flash attention needs {wanted} or more.")
    page = device_block_tokens(device.type)
    if block_tokens % page:
        raise ModelRefused(f"--device {device}: blocks of {block_tokens} tokens, but its kernel reads pages of {page}.")
    return Varlen(block_tokens)
