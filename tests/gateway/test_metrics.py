"""The metrics page: every name from the start, each exchange counted once, series bounded whatever clients send."""

from __future__ import annotations

import random
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.operator_messages import EXTENTS, SPANS_S, EngineStats, Histo
from gateway.ask import Ask
from gateway.metrics import Metrics, MetricsOptions
from gateway.metrics.own import Worth
from gateway.miss import REASONS
from gateway.overhead import PHASES
from gateway.record import Record
from gateway.usage import PromptFacts, Written
from tests.gateway.conftest import Gateway, StartGateway
from tests.gateway.records import facts, missed, record
from tests.gateway.scripted import CARD

METHODS = ("PURGE", "LOCK", "M-SEARCH", "PROPFIND", "ODD")  # the last of which no HTTP knows

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def metrics(**options: Any) -> Metrics:
    """A page for the model `tiny`."""
    backend = options.pop("backend", "bundled")
    pricing = options.pop("pricing", lambda _: None)
    return Metrics("tiny", MetricsOptions(**options), backend=backend, pricing=pricing)


def page(made: Metrics, stats: EngineStats | None = None) -> Values:
    """Every sample of the page."""
    text = made.exposition(stats, 0, card=CARD).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(values: Values, name: str, **labels: str) -> float:
    """Sum of the samples of this name that have these labels."""
    found = [value for (one, given), value in values.items() if one == name and labels.items() <= dict(given).items()]
    assert found, name
    return sum(found)


def told(*records: Record, **options: Any) -> Values:
    """The page after these exchanges."""
    made = metrics(**options)
    for one in records:
        made.ended(one, b"")
    return page(made)


def kept(tokens: int, klass: str) -> Written:
    """Tokens written under a class that the client asked for."""
    return Written(tokens=tokens, asked=klass, applied=klass)


def prompt(**fields: Any) -> PromptFacts:
    """Facts of a prompt of 100 tokens: 60 read, 30 written in two classes, 10 uncached."""
    known: dict[str, Any] = {
        "written": (kept(20, "5m"), kept(10, "1h")),
        "misses": (missed("messages", 25), missed("new", 15)),
    }
    return facts(100, 60, 30, **(known | fields))


def test_input_tokens_are_a_partition():
    """Read, written by class and uncached add up to the prompt, and each stands under its own labels."""
    values = told(record(prompt=prompt()))
    assert total(values, "keepwarm_input_tokens_total") == 100
    for cache, ttl, tokens in (
        ("read", "none", 60),
        ("write", "5m", 20),
        ("write", "1h", 10),
        ("write", "other", 0),
        ("uncached", "none", 10),
        ("unknown", "none", 0),
    ):
        assert total(values, "keepwarm_input_tokens_total", model="tiny", cache=cache, ttl=ttl) == tokens


def test_a_length_that_is_no_class_is_folded():
    """Clients that name odd lengths make no series of their own."""
    values = told(record(prompt=prompt(written=(kept(30, "7m"),))))
    assert total(values, "keepwarm_input_tokens_total", ttl="other") == 30
    assert not [labels for _, labels in values if ("ttl", "7m") in labels]


def test_hits_and_misses_add_up_to_lookups():
    """A request is a hit, or a miss under the reason that cost most; tokens are counted under every reason."""
    values = told(
        record(prompt=prompt()),
        record(prompt=prompt(), min_tokens=61),
        record(prompt=facts(8, 0, 8, misses=(missed("expired", 3), missed("new", 5)))),
        record(prompt=None, outcome="refused", status=400),
        record(prompt=prompt(), prewarm=True),
    )
    assert total(values, "keepwarm_cache_lookups_total", model="tiny") == 3
    assert total(values, "keepwarm_cache_hits_total", model="tiny") == 1
    assert total(values, "keepwarm_cache_misses_total") == 2
    assert total(values, "keepwarm_cache_misses_total", reason="messages") == 1
    assert total(values, "keepwarm_cache_misses_total", reason="new") == 1
    assert total(values, "keepwarm_cache_missed_tokens_total", reason="new") == 15 + 15 + 5
    assert total(values, "keepwarm_cache_missed_tokens_total", reason="expired") == 3


def test_a_prewarm_is_counted_apart():
    """What was made warm for later is no input of a hit rate, but its tokens are told, and it is a request."""
    values = told(record(prompt=prompt(), prewarm=True, first_token_s=None, generated=0))
    assert total(values, "keepwarm_input_tokens_total") == 0
    assert total(values, "keepwarm_prewarms_total") == 1
    assert {
        cache: total(values, "keepwarm_prewarm_tokens_total", cache=cache) for cache in ("read", "write", "uncached")
    } == {"read": 60, "write": 30, "uncached": 10}
    assert total(values, "keepwarm_requests_total", code="200") == 1
    assert total(values, "vllm:prompt_tokens_total") == 100


def test_every_exchange_is_one_request():
    """Whatever became of it, it has one model, API, status and way of being sent."""
    values = told(
        record(api="messages", streamed=True),
        record(outcome="cancelled", status=499, prompt=None),
        record(outcome="cancelled", status=499),
        record(outcome="failed", status=503, prompt=None),
        record(outcome="refused", status=404, prompt=None, model="unknown"),
    )
    assert total(values, "keepwarm_requests_total") == 5
    assert total(values, "keepwarm_requests_total", model="tiny", api="messages", code="200", stream="true") == 1
    assert total(values, "keepwarm_requests_total", model="unknown", code="404") == 1
    assert total(values, "keepwarm_client_disconnects_total", phase="waiting") == 1
    assert total(values, "keepwarm_client_disconnects_total", phase="answering") == 1
    assert total(values, "keepwarm_usage_reports_total", status="reported") == 1
    assert total(values, "keepwarm_request_duration_seconds_count") == 1


def test_an_answer_without_usage_is_absent():
    """An upstream that told nothing is counted as such, and not as 0 tokens."""
    values = told(record(prompt=None))
    assert total(values, "keepwarm_usage_reports_total", status="absent") == 1
    assert total(values, "gen_ai_client_token_usage_count") == 0


def test_times_go_where_they_belong():
    """First tokens by hit and miss, queue and prefill; each in the bucket of its length."""
    values = told(
        record(prompt=prompt(queue_s=0.003, prefill_s=0.3), first_token_s=0.02, seconds=0.5),
        record(prompt=facts(8, 0, 8), first_token_s=3.0),
    )
    first = "keepwarm_time_to_first_token_seconds"
    assert total(values, f"{first}_sum", cache="hit") == 0.02
    assert total(values, f"{first}_sum", cache="miss") == 3.0
    assert total(values, f"{first}_bucket", cache="hit", le="0.025") == 1
    assert total(values, f"{first}_bucket", cache="hit", le="0.01") == 0
    assert total(values, "keepwarm_queue_seconds_bucket", le="0.005") == 2
    assert total(values, "keepwarm_prefill_seconds_bucket", le="0.4") == 2
    assert total(values, "keepwarm_request_duration_seconds_sum") == 0.55


def test_tokens_that_came_together_shared_the_wait():
    """Answer tokens are counted as they come, and timed from the second on."""
    made = metrics()
    ask = Ask(id="a", model="tiny")
    made.tokens(ask, 2, 0.5, first=True, read=0)
    made.tokens(ask, 1, 0.02, first=False, read=0)
    made.tokens(ask, 4, 0.04, first=False, read=0)
    values = page(made)
    assert total(values, "keepwarm_output_tokens_total", model="tiny") == 7
    assert total(values, "vllm:generation_tokens_total") == 7
    for name in ("keepwarm_inter_token_latency_seconds", "vllm:inter_token_latency_seconds"):
        assert (total(values, f"{name}_count"), total(values, f"{name}_sum")) == (5, pytest.approx(0.06))
        assert [total(values, f"{name}_bucket", le=le) for le in ("0.005", "0.01", "0.02")] == [0, 4, 5]


def test_overhead_begins_at_50_microseconds():
    """Each phase of the gateway's own time has its histogram from the start."""
    made = metrics()
    made.spent("render", 40e-6)
    values = page(made)
    name = "keepwarm_gateway_overhead_seconds"
    assert {phase: total(values, f"{name}_count", phase=phase) for phase in PHASES} == {
        phase: float(phase == "render") for phase in PHASES
    }
    assert total(values, f"{name}_bucket", phase="render", le="5e-05") == 1


async def test_phases_are_measured(gateway: Gateway):
    """A request passes each phase once."""
    await (await gateway.chat()).read()
    text = await (await gateway.admin.get("/metrics")).text()
    for phase in PHASES:
        assert f'keepwarm_gateway_overhead_seconds_count{{phase="{phase}"}} 1.0' in text.splitlines()


def test_what_can_start_at_0_does():
    """Before the first request every reason, class, status and tenant is there, at 0."""
    values = page(metrics(tenants=("a", "b")), EngineStats())
    assert {dict(labels)["reason"] for name, labels in values if name == "keepwarm_cache_misses_total"} == set(REASONS)
    assert len([1 for name, _ in values if name == "keepwarm_cache_promise_broken_total"]) == 6 * 3
    assert len([1 for name, _ in values if name == "keepwarm_cache_tokens_held"]) == 6 * 2
    assert total(values, "keepwarm_requests_total", code="500") == 0
    assert total(values, "keepwarm_tenant_requests_total", tenant="other") == 0
    infos = {"vllm:cache_config_info", "keepwarm_build_info", "keepwarm_engine_up"}
    assert {name for (name, _), value in values.items() if value} == infos


def test_money_is_counted_where_there_are_prices():
    """What an exchange saved and paid goes to its currency; without prices there is no series, not 0."""
    priced = told(record(), record(), pricing=lambda _: Worth("USD", 0.5, 0.125))
    assert total(priced, "keepwarm_cache_cost_saved_total", model="tiny", currency="USD") == 1.0
    assert total(priced, "keepwarm_cache_write_cost_total", model="tiny", currency="USD") == 0.25
    assert not [name for name, _ in told(record()) if "cost" in name]


def test_tenants_are_named_by_the_operator_only():
    """Tenants on the list are told apart, all others are one, and without a list there is none."""
    records = [record(tenant=name, prompt=prompt()) for name in ("a", "b", "c", "a")]
    values = told(*records, tenants=("a",))
    assert total(values, "keepwarm_tenant_requests_total", tenant="a") == 2
    assert total(values, "keepwarm_tenant_requests_total", tenant="other") == 2
    assert total(values, "keepwarm_tenant_input_tokens_total", tenant="a", cache="read") == 120
    assert total(values, "keepwarm_tenant_input_tokens_total") == 400
    assert not [name for name, _ in told(*records) if name.startswith("keepwarm_tenant")]


def test_the_engine_tells_what_it_keeps():
    """Entries, tokens and bytes by class and kind; broken promises and blocks by cause; ages as histograms."""
    stats = EngineStats(
        entries_by={"5m|held": 3, "1h|promised": 2, "7m|held": 1},
        tokens_by={"5m|held": 480, "1h|promised": 320},
        broken_promises={"1h|a": 4, "1h|b": 5, "7m|b": 6},
        blocks_expired_total=7,
        blocks_evicted_total=8,
        purged_total=9,
        reuse_gap=Histo(counts=(1, 2, *(0,) * (len(SPANS_S) - 2), 4), sum=100_000.0),
        extents=(3, 0, 1, *(0,) * (len(EXTENTS) - 3), 2),
        extents_total=1_007,
    )
    values = page(metrics(tenants=("a",)), stats)
    for edge, sequences in (("1.0", 3), ("2.0", 3), ("4.0", 4), ("256.0", 4), ("+Inf", 6)):
        assert total(values, "keepwarm_engine_sequence_extents_bucket", le=edge) == sequences
    assert total(values, "keepwarm_engine_sequence_extents_sum") == 1_007
    assert total(values, "keepwarm_cache_entries", **{"class": "5m", "kept": "held"}) == 3
    assert total(values, "keepwarm_cache_entries", **{"class": "other", "kept": "held"}) == 1
    assert total(values, "keepwarm_cache_tokens_held", kept="promised") == 320
    assert total(values, "keepwarm_cache_entry_bytes") == 800 * CARD.kv_bytes_per_token
    assert total(values, "keepwarm_cache_promise_broken_total", **{"class": "1h", "tenant": "a"}) == 4
    assert total(values, "keepwarm_cache_promise_broken_total", **{"class": "1h", "tenant": "other"}) == 5
    assert total(values, "keepwarm_cache_promise_broken_total", **{"class": "other", "tenant": "other"}) == 6
    assert [
        total(values, "keepwarm_cache_evicted_blocks_total", reason=reason)
        for reason in ("expired", "evicted", "purged")
    ] == [7, 8, 9]
    for name in ("keepwarm_cache_reuse_gap_seconds", "vllm:kv_block_reuse_gap_seconds"):
        assert total(values, f"{name}_bucket", le="1.0") == 1
        assert total(values, f"{name}_bucket", le="5.0") == 3
        assert total(values, f"{name}_bucket", le="86400.0") == 3
        assert total(values, f"{name}_bucket", le="+Inf") == 7
        assert (total(values, f"{name}_count"), total(values, f"{name}_sum")) == (7, 100_000.0)


def test_vllms_names_tell_the_same():
    """Tokens are the sums of the answers' usage, and histograms are ours under another name."""
    made = metrics()
    made.ended(record(prompt=prompt(), first_token_s=0.02), b"")
    made.ended(record(prompt=facts(20, 0, 20), first_token_s=0.03), b"")
    stats = EngineStats(
        waiting=2,
        running=1,
        blocks_free=5,
        blocks_cached=3,
        blocks_held=2,
        preemptions_total=6,
        finished_by={"stop": 4, "cancelled": 1},
    )
    values = page(made, stats)
    for name, value in (
        ("prefix_cache_queries_total", 120),
        ("prefix_cache_hits_total", 60),
        ("prompt_tokens_total", 120),
        ("prompt_tokens_cached_total", 60),
        ("request_prompt_tokens_count", 2),
        ("request_prefill_kv_computed_tokens_sum", 60),
        ("time_to_first_token_seconds_count", 2),
        ("e2e_request_latency_seconds_sum", 0.1),
        ("kv_cache_usage_perc", 0.2),
        ("num_requests_running", 1),
        ("num_requests_waiting", 2),
        ("num_preemptions_total", 6),
    ):
        assert total(values, f"vllm:{name}", model_name="tiny", engine="0") == value, name
    sources = {"local_compute": 60, "local_cache_hit": 60, "external_kv_transfer": 0}
    for source, tokens in sources.items():
        assert total(values, "vllm:prompt_tokens_by_source_total", source=source) == tokens
    assert total(values, "vllm:prompt_tokens_cached_by_source_total", source="device") == 60
    ends = {"stop": 4, "length": 0, "abort": 1}
    assert {end: total(values, "vllm:request_success_total", finished_reason=end) for end in ends} == ends
    config = {"block_size": "16", "num_gpu_blocks": "1024", "engine": "0"}
    assert total(values, "vllm:cache_config_info", **config) == 1


@pytest.mark.parametrize(
    ("backend", "compat", "shown"),
    [
        ("bundled", "auto", True),
        ("vllm-1", "auto", False),
        ("bundled", "off", False),
        ("vllm-1", "on", True),
    ],
)
def test_vllms_names_are_for_the_bundled_engine(backend: str, compat: str, shown: bool):
    """A vLLM elsewhere is scraped by itself, so it is not counted twice unless the operator says so."""
    values = page(metrics(backend=backend, compat=compat), EngineStats())
    assert any(name.startswith("vllm:") for name, _ in values) is shown


def test_the_conventions_names():
    """Types of tokens overlap: input includes what was read and written; the time is by output token."""
    values = told(record(api="completions", prompt=prompt(), generated=4, decode_s=0.3, first_token_s=0.02))
    common = {"gen_ai_operation_name": "text_completion", "gen_ai_request_model": "tiny"}
    usage = {"input": 100, "output": 4, "cached_input": 60, "cache_creation_input": 30}
    for kind, tokens in usage.items():
        assert total(values, "gen_ai_client_token_usage_sum", gen_ai_token_type=kind, **common) == tokens
    assert total(values, "gen_ai_client_token_usage_bucket", gen_ai_token_type="input", le="64.0", **common) == 0
    assert total(values, "gen_ai_client_token_usage_bucket", gen_ai_token_type="input", le="256.0", **common) == 1
    assert total(values, "gen_ai_server_request_duration_seconds_sum", error_type="", **common) == 0.05
    assert total(values, "gen_ai_server_time_to_first_token_seconds_sum", **common) == 0.02
    assert total(values, "gen_ai_server_time_per_output_token_seconds_sum", **common) == pytest.approx(0.1)


@pytest.mark.parametrize("name", ['we"ird', "back\\slash", "new\nline", "ümläut", "{model}"])
def test_any_model_name_is_a_label(name: str):
    """A name with a quote, a backslash or a line break gives a page that parses back to it."""
    made = Metrics(name)
    made.ended(record(model=name), b"")
    values = page(made, EngineStats())
    assert total(values, "keepwarm_requests_total", model=name, code="200") == 1
    assert total(values, "vllm:prompt_tokens_total", model_name=name) == 10


async def test_clients_make_no_series(start_gateway: StartGateway):
    """2000 requests with random models, users, paths, methods and lengths leave the page as long as 50 do (P26)."""
    gateway = await start_gateway(compat_metrics="on")
    dice = random.Random(26)
    statuses: set[int] = set()

    async def ask(number: int) -> None:
        match number % 4:
            case 0:
                answer = await gateway.chat(model=f"m{dice.random()}", user=f"u{dice.random()}")
            case 1:
                answer = await gateway.serving.get(f"/v1/x{number}?y={dice.random()}")
            case 2:
                answer = await gateway.serving.request(METHODS[number % len(METHODS)], "/v1/chat/completions")
            case _:
                key = {"user": f"u{number}", "prompt_cache_key": f"k{number}"}
                answer = await gateway.chat(**key, prompt_cache_options={"ttl": f"{1 + number}s"})
        await answer.read()
        statuses.add(answer.status)

    async def length() -> int:
        text = await (await gateway.admin.get("/metrics")).text()
        return len([line for line in text.splitlines() if not line.startswith("#")])

    for number in range(50):
        await ask(number)
    await length()
    before = await length()
    for number in range(50, 2000):
        await ask(number)
    assert await length() == before
    assert statuses == {200, 400, 404, 405}


def test_a_fresh_page_has_no_ratio_to_be_wrong():
    """Before the first request there are zeros on both sides of every ratio, and no NaN anywhere (P25)."""
    text = metrics().exposition(EngineStats(), 0, card=CARD).decode()
    assert "NaN" not in text
    values = page(metrics(), EngineStats())
    for name in ("prefix_cache_hits_total", "prefix_cache_queries_total", "kv_cache_usage_perc"):
        assert total(values, f"vllm:{name}") == 0
