"""The gateways that Keepwarm is compared with, at stated versions."""

from __future__ import annotations

from typing import Final

from benchmarks.packages import Package

LITELLM: Final = Package(name="litellm", version="1.108.7", extra="[proxy]")
VLLM_ROUTER: Final = Package(name="vllm-router", version="0.1.17")
