"""The front half: from a request's last byte to the engine's submission, over a long prompt.

A real gateway with the default model's tokenizer, before an engine that answers at once, so that only the gateway is
measured: reading, parsing, rendering, tokenising, accounting. Each round sends a text that was never seen, then the
same text with another question, from a thread of its own over a socket. Beside it, how long `/health` waits while a
body of 8 MB is read and tokenised. Run it by itself with `python -m benchmarks.front`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from benchmarks.measure import Advance, Result, Series, Target
from engine.messages import Delta, Finished, Missed, ModelCard, Prefilled, Submit
from engine.operator_messages import Changed, EngineStats, Entries, PolicyTerms, RetentionView, Tree
from engine.weights import resolve_in_subprocess
from gateway.app import build_serving_app
from gateway.ask import Ask, Turn
from gateway.compare import compare
from gateway.config import Settings, cache_dir
from gateway.fingerprint import fingerprint
from gateway.house import build_house
from gateway.prompt import Renderer
from prefix_store.fingerprints import Keyed, encode
from prefix_store.sqlite_ledger import SqliteLedger
from prefix_store.sqlite_store import SqliteStore

NAME = "front"
ROUNDS = 7
WORDS = 34_000  # about 100,000 tokens
BIG_BYTES = 8_000_000
POLL_S = 0.005
CHAPTERS = 100  # turns of the conversation that is compared
REPEATS = 25
CARD = ModelCard(
    name="front",
    weights="0" * 16,
    max_model_len=1 << 24,
    vocab_size=1 << 20,
    eos_ids=(2,),
    block_tokens=16,
    blocks=1 << 20,
    kv_bytes=1 << 30,
    kv_bytes_per_token=64,
    dtype="float32",
    kv_dtype="float32",
    device="none",
)


class Immediate:
    """A backend that answers nothing at once and notes when each request came, and how long it was."""

    name = "immediate"
    model = CARD.name
    card: ModelCard | None = CARD
    restarts = 0
    life = 0
    detail = "The engine is ready."

    def __init__(self) -> None:
        self.came: list[tuple[float, int]] = []

    @contextlib.contextmanager
    def open(self, submit: Submit) -> Iterator[AsyncIterator[Delta]]:
        """Note the time, then answer."""
        self.came.append((time.perf_counter(), len(submit.tokens) // 4))
        yield self._answer(submit)

    async def _answer(self, submit: Submit) -> AsyncIterator[Delta]:
        prompt = len(submit.tokens) // 4
        missed = (Missed(fate="never_written", tokens=prompt),)
        yield Delta(
            id=submit.id,
            prefilled=Prefilled(prompt=prompt, read=0, write=0, queue_s=0.0, prefill_s=0.0, missed=missed),
            finished=Finished(reason="stop", generated=1, projected=prompt, decode_s=0.0),
        )

    async def stats(self) -> EngineStats:
        """Return nothing counted."""
        return EngineStats()

    async def start(self) -> None:
        """Be there."""

    async def refused(self) -> str:
        """Never refuse."""
        return await asyncio.Future()

    async def ready(self) -> None:
        """Be there."""

    async def lost(self) -> None:
        """Never go."""
        await asyncio.Future()

    async def set_policies(self, _: tuple[PolicyTerms, ...], *, preview: bool = False) -> Changed:
        """Change nothing."""
        return Changed(seq=int(preview))

    async def tree(self, **_: Any) -> Tree:
        """Have no tree."""
        return Tree(seq=0, total=0)

    async def retention(self) -> RetentionView:
        """Keep nothing."""
        return RetentionView(seq=0)

    async def purge(self, **_: Any) -> Changed:
        """Forget nothing."""
        return Changed(seq=0)

    async def entries(self, *, offset: int = 0, limit: int = 100, tenant: str | None = None) -> Entries:
        """Show nothing."""
        return Entries(seq=0, total=0 * (offset + limit + bool(tenant)))

    async def stop(self) -> None:
        """Stay."""


def steps() -> int:
    """Return how often `run` advances."""
    return ROUNDS + 2


def run(advance: Advance) -> Result:
    """Measure."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    found = resolve_in_subprocess("smollm2-135m", cache_dir(Settings(), os.environ), lambda *_: None)
    advance("tokenizer")
    return asyncio.run(_measured(Path(found.path), advance))


async def _measured(folder: Path, advance: Advance) -> Result:
    backend = Immediate()
    state, ledger = await SqliteStore.open(":memory:"), await SqliteLedger.open(":memory:")
    renderer = Renderer.load(folder)
    house = build_house(Settings(port=0), backend, renderer, state, ledger=ledger)
    runner = web.AppRunner(build_serving_app(house), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        return await _result(backend, renderer, port, advance)
    finally:
        await runner.cleanup()


async def _result(backend: Immediate, renderer: Renderer, port: int, advance: Advance) -> Result:
    dice = random.Random(7)
    vocabulary = ["".join(dice.choices("etaoinshrdlu", k=dice.randint(2, 9))) for _ in range(4000)]
    first: list[float] = []
    second: list[float] = []
    tokens = 0
    for round_ in range(ROUNDS):
        text = f"Round {round_}. " + " ".join(dice.choices(vocabulary, k=WORDS))
        for series, question in ((first, "What is said?"), (second, "And what is not?")):
            sent = await asyncio.to_thread(_post, port, _body(text, question))
            came, tokens = backend.came[-1]
            series.append(1000 * (came - sent))
        advance(f"round {round_ + 1}")
    gap_ms = await _health_gap(port, " ".join(dice.choices(vocabulary, k=BIG_BYTES // 6)))
    advance("8 MB")
    diagnosis, block_bytes = _diagnosis(renderer, " ".join(dice.choices(vocabulary, k=WORDS)))
    fresh, known = (
        Series(name=name, unit="ms", values=tuple(v))
        for name, v in (("first request", first), ("second request", second))
    )
    return Result(
        name=NAME,
        targets=(
            Target(
                name="second request, last byte to submission",
                value=known.median,
                limit=12.0,
                unit="ms",
                ceiling="reading the bytes and one hash pass over them, about 1 ms",
            ),
            Target(
                name="second request by first",
                value=known.median / fresh.median,
                limit=1 / 15,
                unit="",
                ceiling=f"the first takes {fresh.median:.0f} ms, nearly all of it tokenising",
            ),
            Target(
                name="diagnosis of one request",
                value=diagnosis.median,
                limit=2.0,
                unit="ms",
                ceiling="one hash pass over text and tokens, about 0.5 ms",
            ),
            Target(
                name="memory of one request, for comparing",
                value=block_bytes,
                limit=64.0,
                unit="bytes/block",
                ceiling="2 bytes a token are 32",
            ),
            Target(
                name="/health, longest wait beside an 8 MB prompt",
                value=gap_ms,
                limit=100.0,
                unit="ms",
                ceiling="what Python's interpreter lock lets through",
            ),
        ),
        series=(fresh, known, diagnosis),
        facts={"tokens": tokens, "rounds": ROUNDS},
    )


def _diagnosis(renderer: Renderer, text: str) -> tuple[Series, float]:
    """Time fingerprint and comparison of a long conversation; return also the bytes that it takes a block of 16."""
    cut = len(text) // CHAPTERS
    chapters = [text[begin : begin + cut] for begin in range(0, len(text), cut)]
    turns = tuple(Turn(role="assistant" if place % 2 else "user", text=part) for place, part in enumerate(chapters))
    ask = Ask(id="front", model=CARD.name, turns=turns)
    prompt, keyed = renderer.made(ask), Keyed(b"front", "front")
    times, size = [], 0
    for _ in range(REPEATS):
        began = time.perf_counter()
        made, hashes = fingerprint(
            keyed, ask, prompt.spans, prompt.tokens, id="a", at=0.0, model="m", weights="w", rendering="r"
        )
        compare(made, made, hashes)
        times.append(1000 * (time.perf_counter() - began))
        size = len(encode(made)) + sum(map(len, hashes.values()))
    return Series(name="diagnosis", unit="ms", values=tuple(times)), size / (len(prompt) / CARD.block_tokens)


def _body(text: str, question: str) -> bytes:
    messages = [{"role": "system", "content": text}, {"role": "user", "content": question}]
    return json.dumps({"model": CARD.name, "messages": messages, "max_tokens": 1}).encode()


def _post(port: int, body: bytes) -> float:
    """Send a request and wait for its answer. Return when the last byte was handed over."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection(("127.0.0.1", port)) as wire:
        wire.sendall(head.encode() + b"Connection: close\r\n\r\n" + body[:-1])
        time.sleep(0.05)  # the rest has been read by now
        sent = time.perf_counter()
        wire.sendall(body[-1:])
        answer = b"".join(iter(lambda: wire.recv(1 << 16), b""))
    if not answer.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(answer[:300].decode())
    return sent


async def _health_gap(port: int, text: str) -> float:
    """Ask for `/health` again and again while a long prompt is read; return the longest wait in milliseconds."""
    over = threading.Event()
    waits: list[float] = []

    def ask() -> None:
        while not over.is_set():
            began = time.perf_counter()
            with socket.create_connection(("127.0.0.1", port)) as wire:
                wire.sendall(b"GET /health HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
                while wire.recv(4096):
                    pass
            waits.append(1000 * (time.perf_counter() - began))
            time.sleep(POLL_S)

    asking = asyncio.create_task(asyncio.to_thread(ask))
    await asyncio.sleep(0.2)
    await asyncio.to_thread(_post, port, _body(text, "Well?"))
    over.set()
    await asking
    return max(waits)


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
