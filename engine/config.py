"""How an engine is set up: frozen, checked at the door, the same value on both sides of the process border.

What depends on the machine (how many blocks fit) is measured later and becomes a new value, never a change of this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

AUTO: Final = "auto"
KV_DTYPES: Final = (AUTO, "float32", "bfloat16", "float16", "fp8", "int8")  # what K and V may be stored in
CPU_BLOCK_TOKENS = 16  # finer reuse against longer tables
GPU_BLOCK_TOKENS = 256  # flash attention, as torch brings it, refuses pages that are no multiple of this


def device_block_tokens(device: str) -> int:
    """Return how many tokens a block has on a device such as cpu, cuda or cuda:1, unless told otherwise."""
    return GPU_BLOCK_TOKENS if device.partition(":")[0] == "cuda" else CPU_BLOCK_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine process."""

    model: str  # the name clients see
    model_path: str  # local folder with config, safetensors and tokenizer
    kv_cache_dtype: str = AUTO  # of KV_DTYPES: what K and V are stored in; auto: what the model computes in
    kv_bytes: int | None = None  # None: measured at start, see engine.kv_tensors.plan_blocks
    max_model_len: int | None = None  # tokens, prompt and answer together; None: the model's own window
    device: str = "cpu"  # or cuda, cuda:1
    block_tokens: int = CPU_BLOCK_TOKENS  # what the device demands: `device_block_tokens`
    step_tokens: int = 1024  # prefill and decode together, per forward pass
    inter_token_s: float = 0.2  # between two tokens of an answer, for which chunks beside it are sized
    max_num_seqs: int = 16  # sequences that run at the same time
    max_waiting: int = 1024  # sequences that wait; one more is refused
    queue_timeout_s: float = 120.0  # a sequence that waits longer for its first room is told so
    threads: int | None = None  # of torch; None: one per core

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for field in ("block_tokens", "step_tokens", "max_num_seqs", "max_waiting", "queue_timeout_s", "inter_token_s"):
            if getattr(self, field) <= 0:
                raise ValueError(f"{field} must be above zero, not {getattr(self, field)}")
        if self.kv_cache_dtype not in KV_DTYPES:
            raise ValueError(f"kv_cache_dtype must be one of {', '.join(KV_DTYPES)}, not {self.kv_cache_dtype!r}")
        if self.step_tokens < self.max_num_seqs:
            raise ValueError(f"step_tokens {self.step_tokens} < max_num_seqs {self.max_num_seqs}: decodes would starve")
        for field in ("kv_bytes", "max_model_len", "threads"):
            value = getattr(self, field)
            if value is not None and value <= 0:
                raise ValueError(f"{field} must be above zero, not {value}")
