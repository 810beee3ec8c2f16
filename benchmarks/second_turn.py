"""The second turn: what it costs to ask again over a handbook of about 2,900 tokens, on the default model in float32.

Four promises, each with its limit and with the ceiling it is compared with. See docs/benchmarks.md.
"""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks import in_process, served
from benchmarks.measure import Advance, Result, Target
from engine.weights import DEFAULT_MODEL, resolve_in_subprocess
from gateway.config import Settings, cache_dir

NAME = "second_turn"
WARM_OVER_COLD = 1 / 30
ENGINE_OVER_PLAIN = 1.15
MS_PER_1000_CACHED = 25.0
SPARE_BYTES = 1.5e9  # beside weights and KV: interpreter, libraries, activations


def steps() -> int:
    """Return how often `run` advances."""
    return 1 + served.steps() + in_process.steps()


def run(advance: Advance) -> Result:
    """Measure the four promises in one run."""
    folder = resolve_in_subprocess(DEFAULT_MODEL, cache_dir(Settings(), os.environ), lambda *_: None)
    advance("the model is at hand")
    outside = served.measure(advance)
    inside = in_process.measure(Path(folder.path), advance)
    return Result(
        name=NAME,
        targets=targets(outside, inside),
        series=(
            outside.cold_ms,
            outside.warm_ms,
            inside.engine_s,
            inside.plain_s,
            *(series for _, series in inside.first_token_ms),
        ),
        facts={
            "model": folder.name,
            "prompt_tokens": outside.prompt_tokens,
            "warm_computed_tokens": outside.warm_computed_tokens,
            "weight_bytes": inside.weight_bytes,
            "kv_bytes": served.KV_BYTES,
            "kv_bytes_per_token": inside.kv_bytes_per_token,
            "peak_bytes": outside.peak_bytes,
            "read_gb_per_s": round(inside.read_bytes_per_s / 1e9, 1),
        },
    )


def targets(outside: served.Served, inside: in_process.InProcess) -> tuple[Target, ...]:
    """Hold the measured values against the promises."""
    cold, warm = outside.cold_ms.median, outside.warm_ms.median
    alone = dict(inside.first_token_ms)[0].median
    budget = inside.weight_bytes + served.KV_BYTES + SPARE_BYTES
    return (
        Target(
            name="warm first token / cold first token, over HTTP",
            value=warm / cold,
            limit=WARM_OVER_COLD,
            unit="ratio",
            ceiling=(
                f"{warm:,.0f} ms against {cold:,.0f} ms; the suffix alone, with no prefix and no HTTP, takes "
                f"{alone:,.0f} ms: a ratio of {alone / cold:.4f}"
            ),
        ),
        Target(
            name="cold prefill, engine / plain transformers",
            value=inside.ratio,
            limit=ENGINE_OVER_PLAIN,
            unit="ratio",
            ceiling=(
                f"{inside.engine_s.median:.2f} s against {inside.plain_s.median:.2f} s of a plain forward of the same "
                f"{inside.prompt_tokens:,} tokens"
            ),
        ),
        Target(
            name="each further 1,000 cached tokens on a warm first token",
            value=inside.ms_per_1000_cached,
            limit=MS_PER_1000_CACHED,
            unit="ms",
            ceiling=f"reading their keys and values once takes {inside.floor_ms_per_1000_cached:.1f} ms",
        ),
        Target(
            name="peak memory of the engine process",
            value=outside.peak_bytes / 1e9,
            limit=budget / 1e9,
            unit="GB",
            ceiling=(
                f"weights {inside.weight_bytes / 1e9:.2f} + KV {served.KV_BYTES / 1e9:.2f} + {SPARE_BYTES / 1e9:.1f} GB"
            ),
        ),
    )
