"""What a plan is asked for: options read from text and checked, each refused by its flag with what it may be. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gateway.config_values import parse_size
from gateway.planning.errors import Unplannable
from gateway.planning.kv import BYTES
from gateway.planning.machines import MACHINES
from prefix_store.retention import parse_duration

AUTO: Final = "auto"
DTYPES: Final = (AUTO, "float32", "bfloat16", "float16")
KV_DTYPES: Final = (AUTO, *BYTES)
MOST_TOKENS: Final = 1 << 24
LEAST: Final = 1e-9  # of a share and of a rate
MOST_RATE: Final = 1e9
LARGEST: Final = 1e24  # of bytes, operations, bytes a second
WHOLE: Final = {  # flag: least, most
    "length": (2, MOST_TOKENS),
    "prefix_tokens": (1, MOST_TOKENS),
    "block_tokens": (1, 4096),
    "step_tokens": (64, MOST_TOKENS),
    "tensor_parallel": (1, 1024),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Options of a plan; sizes in bytes, times in seconds. None: worked out from the model, or left out."""

    dtype: str = AUTO
    kv_cache_dtype: str = AUTO
    length: int | None = None
    prefix_tokens: int | None = None
    block_tokens: int = 16
    step_tokens: int = 1024
    kv_bytes: int | None = None
    memory: int | None = None
    utilization: float = 0.92
    weight_bytes: int | None = None
    rate: float = 1.0
    new_share: float = 0.1
    used_for_s: float = 0.0
    promise_budget: float = 0.5
    device: str | None = None
    flops: float | None = None
    bandwidth: float | None = None
    tensor_parallel: int = 1

    def __post_init__(self) -> None:
        """Refuse what no plan can be made of. Raises Unplannable."""
        _one_of("--dtype", self.dtype, DTYPES)
        _one_of("--kv-cache-dtype", self.kv_cache_dtype, KV_DTYPES)
        if self.device is not None:
            _one_of("--device", self.device, MACHINES)
        for name, (low, high) in WHOLE.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise Unplannable(f"{flag(name)}: expected a whole number from {low} to {high:,}, not {value}")
        _between("--gpu-memory-utilization", self.utilization, LEAST, 1.0)
        _between("--new-share", self.new_share, LEAST, 1.0)
        _between("--rate", self.rate, LEAST, MOST_RATE)
        _between("--promise-budget", self.promise_budget, 0.0, 1.0)
        if self.kv_bytes is not None and self.memory is not None:
            raise Unplannable("--kv-bytes: give it or --gpu-memory, not both: each says how much there is for K and V")
        if self.device is None and (self.flops is None) != (self.bandwidth is None):
            missing = "--flops" if self.flops is None else "--bandwidth"
            raise Unplannable(f"{missing}: a machine is both --flops and --bandwidth, or a --device")


def flag(name: str) -> str:
    """Return an option as it is typed."""
    return f"--{name.replace('_', '-')}"


def size(name: str, text: str | None) -> int | None:
    """Read a number of bytes such as `80GB`. Raises Unplannable."""
    if text is None:
        return None
    try:
        read = parse_size(text)
    except (ValueError, OverflowError) as error:
        raise Unplannable(f"{name}: {_words(error)}") from error
    if read > LARGEST:
        raise Unplannable(f"{name}: expected a size up to {LARGEST:.0e} bytes, not {text[:40]!r}")
    return read


def speed(name: str, text: str | None) -> float | None:
    """Read something a second, such as `989T`, `3.35TB` or `6.7e13`. Raises Unplannable."""
    if text is None:
        return None
    try:
        read = float(text)
    except ValueError:
        try:
            read = float(parse_size(text))
        except (ValueError, OverflowError) as error:
            raise Unplannable(f"{name}: expected a number such as 989T or 3.35e12, not {text[:40]!r}") from error
    _between(name, read, 1.0, LARGEST)
    return read


def span(name: str, text: str | None) -> float:
    """Read a duration; none is no time. Raises Unplannable."""
    try:
        return 0.0 if text is None else parse_duration(text)
    except ValueError as error:
        raise Unplannable(f"{name}: {_words(error)}") from error


def _words(error: Exception) -> str:
    return "expected a smaller size" if isinstance(error, OverflowError) else str(error)[:200]


def _one_of(name: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise Unplannable(f"{name}: expected one of {', '.join(known)}, not {value[:40]!r}")


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # neither is what is not a number
        raise Unplannable(f"{name}: expected a number from {low:g} to {high:g}, not {value:g}")
