"""The chat load, on any server that speaks OpenAI's chat completions: `python -m benchmarks.peers.load URL MODEL`.

Four kinds of work, greedy and streamed, each over prompts that nobody has sent before:
qa (one long text, nine questions), chat (one conversation that grows), burst (eight clients at once over two texts),
mix (short answers while long prompts arrive).

Rule: an answer that is broken off, empty or without usage is an error, not a number. Rows go to a file with `--json`,
one line each to standard output, and progress to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks import report
from benchmarks.measure import Advance
from benchmarks.peers.prose import handbook
from benchmarks.peers.rows import Answer, Row, row

WORDS: Final = 2400
KINDS: Final = ("qa", "chat", "burst", "mix")
PATIENCE_S: Final = 3600.0
OPENING: Final = "What is this text about?"
QUESTIONS: Final = (
    "Who may read it?",
    "Name one rule in it.",
    "Which words are defined?",
    "Is anything forbidden?",
    "What is an example?",
    "Who wrote it?",
    "What comes first?",
    "What about errors?",
)
TURNS: Final = 6
CLIENTS, TEXTS = 8, 2
SHORTS, LONGS = 4, 2
HEAD_START_S: Final = 0.5  # of the short ones
STEPS: Final = {"qa": 1 + len(QUESTIONS), "chat": TURNS, "burst": CLIENTS, "mix": SHORTS + LONGS}

Message = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Whom the load is put on."""

    http: aiohttp.ClientSession
    url: str
    model: str
    advance: Advance

    async def ask(self, name: str, messages: Sequence[Message], max_tokens: int) -> Answer:
        """Ask once, and time it. Raises RuntimeError."""
        body = {"model": self.model, "messages": list(messages), "max_tokens": max_tokens, "temperature": 0}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        began = time.perf_counter()
        times: list[float] = []
        text: list[str] = []
        usage: dict[str, Any] = {}
        whole = False
        async with self.http.post(f"{self.url}/v1/chat/completions", json=body) as response:
            if response.status != 200:  # noqa: PLR2004 - an answer
                said = (await response.text())[:300]
                raise RuntimeError(f"{name}: {self.url} answered {response.status}: {said}")
            async for line in response.content:
                data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
                if data == b"[DONE]":  # which not every server says: that it has finished, all do
                    break
                event = json.loads(data) if data else {}
                usage = event.get("usage") or usage
                for choice in event.get("choices") or ():
                    whole = whole or choice.get("finish_reason") is not None
                    word = (choice.get("delta") or {}).get("content")
                    if word:
                        times.append(time.perf_counter() - began)
                        text.append(word)
        if not whole or not times:
            raise RuntimeError(f"{name}: {self.url} sent {'an empty answer' if whole else 'a broken answer'}")
        self.advance(name)
        return _answer(name, times, "".join(text), usage)


def _answer(name: str, times: Sequence[float], text: str, usage: Mapping[str, Any]) -> Answer:
    details = usage.get("prompt_tokens_details") or {}
    prompt, out = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not isinstance(prompt, int) or not isinstance(out, int):
        raise TypeError(f"{name}: the answer has no usage")
    gap = (times[-1] - times[0]) / (out - 1) if out > 1 else None
    return Answer(first=times[0], gap=gap, prompt=prompt, cached=details.get("cached_tokens"), out=out, text=text)


def _system(number: int, words: int) -> Message:
    return {"role": "system", "content": handbook(number, words)}


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


async def qa(server: Server, seed: int, words: int) -> list[Row]:
    """One cold question over a long text, then others over the same text, one after another."""
    text = _system(seed, words)
    cold = await server.ask("qa cold", [text, _user(OPENING)], 16)
    warm = [await server.ask("qa warm", [text, _user(question)], 16) for question in QUESTIONS]
    return [row("qa cold", [cold]), row("qa warm", warm)]


async def chat(server: Server, seed: int, words: int) -> list[Row]:
    """One conversation over half as long a text; every turn sends all of it again."""
    history = [_system(seed + 1, words // 2)]
    answers = []
    for turn in range(TURNS):
        history.append(_user(f"Question {turn}: {handbook(seed + 100 + turn, 60)}"))
        answers.append(await server.ask("chat", history, 32))
        history.append({"role": "assistant", "content": answers[-1].text})
    return [row("chat turn 1", answers[:1]), row(f"chat turns 2-{TURNS}", answers[1:])]


async def burst(server: Server, seed: int, words: int) -> list[Row]:
    """Clients that come at once, each with one of a few new texts."""
    began = time.perf_counter()
    texts = [_system(seed + 1000 + number, words) for number in range(TEXTS)]
    asked = [server.ask("burst", [texts[one % TEXTS], _user(f"Item {one}?")], 16) for one in range(CLIENTS)]
    answers = await asyncio.gather(*asked)
    return [row(f"burst {CLIENTS}x{TEXTS}", answers, wall=time.perf_counter() - began)]


async def mix(server: Server, seed: int, words: int) -> list[Row]:
    """Short questions with longer answers; while they are answered, long cold prompts arrive."""

    async def long(number: int) -> Answer:
        await asyncio.sleep(HEAD_START_S)
        return await server.ask("mix long", [_system(seed + 2000 + number, words), _user("Summarise.")], 8)

    shorts = [server.ask("mix short", [_user(f"Write about the number {number}.")], 64) for number in range(SHORTS)]
    answers = await asyncio.gather(*shorts, *(long(number) for number in range(LONGS)))
    return [row("mix short", answers[:SHORTS]), row("mix long", answers[SHORTS:])]


KIND: Final[Mapping[str, Callable[[Server, int, int], Awaitable[list[Row]]]]] = {
    "qa": qa,
    "chat": chat,
    "burst": burst,
    "mix": mix,
}


async def load(url: str, model: str, kinds: Sequence[str], seed: int, words: int, advance: Advance) -> list[Row]:
    """Put the whole load on a server, kind by kind, after one short question that counts for nothing."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=1 << 20) as http:
        server = Server(http=http, url=url.rstrip("/"), model=model, advance=advance)
        await server.ask("a first question", [_user("hi")], 4)
        rows: list[Row] = []
        for kind in kinds:
            found = await KIND[kind](server, seed, words)
            for each in found:
                print(each.line(), flush=True)
            rows += found
        return rows


def main() -> None:
    """Run, print, keep."""
    parser = argparse.ArgumentParser(prog="benchmarks.peers.load", description="Put a chat load on a server.")
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--work", default=",".join(KINDS), help="kinds, with commas (default: all)")
    parser.add_argument("--prefix-words", type=int, default=WORDS, help=f"words of a long text (default: {WORDS})")
    parser.add_argument("--seed", type=int, default=None, help="number of the first text (default: from the clock)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the rows are kept")
    given = parser.parse_args()
    kinds = [kind for kind in given.work.split(",") if kind]
    if not kinds or set(kinds) - set(KINDS):
        parser.error(f"--work: choose from: {', '.join(KINDS)}")
    if given.prefix_words < 2:  # noqa: PLR2004 - chat takes half of them
        parser.error("--prefix-words: at least 2")
    seed = int(time.time()) % 100_000 if given.seed is None else given.seed
    with report.progress("load", 1 + sum(STEPS[kind] for kind in kinds)) as (advance, _):
        run = partial(load, given.url, given.model, kinds, seed, given.prefix_words, advance)
        try:
            rows = asyncio.run(run())
        except (RuntimeError, TypeError, aiohttp.ClientError, TimeoutError) as error:
            sys.exit(f"{type(error).__name__}: {error}")
    if given.json is not None:
        given.json.write_bytes(msgspec.json.encode(rows))


if __name__ == "__main__":
    main()
