"""What reaches the store and when, and that nobody waits for a store that is slow or away."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from pathlib import Path
from typing import Any

from gateway import recall as recall_module
from gateway.recall import Recall
from prefix_store.breaker import Breaker
from prefix_store.redis_store import RedisStore
from prefix_store.sqlite_store import SqliteStore
from tests.gateway.recall.recalled import KEYED, NOON, SECRET, TENANT, digest, hashes, remember, request
from tests.state.servers import RedisServer, eventually

DAY = 86_400.0


class Kept:
    """What a store in memory holds, counted without the store."""

    def __init__(self, state: SqliteStore) -> None:
        self._state = state

    async def names(self, kind: str) -> list[str]:
        """Return the names of that kind that were ever written, of all spaces."""

        def select() -> list[str]:
            rows = self._state._database._sql.execute("SELECT key FROM kept WHERE key LIKE ?", (f"{kind}:%",))
            return [row[0] for row in rows]

        return await self._state._run(select)

    async def spaces(self) -> set[str]:
        """Return all spaces."""
        return await self._state._run(
            lambda: {row[0] for row in self._state._database._sql.execute("SELECT space FROM kept")}
        )


async def test_names_in_the_store_tell_nothing(gateway, state):
    """Neither the tenant nor the request's id stands in a name under which something is kept."""
    remember(here := gateway(), request("resp_1", "a", partition="p"))
    await here.flush()
    names = [name for kind in ("id", "partition", "part", "hash") for name in await Kept(state).names(kind)]
    assert len(names) == 1 + 1 + 1 + 2
    assert await Kept(state).spaces() == {f"fp:{KEYED.digest(b'space').hex()}"}
    assert not [name for name in names if "resp_1" in name or TENANT in name]


async def test_hashes_are_written_once_while_a_conversation_grows(gateway, state):
    """Each turn adds the hashes of its new parts; those before are not sent again within half a day."""
    here, sent, keep = gateway(), [], state.keep

    async def watched(space: str, items: dict[str, bytes], *, ttl_s: float) -> None:
        sent.append(sum(name.startswith("hash:") for name in items))
        await keep(space, items, ttl_s=ttl_s)

    state.keep = watched
    words = [f"word {number}" for number in range(6)]
    for turn in range(4):
        remember(here, request(f"r{turn}", *words[: turn + 3], at=turn))
        await here.flush()
    assert sent == [3 + 1, 1, 1, 1]
    assert len(await Kept(state).names("hash")) == 7


async def test_hashes_live_as_long_in_the_store_as_the_conversation(gateway, clock):
    """A part used all day long is written again before it is forgotten, even when the caller leaves it out."""
    here = gateway()
    first = request("r0", "a")
    remember(here, first)
    await here.flush()
    for hours in (13, 26, 39):
        clock.now = NOON + hours * 3600
        here.remember(TENANT, request(f"r{hours}", "a", at=hours * 3600), {})
        await here.flush()
    assert await gateway().hashes(TENANT, list(hashes(first))) == hashes(first)


async def test_the_store_forgets_after_a_day(gateway, clock):
    """A request is found until its time is over, and then no more."""
    remember(one := gateway(), request("old", "a", partition="p"))
    clock.now += 100
    await one.flush()
    clock.now = NOON + DAY - 1
    assert (await gateway().find(TENANT, request("new", "a"), named="old")).id == "old"
    clock.now = NOON + DAY
    for named in ("old", None):
        assert await gateway().find(TENANT, request("new", "a", partition="p"), named=named) is None
        assert await one.find(TENANT, request("new", "a", partition="p"), named=named) is None


async def test_spoilt_records_are_unknown(gateway, state):
    """What is no record, or another's, is as if it were not there."""
    here = gateway()
    space = f"fp:{KEYED.digest(b'space').hex()}"
    named = f"id:{KEYED.digest(b'old').hex()}"
    for data in (b"", b"\xc1", b"\x80", Recall(state, secret=SECRET).keyed(TENANT).digest(b"x")):
        await state.keep(space, {named: data}, ttl_s=60)
        assert await here.find(TENANT, request("new", "a"), named="old") is None


class SlowState:
    """A store that answers when told to."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()
        self.asked = 0

    async def recall(self, space: str, keys: list[str]) -> dict[str, bytes]:
        self.asked += 1
        await self.answer.wait()
        return {}


async def test_a_slow_store_is_not_waited_for_longer_than_the_limit(clock):
    """After the limit nothing is known of what only the store could tell, and what is near here is taken."""
    slow = SlowState()
    here = Recall(slow, secret=SECRET, clock=clock, wait_s=0.05)
    remember(here, old := request("old", "a"))
    start = time.monotonic()
    assert await here.find(TENANT, request("new", "a"), named="else") is None
    assert await here.find(TENANT, request("new", "a", partition="p"), named=None) == old
    assert await here.hashes(TENANT, [digest("tokens", "a"), b"else"]) == {
        digest("tokens", "a"): hashes(old)[digest("tokens", "a")]
    }
    assert 0.14 < time.monotonic() - start < 2.0
    assert slow.asked == 3


async def test_what_the_store_does_not_take_goes_with_the_next_flush(gateway, state):
    """A flush that fails keeps everything, in order, and the next one hands it over."""
    here, keep = gateway(), state.keep
    remember(here, request("one", "a", partition="p"))
    broken = await SqliteStore.open(":memory:")
    await broken.close()
    state.keep = broken.keep
    await here.flush()
    remember(here, request("two", "a", partition="p", at=1.0))
    await here.flush()
    state.keep = keep
    assert await gateway().find(TENANT, request("new", "z"), named="one") is None
    await here.flush()
    assert here.dropped == 0
    assert (await gateway().find(TENANT, request("new", "z", partition="p"), named=None)).id == "two"
    assert (await gateway().find(TENANT, request("new", "z"), named="one")).id == "one"


async def test_the_oldest_go_when_too_much_waits_and_are_counted(gateway):
    """What waits for the store is bounded; hashes that were dropped with a request are sent with the next."""
    here = gateway(waiting_bytes=4000)
    for number in range(10):
        remember(here, request(f"r{number}", f"own{number}:500", "common:40", at=number))
    await here.flush()
    there = gateway()
    found = [await there.find(TENANT, request("new", "z"), named=f"r{number}") for number in range(10)]
    kept = [record.id for record in found if record is not None]
    assert 0 < len(kept) < 10
    assert kept == [f"r{number}" for number in range(10 - len(kept), 10)]
    assert here.dropped == 10 - len(kept)
    remember(here, last := request("last", "own9:500", "common:40", at=10.0))
    await here.flush()
    assert await there.hashes(TENANT, list(hashes(last))) == hashes(last)


async def test_flushing_hands_over_now_and_then_and_at_the_end(gateway, state, monkeypatch):
    """While the block runs others come to know what was remembered, and its end hands over the rest."""
    monkeypatch.setattr(recall_module, "FLUSH_S", 0.0)
    here, there, keep, handed_over = gateway(), gateway(), state.keep, asyncio.Event()

    async def told(*what: Any, **how: Any) -> None:
        await keep(*what, **how)
        handed_over.set()

    state.keep = told
    async with here.flushing():
        remember(here, request("one", "a"))
        await handed_over.wait()
        assert (await there.find(TENANT, request("new", "z"), named="one")).id == "one"
    async with here.flushing():
        remember(here, request("two", "a", at=1.0))
    assert (await there.find(TENANT, request("new", "z"), named="two")).id == "two"


async def test_a_flush_given_up_in_the_middle_loses_nothing(gateway, state):
    """A flush that is cancelled while the store is busy leaves what it took for the next one."""
    here, keep, started = gateway(), state.keep, asyncio.Event()

    async def stuck(*_: object, **__: object) -> None:
        started.set()
        await asyncio.Event().wait()

    state.keep = stuck
    remember(here, request("one", "a"))
    flushing = asyncio.create_task(here.flush())
    await started.wait()
    flushing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await flushing
    state.keep = keep
    await here.flush()
    assert (await gateway().find(TENANT, request("new", "z"), named="one")).id == "one"


async def test_gateways_share_a_redis_and_go_on_without_it(clock):
    """Over a real server requests are found; while it is silent each gateway has what it knows itself."""
    with tempfile.TemporaryDirectory(prefix="kw") as folder:
        server = await asyncio.to_thread(RedisServer, Path(folder))
        settings = server.settings(timeout="200ms")
        states = [await RedisStore.open(settings, breaker=Breaker(rest_s=0.05)) for _ in range(2)]
        here, there = [Recall(state, secret=SECRET, clock=clock, wait_s=10.0) for state in states]
        old = request("old", "a", "b:90000", partition="p", answer="x")
        remember(there, old)
        await there.flush()
        assert await here.find(TENANT, request("new", "b:90000"), named=None) == old
        assert await here.hashes(TENANT, list(hashes(old))) == hashes(old)
        server.pause()
        remember(here, request("two", "c", at=1.0))
        await here.flush()
        assert await there.find(TENANT, request("new", "z"), named="two") is None
        assert (await here.find(TENANT, request("new", "c"), named=None)).id == "two"
        server.resume()
        await eventually(lambda: states[0].degraded is None and states[1].degraded is None)
        await here.flush()
        assert (await there.find(TENANT, request("new", "z"), named="two")).id == "two"
        for state in states:
            await state.close()
        server.kill()
