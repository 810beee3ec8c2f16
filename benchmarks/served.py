"""The second turn as a client sees it: a real server, real HTTP, cold and warm first tokens, and the engine's memory.

Rule: a cold handbook is one whose number nobody has used; that it was cold and the others warm is read from the
answers, and a run in which it was otherwise is an error, not a number.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil

from benchmarks.measure import Advance, Series
from gateway.demo.conversation import Client, connected
from gateway.demo.facts import Exchange
from gateway.demo.handbook import copy_of_handbook
from gateway.demo.server import new_server, serve_command

COLD_HANDBOOKS = 3
WARM_QUESTIONS = (
    "How tall is the tower of the lighthouse?",
    "Who opens the iron fish, and when?",
    "What does a visitor pay for a night?",
    "How long does the storm gate take?",
    "Which tap gives fresh water?",
)
FIRST_QUESTION = "When does the harbour council meet?"
KV_BYTES = 384 << 20  # three handbooks are more than it holds: the run fills the whole pool, so that its memory counts
ANSWER_TOKENS = 2
STRAY_TOKENS = 16  # a cold copy may share the template's opening with another, not more


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the server's clients and its operator saw."""

    cold_ms: Series
    warm_ms: Series
    prompt_tokens: int
    warm_computed_tokens: float  # median
    peak_bytes: int  # resident, of the engine process, over its whole life


def measure(advance: Advance) -> Served:
    """Start a server, send cold and warm handbooks, stop it."""
    return asyncio.run(_measure(advance))


def steps() -> int:
    """Return how often `measure` advances."""
    return 1 + COLD_HANDBOOKS * (1 + len(WARM_QUESTIONS))


async def _measure(advance: Advance) -> Served:
    def command(port: int, admin_port: int) -> list[str]:
        return [*serve_command(port, admin_port), "--kv-bytes", str(KV_BYTES)]

    cold: list[Exchange] = []
    warm: list[Exchange] = []
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2.0)) as session,
        new_server(session, command=command, on_wait=lambda _: None) as server,
        connected(server.url) as client,
    ):
        model = await client.model()
        await _ask(client, model, copy_of_handbook("to warm up")[:4000], FIRST_QUESTION)  # first kernels, allocations
        advance("the server is warm")
        for round_ in range(COLD_HANDBOOKS):
            text = copy_of_handbook(secrets.token_hex(4))
            cold.append(await _ask(client, model, text, FIRST_QUESTION))
            advance(f"cold first token {round_ + 1}")
            for question in WARM_QUESTIONS:
                warm.append(await _ask(client, model, text, question))
                advance(f"warm first token {round_ + 1}")
        peak = peak_bytes(_engine_process().pid)
    _insist(cold, warm)
    return Served(
        cold_ms=Series(name="cold first token", unit="ms", values=tuple(each.first_token_ms for each in cold)),
        warm_ms=Series(name="warm first token", unit="ms", values=tuple(each.first_token_ms for each in warm)),
        prompt_tokens=cold[0].prompt_tokens,
        warm_computed_tokens=Series(name="", unit="tokens", values=tuple(each.computed_tokens for each in warm)).median,
        peak_bytes=peak,
    )


async def _ask(client: Client, model: str, system: str, question: str) -> Exchange:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return await client.ask(name=question, model=model, messages=messages, max_tokens=ANSWER_TOKENS)


def _insist(cold: list[Exchange], warm: list[Exchange]) -> None:
    """Refuse to compare requests that were not cold and warm as meant."""
    for each in cold:
        if each.cached_tokens > STRAY_TOKENS:
            raise RuntimeError(f"a cold request found {each.cached_tokens} tokens in the cache")
    for each in warm:
        if each.computed_tokens > each.prompt_tokens // 20:
            raise RuntimeError(f"a warm request computed {each.computed_tokens} of {each.prompt_tokens} tokens")


def _engine_process() -> psutil.Process:
    """Find the engine among the server's children."""
    for process in psutil.Process().children(recursive=True):
        if "engine.worker" in process.cmdline():
            return process
    raise RuntimeError("the server has no engine process")


def peak_bytes(pid: int) -> int:
    """Return the largest resident size that a process has had, mapped files included."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"process {pid} states no peak")
