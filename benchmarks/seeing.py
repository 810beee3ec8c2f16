"""What seeing costs: processor time for each request that is counted, and how long a reading takes.

The witnesses are told records of made-up exchanges, as an exchange tells them at its end; the metrics page is asked for
over a socket, from a gateway with many tenants whose engine answers at once. Run it by itself with
`python -m benchmarks.seeing`.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Callable
from dataclasses import replace

import structlog
from aiohttp import web

from benchmarks.front import CARD, Immediate
from benchmarks.measure import Advance, Result, Series, Target
from engine.operator_messages import SPANS_S, EngineStats, Histo
from gateway.ask import Ask
from gateway.keys import BACKEND, METRICS, POLICIES
from gateway.metrics import Metrics, MetricsOptions
from gateway.miss import REASONS, MissReport
from gateway.overhead import PHASES
from gateway.policies import Policies
from gateway.record import Record, Routed
from gateway.relay.fleet import Fleet
from gateway.relay.upstream import Upstream
from gateway.usage import PromptFacts, Written
from prefix_store.classes import BUILT_IN
from prefix_store.sqlite_store import SqliteStore

NAME = "seeing"
TENANTS = tuple(f"tenant-{number:03}" for number in range(200))
ROUNDS = 20
REQUESTS = 500  # in a round
ANSWER = 100  # tokens of each answer, each of which is counted as it comes
READINGS = 20
UPSTREAMS = 8
PARTS = 3  # what `run` measures


def steps() -> int:
    """Return how often `run` advances."""
    return PARTS


def run(advance: Advance) -> Result:
    """Measure."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    metrics = Metrics(CARD.name, MetricsOptions(tenants=TENANTS), fleet=fleet())
    records = made(REQUESTS)
    counting = counted(metrics, records)
    advance("counting")
    relayed = timed("metrics, one relayed request", lambda one: metrics.ended(one, b""), sent(records))
    advance("counting relayed ones")
    reading, size = asyncio.run(read(metrics))
    advance("reading")
    return Result(
        name=NAME,
        targets=(
            Target(
                name="processor time of one request in the metrics",
                value=counting.median,
                limit=0.3,
                unit="ms",
                ceiling="one addition for each of its numbers, some microseconds",
            ),
            Target(
                name="processor time of one relayed request in the metrics",
                value=relayed.median,
                limit=0.1,
                unit="ms",
                ceiling="one addition for each of its numbers, some microseconds",
            ),
            Target(
                name="/metrics with 200 tenants",
                value=reading.median,
                limit=50.0,
                unit="ms",
                ceiling="writing the page's bytes, below a millisecond",
            ),
        ),
        series=(counting, relayed, reading),
        facts={"tenants": len(TENANTS), "page_bytes": size, "answer_tokens": ANSWER},
    )


def made(count: int) -> list[Record]:
    """Make up exchanges of every kind, the same ones each time."""
    dice = random.Random(6)
    return [_record(dice, number) for number in range(count)]


def _record(dice: random.Random, number: int) -> Record:
    prompt = dice.randint(200, 8000)
    read = dice.choice((0, prompt * 9 // 10))
    write = (prompt - read) // 2
    reasons = dice.sample(REASONS, 2)
    missed = (prompt - read - 1, 1)
    reports = tuple(
        MissReport(reason=reason, fate="never_written", tokens=tokens, at=None)
        for reason, tokens in zip(reasons, missed, strict=True)
    )
    return Record(
        id=f"chatcmpl-{number}",
        at=1_790_000_000.0 + number,
        tenant=dice.choice(TENANTS),
        key=f"key-{number % 400}",
        api=dice.choice(("chat", "completions", "responses", "messages")),
        model=CARD.name,
        upstream="bundled",
        streamed=bool(number % 2),
        prewarm=not number % 50,
        outcome="cancelled" if not number % 20 else "finished",
        status=499 if not number % 20 else 200,
        seconds=dice.expovariate(0.5),
        prompt=PromptFacts(
            prompt=prompt,
            read=read,
            write=write,
            queue_s=dice.expovariate(100),
            prefill_s=dice.expovariate(5),
            written=(Written(tokens=write, asked=None, applied=dice.choice(BUILT_IN)),),
            misses=reports,
        ),
        generated=ANSWER,
        projected=prompt - read + ANSWER - 1,
        first_token_s=dice.expovariate(3),
        decode_s=dice.expovariate(1),
        ends=("stop",),
        min_tokens=16,
    )


def fleet() -> Fleet:
    """Make up upstreams that nobody connects to."""
    named = (f"replica-{number}" for number in range(UPSTREAMS))
    return Fleet(
        [Upstream(name=name, base_url=f"http://{name}.invalid/v1", models=("relayed",)) for name in named],
        clock=time.monotonic,
    )


def sent(records: list[Record]) -> list[Record]:
    """Return the same exchanges as upstreams would have answered them."""
    told = []
    for number, one in enumerate(records):
        assert one.prompt is not None, "each of them has a prompt"
        prompt = replace(one.prompt, timed=False, misses=())
        routed = Routed(why="prefix", available=prompt.read, captured=prompt.read, delivered=prompt.read)
        upstream = f"replica-{number % UPSTREAMS}"
        told.append(replace(one, model="relayed", upstream=upstream, prompt=prompt, routed=routed, prewarm=False))
    return told


def counted(metrics: Metrics, records: list[Record]) -> Series:
    """Time all that the metrics are told of each request: phases, every answer token, the record, the HTTP answer."""
    ask = Ask(id="seeing", model=CARD.name)

    def tell(record: Record) -> None:
        for phase in PHASES:
            metrics.spent(phase, 0.0002)
        for place in range(ANSWER):
            metrics.tokens(ask, 1, 0.02, first=not place, read=0)
        metrics.ended(record, b"")
        metrics.answered("/v1/chat/completions", "POST", record.status)

    return timed("metrics, one request", tell, records)


def timed(name: str, tell: Callable[[Record], object], records: list[Record]) -> Series:
    """Return milliseconds of processor time for each record, round by round."""
    values = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for record in records:
            tell(record)
        values.append(1000 * (time.process_time() - began) / len(records))
    return Series(name=name, unit="ms", values=tuple(values))


class Busy(Immediate):
    """A backend whose engine has something of everything to tell."""

    async def stats(self) -> EngineStats:
        """Return a snapshot as a busy engine's."""
        spread = Histo(counts=tuple(range(1, len(SPANS_S) + 2)), sum=1e6)
        by = {f"{klass}|{kept}": 1000 for klass in BUILT_IN for kept in ("promised", "held")}
        broken = {f"{klass}|{tenant}": 1 for klass in BUILT_IN for tenant in TENANTS}
        return EngineStats(
            entries_by=by,
            tokens_by=by,
            broken_promises=broken,
            tenant_blocks=dict.fromkeys(TENANTS, 100),
            lifetime=spread,
            idle_before_evict=spread,
            reuse_gap=spread,
            age_at_read=spread,
        )


async def read(metrics: Metrics) -> tuple[Series, int]:
    """Time the metrics page over a socket; return also its size."""
    from gateway.admin.scrape import metrics_page

    backend = Busy()
    state = await SqliteStore.open(":memory:")
    app = web.Application()
    app[BACKEND], app[METRICS], app[POLICIES] = backend, metrics, Policies(state, backend, now=time.time)
    app.router.add_get("/metrics", metrics_page)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    try:
        readings = [await asyncio.to_thread(get, port, "/metrics") for _ in range(READINGS)]
    finally:
        await runner.cleanup()
        await state.close()
    return Series(name="/metrics", unit="ms", values=tuple(ms for ms, _ in readings)), readings[-1][1]


def get(port: int, path: str) -> tuple[float, int]:
    """Ask for a path; return milliseconds to the last byte, and how many bytes came."""
    head = f"GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n".encode()
    began = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as wire:
        wire.sendall(head)
        answer = b"".join(iter(lambda: wire.recv(1 << 16), b""))
    if not answer.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(answer[:300].decode())
    return 1000 * (time.perf_counter() - began), len(answer)


def main() -> None:
    """Print the environment, the tables and one JSON line."""
    from rich.console import Console

    from benchmarks import environment, report

    console = Console()
    card = environment.take_card()
    report.show_card(console, card)
    result = run(lambda _: None)
    report.show_result(console, result)
    print(report.last_line(card, [result]))


if __name__ == "__main__":
    main()
