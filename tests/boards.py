"""Every query of the boards and alert rules that are shipped, and what vLLM's published KV-cache board asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

ROOT = Path(__file__).parent.parent
BOARDS: Final = {
    path.name: json.loads(path.read_text()) for path in (ROOT / "deploy/grafana/dashboards").glob("*.json")
}
RULES: Final = {
    path.name: yaml.safe_load(path.read_text()) for path in (ROOT / "deploy/prometheus/rules").glob("*.yml")
}

# vLLM's board (examples/observability/dashboards/grafana/vllm_kv_cache.json), panel by panel, without the rows that a
# KV connector or images would fill. It asks with the labels that Prometheus and the engine put to each series.
CHOSEN: Final = 'job=~"$job", model_name=~"$model_name", instance=~"$instance", engine=~"$engine"'


def _rate(name: str, by: str = "", more: str = "") -> str:
    return f"sum{by}(rate(vllm:{name}{{{CHOSEN}{more}}}[$__rate_interval]))"


def _share(part: str, whole: str, by: str = "") -> str:
    return f"{_rate(part, by)} / ({_rate(whole, by)} > 0)"


def _now(how: str, name: str, more: str = "") -> str:
    return f"{how}(vllm:{name}{{{CHOSEN}{more}}})"


def _spread(name: str) -> list[str]:
    quantiles = [f"histogram_quantile({q}, {_rate(f'{name}_bucket', ' by (le) ')})" for q in (0.5, 0.95, 0.99)]
    return [*quantiles, _share(f"{name}_sum", f"{name}_count")]


VLLM: Final = [
    _now("max", "kv_cache_usage_perc"),
    _now("avg", "kv_cache_usage_perc"),
    _now("max by (instance, engine) ", "kv_cache_usage_perc"),
    _share("prefix_cache_hits_total", "prefix_cache_queries_total"),
    _share("prefix_cache_hits_total", "prefix_cache_queries_total", " by (instance, engine) "),
    _share("prompt_tokens_cached_total", "prompt_tokens_total"),
    _rate("num_preemptions_total"),
    _now("sum", "num_requests_running"),
    _now("sum", "num_requests_waiting"),
    _now("sum", "num_requests_waiting_by_reason", ', reason="capacity"'),
    _now("sum", "num_requests_waiting_by_reason", ', reason="deferred"'),
    *(
        _rate("prompt_tokens_by_source_total", more=f', source="{source}"')
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer")
    ),
    _rate("prompt_tokens_cached_by_source_total", " by (source) "),
    _share("request_prompt_tokens_sum", "request_prompt_tokens_count"),
    _share("request_prefill_kv_computed_tokens_sum", "request_prefill_kv_computed_tokens_count"),
    *_spread("kv_block_lifetime_seconds"),
    *_spread("kv_block_idle_before_evict_seconds"),
    *_spread("kv_block_reuse_gap_seconds"),
]


def targets(board: Any) -> Iterator[str]:
    """Yield each query of a board."""
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def shipped() -> dict[str, list[str]]:
    """Return every query, by the file it stands in."""
    queries = {name: list(targets(board)) for name, board in BOARDS.items()}
    for name, rules in RULES.items():
        queries[name] = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    return queries
