"""A Redis that is slow, silent, gone or empty: requests go on, writes are refused, and it heals by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from prefix_store.breaker import Breaker
from prefix_store.policy import Policy
from prefix_store.redis_settings import RedisSettings
from prefix_store.redis_store import RedisStore
from prefix_store.store import StateRefused, StoreUnavailable
from tests.state.servers import SECRET, eventually

pytestmark = pytest.mark.usefixtures("never_blocked")

BY = {"by": "ops", "at": 1.0}
SLACK_S = 0.4  # what a busy machine may add to a timeout
TLS = Path(__file__).parent / "tls"


@pytest_asyncio.fixture
async def silent() -> AsyncIterator[int]:
    """Yield the port of a server that accepts connections, reads, and never says a word."""
    tasks: set[asyncio.Task[Any]] = set()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "handlers run as tasks"
        tasks.add(task)
        try:
            while await reader.read(1 << 16):
                pass
        finally:
            writer.close()

    listener = await asyncio.start_server(listen, "127.0.0.1", 0)
    yield listener.sockets[0].getsockname()[1]
    listener.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def took(act) -> float:
    """Return how many seconds it took until the store was found to be unavailable."""
    start = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await act
    return time.monotonic() - start


def patient() -> Breaker:
    """Return a breaker that never opens here, so that every call meets the server."""
    return Breaker(failures=1000)


async def test_a_paused_server_costs_each_of_many_calls_one_timeout(server, opened):
    """Twenty reads at once answer within the timeout from local knowledge; all heals once the server goes on."""
    settings = server.settings(timeout="100ms")
    store = await opened(RedisStore.open(settings))
    stored = await store.put(Policy(name="a", model="a"), **BY)
    server.pause()
    start = time.monotonic()
    snapshots = await asyncio.gather(*(store.read() for _ in range(20)))
    assert time.monotonic() - start < settings.timeout_s + SLACK_S
    assert all(snapshot.policies.get("a") == stored for snapshot in snapshots)
    assert str(settings.socket) in store.degraded
    server.resume()
    await eventually(lambda: store.degraded is None, within_s=2.0)
    assert (await store.put(stored, **BY)).version == 2
    assert (await store.read()).policies.get("a").version == 2


async def test_while_the_breaker_is_open_calls_cost_nothing_and_writes_are_refused(server, opened):
    """In local-only mode no call waits; what would change something says that it was not done."""
    store = await opened(RedisStore.open(server.settings(timeout="100ms"), breaker=Breaker(failures=1, rest_s=60.0)))
    server.pause()
    await store.read()
    start = time.monotonic()
    for act in (
        store.put(Policy(name="b", model="b"), **BY),
        store.delete("b", version=1, **BY),
        store.count("x", {"y": 1}, ttl_s=60),
        store.counters("x"),
        store.keep("x", {"y": b"z"}, ttl_s=60),
        store.recall("x", ["y"]),
        store.audit(),
    ):
        with pytest.raises(StoreUnavailable, match="does not answer") as refused:
            await act
        assert not refused.value.perhaps
    assert len((await store.read()).policies) == 1
    assert time.monotonic() - start < SLACK_S


async def test_an_unanswered_write_is_not_called_undone(server, opened):
    """A write that was sent and not answered may have been done, and the error says so."""
    store = await opened(RedisStore.open(server.settings(timeout="100ms"), breaker=patient()))
    server.pause()
    with pytest.raises(StoreUnavailable, match="may or may not have been made") as refused:
        await store.count("x", {"y": 1}, ttl_s=60)
    assert refused.value.perhaps
    server.resume()
    await eventually(lambda: store.degraded is None)
    assert await store.counters("x") in ({}, {"y": 1})


async def test_unanswered_keeping_and_recalling_cost_one_timeout(server, opened):
    """However much there is to keep or recall, a silent server is given up after the first timeout."""
    store = await opened(RedisStore.open(server.settings(timeout="100ms"), breaker=patient()))
    items = {f"k{number}": b"x" * 10_000 for number in range(200)}
    server.pause()
    assert await took(store.keep("fp", items, ttl_s=60)) < 0.1 + SLACK_S
    assert await took(store.recall("fp", list(items))) < 0.1 + SLACK_S
    server.resume()
    await eventually(lambda: store.degraded is None)
    await store.keep("fp", items, ttl_s=60)
    assert await store.recall("fp", list(items)) == items


async def test_answers_never_reach_the_wrong_call(server, opened):
    """After calls that timed out, each call gets its own answer and none of theirs."""
    store = await opened(RedisStore.open(server.settings(timeout="100ms"), breaker=patient()))
    for number in range(5):
        await store.count(f"s{number}", {"n": number}, ttl_s=600)
    server.pause()
    await asyncio.gather(*(store.counters(f"s{number % 5}") for number in range(20)), return_exceptions=True)
    server.resume()
    await eventually(lambda: store.degraded is None)
    for number in range(5):
        assert await store.counters(f"s{number}") == {"n": number}


async def test_a_killed_server_that_comes_back_empty_is_given_its_policies(server, opened):
    """Kill, start again empty: both gateways recover without a restart and the highest versions are back."""
    settings = server.settings()
    one, two = [await opened(RedisStore.open(settings)) for _ in range(2)]
    stored = await one.put(Policy(name="a", model="a"), **BY)
    await eventually(lambda: two.known.policies.get("a") == stored)
    server.kill()
    await eventually(lambda: one.degraded is not None and two.degraded is not None)
    assert (await two.read()).policies.get("a") == stored
    with pytest.raises(StoreUnavailable):
        await two.put(stored, **BY)
    server.start()
    await eventually(lambda: one.degraded is None and two.degraded is None, within_s=3.0)
    fresh = await opened(RedisStore.open(settings))
    await eventually(lambda: fresh.known.policies.get("a") == stored, within_s=1.0)
    changed = await two.put(stored, **BY)
    await eventually(lambda: one.known.policies.get("a") == changed, within_s=1.0)


async def test_messages_are_heard_again_after_an_outage(server, opened):
    """The subscription comes back by itself."""
    store = await opened(RedisStore.open(server.settings()))
    channel = server.settings().key_of("channel")
    await eventually(lambda: server.say("PUBSUB", "NUMSUB", channel).endswith(b":1\r\n"))
    server.kill()
    await eventually(lambda: store.degraded is not None)
    server.start()
    await eventually(lambda: server.say("PUBSUB", "NUMSUB", channel).endswith(b":1\r\n"))


async def test_a_gateway_starts_without_its_server_and_joins_later(server, opened):
    """Start-up succeeds on the built-in default, degraded, and catches up when the server is there."""
    settings = server.settings()
    first = await opened(RedisStore.open(settings))
    server.kill()
    late = await opened(RedisStore.open(settings))
    assert late.degraded is not None
    assert len(late.known.policies) == 1
    server.start()
    await eventually(lambda: first.degraded is None)
    stored = await first.put(Policy(name="a", model="a"), **BY)
    await eventually(lambda: late.known.policies.get("a") == stored, within_s=3.0)


@pytest.mark.parametrize("form", ["url", "parts", "environment", "environment beside a url"])
async def test_the_timeout_takes_effect_in_every_form(silent, opened, form):
    """However the timeout is written, a server that accepts and stays silent costs a call that long and no longer."""
    address = f"127.0.0.1:{silent}"
    settings = {
        "url": lambda: RedisSettings.from_url(f"redis://{address}?timeout=150ms", secret=SECRET),
        "parts": lambda: RedisSettings.from_parts(
            {"host": "127.0.0.1", "port": str(silent), "timeout": "0.15"}, secret=SECRET
        ),
        "environment": lambda: RedisSettings.from_environment(
            {
                "KEEPWARM_SECRET": SECRET,
                "KEEPWARM_REDIS_HOST": "127.0.0.1",
                "KEEPWARM_REDIS_PORT": str(silent),
                "KEEPWARM_REDIS_TIMEOUT": "150ms",
            }
        ),
        "environment beside a url": lambda: RedisSettings.from_environment(
            {
                "KEEPWARM_SECRET": SECRET,
                "KEEPWARM_REDIS": f"redis://{address}",
                "KEEPWARM_REDIS_TIMEOUT": "150ms",
            }
        ),
    }[form]()
    store = await opened(RedisStore.open(settings, breaker=patient()))
    assert "nothing came within 150 ms" in store.degraded
    waited_s = await asyncio.gather(*(took(store.counters("x")) for _ in range(20)))
    assert min(waited_s) >= 0.14
    assert max(waited_s) < 0.15 + SLACK_S


async def test_the_timeout_holds_over_a_unix_socket_too(server, opened):
    """A `unix://` URL takes the option like any other."""
    server.pause()
    settings = RedisSettings.from_url(f"unix://{server.socket}?timeout=150ms", secret=SECRET)
    store = await opened(RedisStore.open(settings, breaker=patient()))
    assert 0.14 <= await took(store.counters("x")) < 0.15 + SLACK_S


async def test_the_default_timeout_is_fifty_milliseconds(silent, opened):
    """Without a word about it a silent server costs 50 ms."""
    settings = RedisSettings.from_url(f"redis://127.0.0.1:{silent}", secret=SECRET)
    store = await opened(RedisStore.open(settings, breaker=patient()))
    assert 0.04 <= await took(store.counters("x")) < 0.05 + SLACK_S


async def test_nobody_listening_is_an_outage_not_an_error(opened, tmp_path):
    """A socket that is not there degrades the store."""
    settings = RedisSettings.from_parts({"socket": str(tmp_path / "none")}, secret=SECRET)
    store = await opened(RedisStore.open(settings))
    assert "does not answer" in store.degraded


async def test_a_caller_that_gives_up_is_not_counted_as_a_failure(server, opened):
    """Cancelling a call says nothing about the server."""
    store = await opened(RedisStore.open(server.settings(), breaker=Breaker(failures=1)))
    server.pause()
    call = asyncio.create_task(store.counters("x"))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    server.resume()
    assert await store.counters("x") == {}
    assert store.degraded is None


@pytest.mark.parametrize(("ca", "well"), [(str(TLS / "cert.pem"), True), (None, False)])
async def test_rediss_speaks_tls_and_checks_the_certificate(server, opened, ca, well):
    """`rediss://` reaches a server behind TLS when its certificate is known, and not when it is a stranger's."""
    relay = await tls_relay(server.socket)
    port = relay.sockets[0].getsockname()[1]
    query = f"?timeout=5s&ca={ca}" if ca else "?timeout=5s"
    try:
        store = await opened(
            RedisStore.open(RedisSettings.from_url(f"rediss://localhost:{port}/1{query}", secret=SECRET))
        )
        assert (store.degraded is None) is well
        if well:
            await store.put(Policy(name="a", model="a"), **BY)
            assert server.say("SELECT", "1") == b"+OK\r\n" and b"db1:" in server.say("INFO", "keyspace")
        await store.close()
    finally:
        relay.close()


async def tls_relay(socket: Path) -> asyncio.Server:
    """Return a server that speaks TLS to the outside and hands everything on to the socket."""
    import ssl

    def identity() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
        return context

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(1 << 16):
                writer.write(piece)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(socket)
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    return await asyncio.start_server(relay, "localhost", 0, ssl=await asyncio.to_thread(identity))


@pytest.mark.parametrize("option", ["ca", "cert", "key"])
async def test_a_missing_certificate_file_is_refused_at_start(option):
    """A path that leads nowhere will not get better by waiting."""
    settings = RedisSettings.from_url(f"rediss://localhost:1?{option}=/nowhere.pem", secret=SECRET)
    with pytest.raises(StateRefused, match=f"{option}: there is no file '/nowhere.pem'"):
        await RedisStore.open(settings)
