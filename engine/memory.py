"""How much memory keys and values may take: what the operator said, or what the machine leaves.

Owns nothing. On a GPU a share of its whole memory is ours, weights and the largest step included, as vLLM means it; on
a CPU, which has other work to do, it is a part of what is free. Rule: what is not there is refused with the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import psutil
import torch

from engine.config import EngineConfig
from engine.errors import ModelRefused
from engine.kv_tensors import KVTensors, Room
from engine.model import PagedModel
from engine.scheduler import SCORED_ROWS
from engine.self_test import whole_prompt

DEFAULT_SHARE = 0.25  # of the free memory, on a CPU
DEFAULT_CEILING = 4 << 30  # bytes, on a CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The memory of a GPU: all of it, and what was free before anything was loaded and after; the largest step's."""

    total: int
    free_before: int
    free_after: int
    step: int


def cpu_room(kv_bytes: int | None, *, free: int) -> Room:
    """Return what K and V may take of a machine's own memory. Pages that are not touched cost nothing."""
    if kv_bytes is not None:
        return Room(kv_bytes, "--kv-bytes")
    size = min(DEFAULT_CEILING, int(free * DEFAULT_SHARE))
    return Room(size, f"a quarter of the free memory, {DEFAULT_CEILING >> 30} GiB at most")


def gpu_room(device: str, kv_bytes: int | None, utilization: float, card: Card) -> Room:
    """Return what K and V may take of a GPU. Raises ModelRefused where others hold what would be ours."""
    left = card.free_after - card.step
    if kv_bytes is not None:
        if kv_bytes > left:
            raise ModelRefused(
                f"--kv-bytes {kv_bytes}: {device} has {told(max(0, left))} left beside weights and the largest step. "
                "Give less, a smaller --step-tokens, or free the GPU."
            )
        return Room(kv_bytes, "--kv-bytes")
    ours = int(card.total * utilization)
    if ours > card.free_before:
        raise ModelRefused(
            f"--gpu-memory-utilization {utilization:g} of {device} is {told(ours)}, and {told(card.free_before)} of "
            f"its {told(card.total)} were free at start. Give {int(card.free_before / card.total * 100) / 100:g} or "
            "less, or end what else runs there."
        )
    taken = card.free_before - card.free_after + card.step
    source = (
        f"--gpu-memory-utilization {utilization:g} of {told(card.total)}, less {told(taken)} for weights and a step"
    )
    return Room(max(0, ours - taken), source, grows="a larger --gpu-memory-utilization")


def room_of(model: PagedModel, config: EngineConfig, *, free_before: int) -> Room:
    """Return what K and V of a loaded model may take; `free_before` is what its device had before it was loaded."""
    if model.device.type == "cpu":
        return cpu_room(config.kv_bytes, free=free_bytes(model.device))
    step = step_bytes(model, config)
    torch.cuda.empty_cache()
    free_after, total = torch.cuda.mem_get_info(model.device)
    card = Card(total=total, free_before=free_before, free_after=free_after, step=step)
    return gpu_room(config.device, config.kv_bytes, config.gpu_memory_utilization, card)


def free_bytes(device: torch.device) -> int:
    """Return the memory that is free where keys and values will lie."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def step_bytes(model: PagedModel, config: EngineConfig) -> int:
    """Return what the largest step takes beside weights and pool, by taking it. On a GPU alone."""
    before = torch.cuda.memory_allocated(model.device)
    torch.cuda.reset_peak_memory_stats(model.device)
    wanted = min(config.step_tokens, SCORED_ROWS + config.max_num_seqs)
    pool = largest_step(model, tokens=config.step_tokens, wanted=wanted, block_tokens=config.block_tokens)
    return int(torch.cuda.max_memory_allocated(model.device)) - before - pool


def largest_step(model: PagedModel, *, tokens: int, wanted: int, block_tokens: int) -> int:
    """Project `tokens` tokens of one prompt, and the last ones' logits; return the bytes of the pool they lay in."""
    blocks = -(-tokens // block_tokens)
    kv = KVTensors(model.layout, blocks=blocks, block_tokens=block_tokens, device=model.device)
    prompt = whole_prompt(tokens, model)
    model.forward(replace(prompt, wanted=prompt.positions[-wanted:]), kv)
    return blocks * block_tokens * model.layout.bytes_per_token


def told(size: int) -> str:
    """Write bytes as people read them."""
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.1f} MiB"
