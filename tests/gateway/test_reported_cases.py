"""Huge prompts, threads, clocks and turns that are written anew: what was reported of other servers."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
import pytest

import gateway.fingerprint
import prefix_store.chain
from gateway.ask import Ask, Turn
from gateway.fingerprint import fingerprint
from gateway.layout import Span
from gateway.prompt import Renderer
from prefix_store.chain import BlockHash, Namespace, chain, root
from prefix_store.fingerprints import Keyed
from tests.gateway.conftest import Gateway
from tests.gateway.scripted import CARD, MODEL, Script
from tests.gateway.templates import LLAMA, MISTRAL, QWEN, Style
from tests.gateway.wire import CHAT

WORDS = ("the atlas", "\n\n", "  and then ", "漢字", "🙂", "1234.5", "<|im_end|>", "<|im_start|>user\n")
LONG_GAP_S = 0.5
HUGE = "All of the words that there are, and then the next. " * (8_000_000 // 52)
BLOCK = 16

# The newest answer begins with empty thoughts; in history there are none.
THINKS_LAST = Style(
    name="thinks last",
    specials=("<|im_start|>", "<|im_end|>"),
    source="""{% for message in messages %}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}{% endif %}""",
)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        """Begin in the morning."""
        self.now = datetime(2026, 3, 1, 9, tzinfo=UTC)

    def __call__(self) -> datetime:
        """Tell the time."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """The template's clock."""
    return Clock()


@pytest.fixture
async def renderer(request: pytest.FixtureRequest, clock: Clock) -> AsyncIterator[Renderer]:
    """Prompts in the style that a test asks for."""
    made = getattr(request, "param", QWEN).renderer(clock=clock)
    yield made
    made.close()


def in_style(style: Style) -> pytest.MarkDecorator:
    """Make a test's prompts in a style."""
    return pytest.mark.parametrize("renderer", [style], ids=repr, indirect=True)


def user(text: str) -> dict[str, str]:
    """A user message."""
    return {"role": "user", "content": text}


async def answer_to(gateway: Gateway, messages: list[Any], **fields: Any) -> Any:
    """The answer to a conversation."""
    response = await gateway.chat(messages=messages, prompt_cache_key="talk", **fields)
    answer = await response.json()
    assert response.status == 200, answer
    return answer


def places(answer: Any) -> list[dict[str, Any]]:
    """The misses that have a place."""
    return [miss for miss in answer["keepwarm"]["miss"] if "where" in miss]


def ids(gateway: Gateway, place: int) -> np.ndarray:
    """The ids of a prompt that went to the engine."""
    return np.frombuffer(gateway.backend.submitted[place].tokens, dtype="<u4")


def in_common(one: np.ndarray, other: np.ndarray) -> int:
    """Count the leading ids that two prompts share."""
    least = min(len(one), len(other))
    differ = one[:least] != other[:least]
    return int(differ.argmax()) if differ.any() else least


async def polled(gateway: Gateway, work: asyncio.Future[Any]) -> list[float]:
    """Ask for the health while something is at work; how long each answer took."""
    took = []
    while not work.done():
        began = time.monotonic()
        response = await gateway.serving.get("/health")
        assert response.status == 200
        took.append(time.monotonic() - began)
        await asyncio.wait([work], timeout=0.05)
    return took


@pytest.mark.parametrize(("window", "status"), [(1 << 24, 200), (2048, 400)], ids=["fits", "does not"])
async def test_a_prompt_of_eight_megabytes_freezes_nobody(gateway: Gateway, window: int, status: int) -> None:
    """Health is told and an open stream goes on while the prompt is made, or refused unmade for its length."""
    gateway.backend.card = msgspec.structs.replace(CARD, max_model_len=window, blocks=window // BLOCK)
    held = asyncio.Event()
    words = gateway.tokens("on")
    gateway.backend.queue.append(Script(deltas=[words, words], until={1: held}))
    stream = await gateway.chat(stream=True)
    assert b"chat.completion.chunk" in await stream.content.readline()
    body = io.BytesIO(json.dumps({"model": MODEL, "messages": [user(HUGE)]}).encode())
    huge = asyncio.ensure_future(gateway.serving.post(CHAT, data=body))
    took = await polled(gateway, huge)
    assert took
    assert max(took) < LONG_GAP_S
    held.set()
    assert (await stream.text()).endswith("data: [DONE]\n\n")
    assert (await huge).status == status
    assert len(gateway.backend.submitted) == (2 if status == 200 else 1)


def conversation(number: int) -> list[Turn]:
    """A conversation of a length of its own, with forged control tokens, and parts that others have too."""
    said = "".join(WORDS[(number * step) % len(WORDS)] for step in range(1, 3 + 5 * (number % 50)))
    return [
        Turn(role="user", text=said),
        Turn(role="assistant", text=WORDS[number % 3] * (number % 7), breaks=(number % 2,)),
        Turn(role="user", text="the same in all"),
    ]


@pytest.mark.parametrize("style", [QWEN, MISTRAL], ids=repr)
@pytest.mark.parametrize("text_bytes", [64 << 20, 0], ids=["remembered", "not remembered"])
def test_eight_threads_make_the_ids_of_one(style: Style, text_bytes: int) -> None:
    """Ids, marks and places of 200 conversations are those of a renderer that no other thread uses."""
    talks = [conversation(number) for number in range(200)]
    alone, shared = style.renderer(text_bytes=text_bytes), style.renderer(text_bytes=text_bytes)

    def made(renderer: Renderer, turns: list[Turn]) -> tuple[Any, ...]:
        prompt = renderer.render(turns)
        assert prompt.encoded is not None
        found = [prompt.encoded.place(token) for token in range(0, len(prompt), 7)]
        return prompt.tokens, prompt.marks, prompt.spans, found

    expected = [made(alone, turns) for turns in talks]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(2):
            assert list(threads.map(lambda turns: made(shared, turns), talks)) == expected


@in_style(QWEN)
async def test_many_requests_with_stops_count_as_one_by_one(gateway: Gateway) -> None:
    """200 requests at once, short and long and with stops, get the token counts that each gets alone."""

    async def prompt_tokens(number: int) -> int:
        messages = [user(WORDS[number % len(WORDS)] * (1 + 60 * (number % 9))), *[user("the")] * (number % 4)]
        answer = await answer_to(gateway, messages, stop=[WORDS[0], f"stop {number}"])
        count: int = answer["usage"]["prompt_tokens"]
        return count

    gateway.backend.card = msgspec.structs.replace(CARD, max_model_len=1 << 16)
    alone = [await prompt_tokens(number) for number in range(200)]
    assert await asyncio.gather(*map(prompt_tokens, range(200))) == alone


class Counted:
    """Counts the bytes that pass through a digest."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
        """Count what `module` hashes."""
        self.bytes = 0
        self._digest = module.xxhash.xxh3_128_digest
        monkeypatch.setattr(module.xxhash, "xxh3_128_digest", self._counted)

    def _counted(self, data: bytes) -> bytes:
        self.bytes += len(data)
        digest: bytes = self._digest(data)
        return digest


def test_a_fingerprint_hashes_each_token_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the tokens in ten times the messages are at most twelve times the bytes."""
    counted = Counted(monkeypatch, gateway.fingerprint)
    totals = []
    for turns in (10, 100, 1_000):
        ask = Ask(id="r", model="m", turns=(Turn(role="user", text="x" * 100),) * turns)
        spans = [Span("user", place, 100 * place, 100 * (place + 1)) for place in range(turns)]
        tokens, counted.bytes = bytes(4 * 100 * turns), 0
        fingerprint(Keyed(b"k", "t"), ask, spans, tokens, id="r", at=0.0, model="m", weights="w", rendering="r")
        totals.append(counted.bytes)
    assert totals[0] >= 4 * 100 * 10
    assert totals[1] <= 12 * totals[0]
    assert totals[2] <= 12 * totals[1]


def test_a_block_of_an_answer_costs_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind 1,000 tokens or 100,000, each block that 2,000 generated tokens fill hashes its tokens and a link."""
    counted = Counted(monkeypatch, prefix_store.chain)
    start = root(Namespace(tenant="t", model="m", weights="w", kv_dtype="float32", block_tokens=BLOCK))
    for prompt in (1_000, 10_000, 100_000):
        link = BlockHash(chain(start, bytes(4 * prompt), BLOCK)[-16:])
        counted.bytes = 0
        for _ in range(2_000 // BLOCK):
            link = BlockHash(chain(link, bytes(4 * BLOCK), BLOCK))
        assert counted.bytes == 2_000 // BLOCK * (16 + 4 * BLOCK)


@in_style(LLAMA)
async def test_a_date_that_the_template_writes_is_one_miss_a_day(gateway: Gateway, clock: Clock) -> None:
    """Morning and evening are one prompt, the next day parts at the date and says the new one, and its place."""
    talk = [{"role": "system", "content": "Be brief."}, user("What day is it?")]
    told = []
    for now in (clock.now, clock.now.replace(hour=17), clock.now + timedelta(hours=15, minutes=1)):
        clock.now = now
        told.append(places(await answer_to(gateway, talk)))
    morning, evening, midnight = (ids(gateway, place) for place in range(3))
    assert morning.tobytes() == evening.tobytes()
    assert "Today Date: 02 Mar 2026" in gateway.renderer.spell(midnight.tobytes())
    assert [len(misses) for misses in told] == [0, 0, 1]
    (miss,) = told[2]
    assert (miss["reason"], miss["where"]["looks_like"]) == ("template", "date")
    assert miss["where"]["token"] == in_common(evening, midnight)


@in_style(LLAMA)
async def test_a_date_that_the_client_gives_outlives_midnight(gateway: Gateway, clock: Clock) -> None:
    """The explicit date is the one in the prompt, today and tomorrow, so that nothing is missed."""
    fields = {"chat_template_kwargs": {"date_string": "01 Feb 2020"}}
    await answer_to(gateway, [user("What day is it?")], **fields)
    clock.now += timedelta(days=1)
    assert places(await answer_to(gateway, [user("What day is it?")], **fields)) == []
    assert ids(gateway, 0).tobytes() == ids(gateway, 1).tobytes()
    assert "Today Date: 01 Feb 2020" in gateway.renderer.spell(ids(gateway, 0).tobytes())


@in_style(THINKS_LAST)
async def test_a_last_turn_written_otherwise_once_it_is_history_costs_itself_alone(gateway: Gateway) -> None:
    """Over five turns each miss begins where the ids really part, behind all of the earlier prompt but its opening."""
    talk: list[Any] = []
    parts, opening = [], "<think>\n\n</think>\n\n"
    for turn in range(5):
        talk.append(user(f"Question {turn}: and the novels?"))
        answer = await answer_to(gateway, talk)
        if turn:
            earlier, current = ids(gateway, turn - 1), ids(gateway, turn)
            (miss,) = places(answer)
            assert (miss["reason"], miss["where"]["message"]) == ("template", f"messages[{2 * turn - 1}]")
            assert miss["where"]["token"] == in_common(earlier, current)
            assert miss["where"]["token"] == len(earlier) - len(gateway.tokens(opening))
            parts.append(miss["where"]["token"])
        talk.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
    assert parts == sorted(set(parts))
