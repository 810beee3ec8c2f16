"""Relayed requests on the metrics page: right models, right upstreams, nothing guessed."""

from __future__ import annotations

from gateway.metrics import Metrics
from gateway.metrics.fleet import REASONS
from gateway.record import Record
from gateway.relay.fleet import Fleet
from gateway.routing.wanted import Wanted, path_of
from tests.gateway.records import record
from tests.gateway.relayed import fleet, relayed, upstream
from tests.gateway.test_metrics import Values, page, total

TWO = (upstream("a", "large", "small"), upstream("b", "large"))


def page_of(upstreams: Fleet, *records: Record) -> Values:
    """The page of a gateway with these upstreams after these exchanges."""
    made = Metrics("tiny", fleet=upstreams)
    for one in records:
        made.ended(one, b"")
    return page(made)


def names(values: Values, label: str) -> set[str]:
    """Every value that a label has on the page."""
    return {dict(labels)[label] for _, labels in values if label in dict(labels)}


def wanted(text: str) -> Wanted:
    """A prompt, a token a byte."""
    path, ends = path_of(b"root", [text.encode()])
    return Wanted(path=path, ends=ends, tokens=ends[-1], ttl_s=300.0)


def test_each_model_of_the_fleet_has_every_series_at_zero() -> None:
    """Before the first request a board sees each configured model and upstream, at 0."""
    values = page_of(fleet(*TWO))
    assert names(values, "model") == {"tiny", "large", "small"}
    assert names(values, "upstream") == {"a", "b"}
    for name in ("input_tokens", "requests", "cache_lookups", "output_tokens", "usage_reports", "prefix_tokens"):
        assert total(values, f"keepwarm_{name}_total", model="small") == 0
    decisions = {labels for name, labels in values if name == "keepwarm_route_decisions_total"}
    assert len(decisions) == sum(map(len, REASONS.values()))
    for name in ("upstream_requests", "retries", "upstream_aborts"):
        assert total(values, f"keepwarm_{name}_total", upstream="b") == 0
    assert total(values, "keepwarm_config_reload_total", result="refused") == 0
    assert total(values, "keepwarm_draining") == 0


def test_a_request_counts_under_its_own_model() -> None:
    """What an upstream answers is no request of the bundled model; what nobody serves is one name."""
    values = page_of(fleet(*TWO), relayed(), record(), relayed(model="made-up-7"), relayed(model="made-up-8"))
    for model, prompt in (("large", 100), ("tiny", 10), ("unknown", 200)):
        assert total(values, "keepwarm_input_tokens_total", model=model) == prompt
    assert names(values, "model") == {"tiny", "large", "small", "unknown"}
    assert total(values, "keepwarm_output_tokens_total", model="large") == 3
    assert total(values, "gen_ai_server_request_duration_seconds_count", gen_ai_request_model="large") == 1


def test_what_was_not_said_is_counted_as_not_said() -> None:
    """An answer without cached tokens is neither hit nor miss, and all of its prompt is unknown."""
    values = page_of(fleet(*TWO), relayed(read=None), relayed(read=60), relayed(read=0))
    assert total(values, "keepwarm_input_tokens_total", model="large", cache="unknown") == 100
    assert total(values, "keepwarm_input_tokens_total", model="large") == 300
    assert total(values, "keepwarm_usage_reports_total", model="large", status="absent") == 1
    assert total(values, "keepwarm_usage_reports_total", model="large", status="reported") == 2
    assert total(values, "keepwarm_cache_lookups_total", model="large") == 2
    assert total(values, "keepwarm_cache_hits_total", model="large") == 1
    assert total(values, "keepwarm_cache_misses_total", model="large") == 0
    assert total(values, "gen_ai_client_token_usage_count", gen_ai_token_type="cached_input") == 2
    for cache in ("hit", "miss", "unknown"):
        assert total(values, "keepwarm_time_to_first_token_seconds_count", model="large", cache=cache) == 1


def test_waits_that_nobody_told_are_not_waits_of_nothing() -> None:
    """An upstream does not say how long it queued and computed, so neither histogram has a series of its model."""
    values = page_of(fleet(*TWO), relayed())
    for name in ("queue", "prefill"):
        models = {dict(labels)["model"] for one, labels in values if one == f"keepwarm_{name}_seconds_count"}
        assert models == {"tiny"}
    assert total(values, "keepwarm_request_duration_seconds_count", model="large") == 1


def test_relayed_requests_have_no_name_of_vllm() -> None:
    """The families of the bundled engine count what it answered, even where an upstream serves the same model."""
    values = page_of(fleet(upstream("a", "tiny")), relayed(model="tiny"), record())
    counted = {
        name: value for (name, _), value in values.items() if name.startswith("vllm:") and name.endswith("_count")
    }
    assert counted["vllm:e2e_request_latency_seconds_count"] == 1
    assert counted["vllm:request_prompt_tokens_count"] == 1
    assert total(values, "vllm:prompt_tokens_total") == 10
    assert total(values, "keepwarm_input_tokens_total", model="tiny") == 110
    assert total(values, "keepwarm_output_tokens_total", model="tiny") == 3


def test_promise_and_delivery_are_sums_over_the_same_answers() -> None:
    """Available, captured and delivered leave out what did not say what it read; decisions count every request."""
    values = page_of(
        fleet(*TWO, policies={"small": "round_robin"}),
        relayed(read=60),
        relayed(read=10, why="load"),
        relayed(read=None, why="chance"),
        relayed(read=5, why="turn", model="small", available=9, captured=7),
    )
    for model, sums in (("large", (160, 140, 70)), ("small", (9, 7, 5))):
        for stage, tokens in zip(("available", "captured", "delivered"), sums, strict=True):
            assert total(values, "keepwarm_prefix_tokens_total", model=model, stage=stage) == tokens
    made = {
        (dict(labels)["policy"], dict(labels)["outcome"])
        for (name, labels), value in values.items()
        if name == "keepwarm_route_decisions_total" and value == 1
    }
    assert made == {("prefix", "prefix"), ("prefix", "load"), ("prefix", "chance"), ("round_robin", "turn")}


def test_what_an_upstream_is_now_is_read_from_the_fleet() -> None:
    """Health, circuit, load and what is believed to be held are those of the moment of the scrape."""
    upstreams = fleet(*TWO)
    replica, choice = upstreams.choose("large", "chat", wanted("x" * 1024), 0.0)
    values = page_of(upstreams)
    assert total(values, "keepwarm_upstream_load_tokens", upstream=replica.name) == 1024 + 64
    assert total(values, "keepwarm_upstream_resident_tokens", upstream=replica.name) == 1024 / 4
    assert total(values, "keepwarm_upstream_health", upstream=replica.name) == 1
    upstreams.router("large").over(choice, wanted("x" * 1024), 0.0, read=None, computed=False)
    for _ in range(5):
        replica.health.answered(well=False)
        replica.health.probed("refused")
    replica.retries, replica.outcomes["failed"] = 2, 5
    values = page_of(upstreams)
    assert total(values, "keepwarm_upstream_load_tokens", upstream=replica.name) == 0
    assert total(values, "keepwarm_upstream_resident_tokens", upstream=replica.name) == 0
    assert total(values, "keepwarm_upstream_health", upstream=replica.name) == 0
    assert total(values, "keepwarm_circuit_state", upstream=replica.name) == 2
    assert total(values, "keepwarm_retries_total", upstream=replica.name) == 2
    assert total(values, "keepwarm_upstream_requests_total", upstream=replica.name, outcome="failed") == 5


def test_a_model_that_is_added_later_begins_at_zero() -> None:
    """After a reload the next scrape shows the new model, and an upstream that is gone no more."""
    upstreams = fleet(*TWO)
    made = Metrics("tiny", fleet=upstreams)
    assert names(page(made), "model") == {"tiny", "large", "small"}
    upstreams.replace([upstream("a", "large", "newer")])
    made.fleet.reloaded(done=True)
    made.fleet.draining = True
    values = page(made)
    assert total(values, "keepwarm_input_tokens_total", model="newer") == 0
    assert names(values, "upstream") == {"a"}
    assert total(values, "keepwarm_config_reload_total", result="done") == 1
    assert total(values, "keepwarm_draining") == 1
