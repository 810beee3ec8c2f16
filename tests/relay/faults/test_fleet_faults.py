"""Four upstreams with caches, of which one restarts cold, one hangs, one lies: no request is lost, beliefs go."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from tests.relay.faults.conftest import CHAT, MODEL, Front, StartFake, StartFront, facing
from tests.relay.faults.fakes import DONE, TOLD, Fake, Wire, answering, streaming, usage_chunk

CHARS_PER_TOKEN = 4
SYSTEM = "The keeper writes down every ship that passes, and the hour at which it did, and the wind. " * 40
TALKS = 12
SOON_S = 0.3


class Caching:
    """An upstream that remembers what it has computed and says what it read, truly or not."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.lies = False
        self.hangs = False

    async def __call__(self, wire: Wire) -> None:
        if self.hangs:
            await wire.hang()
        messages = wire.received.json["messages"]
        prompt, read = "", 0
        for message in messages:
            prompt += message["content"]
            if prompt in self.held:
                read = len(prompt)
            self.held.add(prompt)
        tokens, cached = len(prompt) // CHARS_PER_TOKEN, read // CHARS_PER_TOKEN
        usage = {"prompt_tokens": tokens, "completion_tokens": 2}
        usage["prompt_tokens_details"] = {"cached_tokens": tokens + 9 if self.lies else cached}  # type: ignore[assignment]
        behave = streaming([*TOLD, usage_chunk(usage), DONE])
        if wire.received.json.get("stream") is not True:
            behave = answering(200, {"choices": [], "usage": usage})
        await behave(wire)


def talk(number: int, turn: int) -> list[dict[str, Any]]:
    """A conversation at some turn: its own system prompt, and what was said since."""
    said = [
        {"role": "user" if place % 2 == 0 else "assistant", "content": f"turn {place} " * 30}
        for place in range(2 * turn + 1)
    ]
    return [{"role": "system", "content": f"{number} {SYSTEM}"}, *said]


async def speak(front: Front, number: int, turn: int, *, streamed: bool = True) -> str:
    """Take a turn; it must be answered whole. Return by whom."""
    response = await front.ask(CHAT, messages=talk(number, turn), stream=streamed)
    body = await response.read()
    assert response.status == 200 and (not streamed or body == b"".join([*TOLD, DONE]))
    await front.last()
    return response.headers["x-keepwarm-upstream"]


async def start_fleet(start_fake: StartFake, names: str) -> tuple[dict[str, Fake], dict[str, Caching]]:
    """Fakes with caches, by name."""
    caches = {name: Caching() for name in names}
    return {name: await start_fake(name, cache) for name, cache in caches.items()}, caches


async def test_a_fleet_of_four(start_fake: StartFake, start_front: StartFront) -> None:
    """One restarts cold, one hangs, one lies: every turn is answered once, and beliefs that were wrong go."""
    fakes, caches = await start_fleet(start_fake, "abcd")
    times = {"first_byte_timeout": 120.0}
    front = await start_front(*(facing(fake, **times) for fake in fakes.values()))
    places = dict(enumerate(await asyncio.gather(*(speak(front, one, 0) for one in range(TALKS)))))
    assert set(places.values()) == set("abcd")
    assert [await speak(front, one, 1) for one in range(TALKS)] == list(places.values())
    assert all((one.routed.captured, one.hit) > (0, False) for one in front.kept.records[TALKS:] if one.routed)

    residency = front.relay.fleet.router(MODEL).residency
    held = residency.blocks("a")
    caches["a"].held.clear()
    cold = [one for one, place in places.items() if place == "a"]
    for one in cold[-1:]:  # the one that was used last: whoever lost that has lost all before
        assert await speak(front, one, 1) == "a"
    assert front.kept.records[-1].routed is not None and front.kept.records[-1].routed.delivered == 0
    assert residency.blocks("a") < held

    caches["b"].hangs = True
    front.relay.fleet.replace([facing(fakes["b"], first_byte_timeout=SOON_S), *(facing(fakes[name]) for name in "acd")])
    hung = [one for one, place in places.items() if place == "b"]
    for turn in range(2, 9):
        assert "b" not in {await speak(front, one, turn) for one in hung}
    assert front.relay.retries == front.replica("b").failures > 0
    asked = len(fakes["b"].received)
    if not front.replica("b").health.open:
        await speak(front, hung[0], 9)
        assert len(fakes["b"].received) == asked

    caches["c"].lies = True
    before = front.replica("c").read_tokens
    lied = [one for one, place in places.items() if place == "c"]
    for one in lied:
        await speak(front, one, 2)
    told = [one for one in front.kept.records[-len(lied) :] if one.upstream == "c"]
    assert told and not any(one.reported for one in told)
    assert all(one.prompt is not None and one.prompt.unknown == one.prompt.prompt for one in told)
    assert front.replica("c").read_tokens == before
    assert {one.outcome for one in front.kept.records} == {"finished"}
    residency.check()


async def test_a_wiped_cache_is_believed_no_more(start_fake: StartFake, start_front: StartFront) -> None:
    """A few answers that read nothing end what was believed of a restarted replica: other prompts spread."""
    fakes, caches = await start_fleet(start_fake, "ab")
    front = await start_front(facing(fakes["a"]))
    for one in range(21):
        await speak(front, one, 0)
    front.relay.fleet.replace([facing(fakes["a"]), facing(fakes["b"])])
    assert {await speak(front, one, 0) for one in range(21)} == {"a"}
    caches["a"].held.clear()
    assert {await speak(front, one, 0) for one in range(3)} == {"a"}
    spread = Counter([await speak(front, one, 0) for one in range(3, 21)])
    assert min(spread["a"], spread["b"]) >= 5
    router = front.relay.fleet.router(MODEL)
    router.residency.check()

    front.relay.fleet.replace([facing(fakes["b"])])
    asked = len(fakes["a"].received)
    assert {await speak(front, one, 0) for one in range(21)} == {"b"}
    assert (len(fakes["a"].received), router.residency.blocks("a")) == (asked, 0)


async def test_a_replica_that_refuses_connections_holds_nothing(start_fake: StartFake, start_front: StartFront) -> None:
    """A process that is gone has taken its cache with it: beliefs go with the first refused connection."""
    fakes, _ = await start_fleet(start_fake, "ab")
    front = await start_front(facing(fakes["a"], weight=1000.0), facing(fakes["b"]))
    assert {await speak(front, one, 0) for one in range(5)} == {"a"}
    await fakes["a"].__aexit__()
    assert await speak(front, 4, 0) == "b"
    assert front.relay.fleet.router(MODEL).residency.blocks("a") == 0


async def test_what_ends_after_its_upstream_was_removed(start_fake: StartFake, start_front: StartFront) -> None:
    """An answer of an upstream that is gone ends well and leaves nothing believed, also of its namesake."""
    go_on = asyncio.Event()

    async def slow(wire: Wire) -> None:
        await go_on.wait()
        await streaming([*TOLD, DONE])(wire)

    old, new = await start_fake("a", streaming(TOLD[:1], slow)), await start_fake("a")

    async def late(wire: Wire) -> None:
        await go_on.wait()
        for part in [*TOLD[1:], DONE]:
            await wire.chunk(part)
        await wire.end()

    old.behave = streaming(TOLD[:1], late)
    for after in ([facing(new)], [], [facing(new, models=("other",))]):
        go_on.clear()
        front = await start_front(facing(old))
        response = await front.ask(stream=True)
        assert await response.content.readexactly(len(TOLD[0])) == TOLD[0]
        front.relay.fleet.replace(after)
        go_on.set()
        assert await response.read() == b"".join([*TOLD[1:], DONE])
        assert (await front.last()).outcome == "finished"
        router = front.relay.fleet.router(MODEL)
        assert (router.residency.blocks("a"), router.loads.at("a"), router.loads.open("a")) == (0, 0, 0)


async def test_counting_leaves_nothing_resident(start_fake: StartFake, start_front: StartFront) -> None:
    """A prompt whose tokens were only counted was not computed: nobody is believed to hold it."""
    fake = await start_fake("a", answering(200, {"input_tokens": 9}))
    front = await start_front(facing(fake, kind="anthropic"))
    assert await (await front.ask("/v1/messages/count_tokens")).json() == {"input_tokens": 9}
    assert front.relay.fleet.router(MODEL).residency.blocks("a") == 0


async def test_one_of_two_streams_that_both_fail_says_so_once(start_fake: StartFake, start_front: StartFront) -> None:
    """Where every upstream fails the client gets the last one's error, and each was asked once."""
    fakes = [await start_fake(name, answering(500, {"error": {"message": name}})) for name in "abcd"]
    front = await start_front(*(facing(fake) for fake in fakes))
    response = await front.ask(stream=True)
    assert (response.status, (await response.json())["error"]["message"]) == (500, (await front.last()).upstream)
    assert sorted(len(fake.received) for fake in fakes) == [0, 1, 1, 1]
    assert (len(front.kept.records), front.relay.retries) == (1, 2)
