"""What some machines can do at most, by their makers' datasheets. Pure.

Rule: dense numbers, never those with sparsity; memory as the datasheet says it, in decimal gigabytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

TERA: Final = 1e12
GIGA: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One device: operations a second on 16-bit and on float32 matrices, bytes a second, bytes."""

    flops: float
    flops_float32: float | None
    bandwidth: float
    memory: int | None
    source: str

    def of(self, dtype: str) -> float | None:
        """Return the operations a second for weights of a dtype; narrower ones are widened to 16 bits."""
        return self.flops_float32 if dtype == "float32" else self.flops


def _gpu(tera: float, tera_float32: float | None, giga_bytes_s: float, memory: int, source: str) -> Machine:
    return Machine(
        flops=tera * TERA,
        flops_float32=None if tera_float32 is None else tera_float32 * TERA,
        bandwidth=giga_bytes_s * GIGA,
        memory=int(memory * GIGA),
        source=source,
    )


MACHINES: Final[Mapping[str, Machine]] = {
    "a10": _gpu(125, 31.2, 600, 24, "NVIDIA A10 datasheet: BF16 tensor core"),
    "a100-40gb": _gpu(312, 19.5, 1555, 40, "NVIDIA A100 datasheet, SXM: BF16 tensor core"),
    "a100-80gb": _gpu(312, 19.5, 2039, 80, "NVIDIA A100 datasheet, SXM: BF16 tensor core"),
    "b200": _gpu(2250, None, 8000, 180, "NVIDIA DGX B200 datasheet, an eighth: BF16 tensor core, half of the sparse"),
    "h100-pcie": _gpu(756, 51, 2000, 80, "NVIDIA H100 datasheet, PCIe: BF16 tensor core, half of the sparse"),
    "h100-sxm": _gpu(989.4, 66.9, 3350, 80, "NVIDIA H100 datasheet, SXM: BF16 tensor core, half of the sparse"),
    "h200": _gpu(989.4, 66.9, 4800, 141, "NVIDIA H200 datasheet, SXM: BF16 tensor core, half of the sparse"),
    "l4": _gpu(121, 30.3, 300, 24, "NVIDIA L4 datasheet: BF16 tensor core, half of the sparse"),
    "l40s": _gpu(362.05, 91.6, 864, 48, "NVIDIA L40S datasheet: BF16 tensor core"),
    "mi300x": _gpu(1307.4, 163.4, 5300, 192, "AMD Instinct MI300X datasheet: BF16 matrix"),
    "rtx-4090": _gpu(165.2, 82.6, 1008, 24, "NVIDIA Ada whitepaper, RTX 4090: BF16 tensor core, FP32 accumulate"),
    "epyc-9654": Machine(
        flops=7.37 * TERA,  # it widens 16-bit numbers
        flops_float32=7.37 * TERA,
        bandwidth=460.8 * GIGA,
        memory=None,
        source="AMD EPYC 9654 datasheet: 96 cores at 2.4 GHz, 32 float32 operations a cycle each; 12 of DDR5-4800",
    ),
}
