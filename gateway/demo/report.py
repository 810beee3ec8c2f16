"""How the demo shows its facts: as tables for a person, as one document for a program. Both say the same.

Owns: layout. Computes nothing but what `facts` offers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import msgspec
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gateway.demo.facts import DEFINITIONS, Exchange, Toy, explain_all, total
from gateway.demo.server import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that one run found out. The first `questions` exchanges stand alone; the rest are one conversation."""

    toy: Toy
    server: Server
    model: str
    exchanges: Sequence[Exchange]
    questions: int


def to_json(report: Report) -> str:
    """Write the report as one JSON document."""
    document = {
        "toy": asdict(report.toy),
        "definitions": DEFINITIONS,
        "server": asdict(report.server),
        "model": report.model,
        "requests": [
            _request(exchange, sentence)
            for exchange, sentence in zip(report.exchanges, _sentences(report), strict=True)
        ],
        "totals": asdict(total(report.exchanges)),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def print_toy(console: Console, toy: Toy) -> None:
    """Open with the sum that can be checked by hand."""
    tokens = toy.prompt_tokens + toy.new_tokens
    summands = " + ".join(str(step) for step in range(1, tokens + 1))
    console.print("[bold]A sum to check by hand[/bold]")
    console.print(
        f"A model projects each token to a key and a value. Feed it {toy.prompt_tokens} prompt tokens and "
        f"{toy.new_tokens} new ones, one by one:"
    )
    console.print(f"  with a KV cache, each token is projected once:    {toy.with_kv_cache} projections")
    console.print(f"  without, step n projects tokens 1..n again:       {summands} = {toy.without_kv_cache}")
    console.print("The counters of real requests never feed the last token. For each request:")
    for definition in DEFINITIONS:
        console.print(f"  {definition}")
    console.print()


def print_report(console: Console, report: Report) -> None:
    """Print the table of requests, a sentence for each, and the sum of it all."""
    console.print(_table(report))
    for exchange, sentence in zip(report.exchanges, _sentences(report), strict=True):
        console.print(f"[bold]{exchange.name}[/bold]  {escape(exchange.question)}")
        answer = " ".join(exchange.answer.split())
        console.print(f"  [dim]{escape(answer) or '(an empty answer)'}[/dim]")
        console.print(f"  {sentence}")
    sums = total(report.exchanges)
    console.print("(A small model answers; what matters here is what its answers cost.)")
    console.print()
    console.print(
        f"Together: {sums.done:,} projections done; {sums.without_prefix_cache:,} without the prefix cache; "
        f"{sums.without_kv_cache:,} without any KV cache."
    )
    origin = "started for this demo and stopped again" if report.server.started else "was already running"
    console.print(f"Model {escape(report.model)}, server {report.server.url} ({origin}).", highlight=False)


def _table(report: Report) -> Table:
    table = Table(title="Two questions and a conversation over one handbook", box=box.SIMPLE_HEAD)
    table.add_column("request", no_wrap=True)
    for heading in ("prompt", "cached", "computed", "first token", "prefill", "per token", "done", "saved"):
        table.add_column(heading, justify="right", no_wrap=True)
    for exchange in report.exchanges:
        inter_token = exchange.inter_token_ms
        table.add_row(
            exchange.name,
            f"{exchange.prompt_tokens:,}",
            f"{exchange.cached_tokens:,}",
            f"{exchange.computed_tokens:,}",
            f"{exchange.first_token_ms:,.0f} ms",
            f"{exchange.prefill_ms:,.0f} ms",
            "-" if inter_token is None else f"{inter_token:,.0f} ms",
            f"{exchange.done:,}",
            f"{exchange.saved:,}",
        )
    table.caption = (
        "prompt, cached, computed: tokens. done, saved: projections.\n"
        "first token: as the client waited. prefill, per token: as the engine worked."
    )
    return table


def _request(exchange: Exchange, sentence: str) -> dict[str, object]:
    return {
        "name": exchange.name,
        "question": exchange.question,
        "answer": exchange.answer,
        "finish_reason": exchange.finish_reason,
        "prompt_tokens": exchange.prompt_tokens,
        "cached_tokens": exchange.cached_tokens,
        "computed_tokens": exchange.computed_tokens,
        "generated_tokens": exchange.generated_tokens,
        "time_to_first_token_ms": round(exchange.first_token_ms, 1),
        "queue_ms": exchange.queue_ms,
        "prefill_ms": exchange.prefill_ms,
        "decode_ms": exchange.decode_ms,
        "inter_token_ms": None if exchange.inter_token_ms is None else round(exchange.inter_token_ms, 1),
        "projections": {
            "done": exchange.done,
            "without_prefix_cache": exchange.without_prefix_cache,
            "without_kv_cache": exchange.without_kv_cache,
            "saved": exchange.saved,
        },
        "explanation": sentence,
    }


def _sentences(report: Report) -> list[str]:
    return explain_all(report.exchanges, report.questions)
