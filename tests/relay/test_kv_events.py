"""What vLLM publishes of its cache, followed over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from gateway.relay.fleet import Fleet
from gateway.relay.kv_account import Account
from gateway.relay.kv_events import Ear, KvEvents
from gateway.relay.kv_wire import Cleared, Garbled, Removed, Stored, batch_of, message_of
from gateway.relay.upstream import Upstream
from gateway.routing.wanted import Wanted
from tests.relay.publisher import CLEARED, Publisher, context, payload, removed, stored
from tests.state.servers import eventually

PROMPT = Wanted(path=bytes(range(80)), ends=range(128, 1281, 128), tokens=1280, ttl_s=300.0)


class Room:
    """A fleet of one upstream, its publisher, and who listens."""

    def __init__(self, zero: object, folder: Path, *, replay: bool = True) -> None:
        self.context = zero
        self.events, self.again = f"ipc://{folder}/e", f"ipc://{folder}/r"
        self.upstream = Upstream(
            name="v",
            kind="vllm",
            base_url="http://v:8000/v1",
            models=("m",),
            kv_events=self.events,
            kv_events_replay=self.again if replay else None,
        )
        self.fleet = Fleet([self.upstream], clock=lambda: 0.0)
        self.listening = KvEvents(self.fleet)

    @property
    def ear(self) -> Ear:
        """The one upstream's."""
        return self.listening.ears["v"]

    def publisher(self, *, kept: int = 1000) -> Publisher:
        """Start the publisher's process, as it were."""
        return Publisher(self.context, self.events, self.again, kept=kept)  # type: ignore[arg-type]

    def believe(self) -> None:
        """Believe that the upstream holds the prompt."""
        self.fleet.router("m").residency.note("v", PROMPT.path, 1e9, 0.0)

    @property
    def believed(self) -> int:
        """Pieces that the upstream is believed to hold."""
        return self.fleet.router("m").residency.blocks("v")

    async def heard(self, number: int) -> None:
        """Wait until message `number` was taken in."""
        await eventually(lambda: self.ear.last == number)


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    """A room that listens, with replay."""
    async with context() as zero:
        made = Room(zero, tmp_path)
        async with made.listening.following():
            yield made


@pytest.fixture
async def publisher(room: Room) -> AsyncIterator[Publisher]:
    """The publisher that it listens to."""
    made = room.publisher()
    await made.joined()
    yield made
    await made.close()


async def test_blocks_are_counted_as_they_come_and_go(room: Room, publisher: Publisher) -> None:
    """Stored blocks count once however often they are stored, removed ones no more, other media never."""
    await publisher.publish(stored(1, 2, 3), stored(3, b"four"))
    await publisher.publish(removed(2), stored(9, medium="CPU"), removed(1, medium="CPU"))
    await room.heard(1)
    assert (room.ear.account.blocks, room.ear.account.tokens) == (3, 48)
    assert (room.ear.gaps, room.ear.garbled, room.ear.restarts) == (0, 0, 0)


async def test_a_full_cache_bounds_what_is_believed(room: Room, publisher: Publisher) -> None:
    """Once a block goes, what was there at most is what fits: 20 blocks of 16 tokens are 1,280 bytes, 3 pieces."""
    room.believe()
    await publisher.publish(*(stored(number) for number in range(20)))
    await room.heard(0)
    assert (room.ear.account.capacity, room.believed) == (None, 10)
    await publisher.publish(removed(0), stored(20))
    await room.heard(1)
    assert (room.ear.account.capacity, room.believed) == (320, 3)


async def test_a_cleared_cache_is_believed_empty(room: Room, publisher: Publisher) -> None:
    """AllBlocksCleared ends every belief and every count at once."""
    await publisher.publish(stored(1, 2))
    await room.heard(0)
    room.believe()
    await publisher.publish(CLEARED, stored(3))
    await room.heard(1)
    assert (room.believed, room.ear.account.blocks) == (0, 1)


async def test_a_gap_is_filled_in_order(room: Room, publisher: Publisher) -> None:
    """Three messages that were lost are asked for from the last one heard, and taken in before the one that came."""
    await publisher.publish(stored(1))
    await room.heard(0)
    publisher.keep(stored(2, 3))
    publisher.keep(removed(1))
    publisher.keep(stored(4))
    await publisher.publish(removed(3))
    await publisher.publish(stored(5))
    await room.heard(5)
    assert (publisher.asked, room.ear.gaps, room.ear.account.blocks) == ([0], 1, 3)
    assert room.ear.account.capacity == 48


async def test_a_clearing_that_was_missed_is_heard_in_the_replay(room: Room, publisher: Publisher) -> None:
    """A message that says that the cache was cleared counts when it comes late, too."""
    await publisher.publish(stored(1))
    await room.heard(0)
    room.believe()
    publisher.keep(CLEARED)
    await publisher.publish(stored(2))
    await room.heard(2)
    assert (room.believed, room.ear.account.blocks) == (0, 1)


async def test_who_comes_late_hears_what_went_before_and_loses_nothing(room: Room) -> None:
    """Beliefs from other sources survive an old clearing; the count is right from the first message on."""
    publisher = room.publisher()
    publisher.keep(stored(1, 2))
    publisher.keep(CLEARED)
    publisher.keep(stored(3, 4))
    room.believe()
    await publisher.joined()
    await publisher.publish(removed(3))
    await room.heard(3)
    assert (room.believed, room.ear.account.blocks, room.ear.account.capacity) == (1, 1, 32)
    await publisher.close()


async def test_what_is_kept_no_longer_is_known_to_be_missing(room: Room) -> None:
    """Where the replay begins too late, no capacity is learnt until the cache has been seen to turn over once."""
    publisher = room.publisher(kept=2)
    for number in range(10):
        publisher.keep(stored(number))
    await publisher.joined()
    await publisher.publish(removed(9))
    await room.heard(10)
    assert (room.ear.account.blocks, room.ear.account.capacity) == (0, 16)
    await publisher.publish(stored(20, 21, 22), removed(20))
    await room.heard(11)
    assert room.ear.account.capacity is None
    await publisher.publish(removed(21, 22))
    await room.heard(12)
    assert room.ear.account.capacity == 48
    await publisher.close()


async def test_without_a_replay_a_gap_is_only_known(tmp_path: Path) -> None:
    """What was missed stays missing, the listening goes on, and nobody is asked."""
    async with context() as zero:
        room = Room(zero, tmp_path, replay=False)
        async with room.listening.following():
            publisher = room.publisher()
            await publisher.joined()
            await publisher.publish(stored(1))
            publisher.keep(stored(2))
            await publisher.publish(stored(3))
            await room.heard(2)
            assert (room.ear.gaps, room.ear.account.blocks, publisher.asked) == (1, 2, [])
            await publisher.close()


async def test_a_number_that_falls_is_a_restart(room: Room, publisher: Publisher) -> None:
    """A publisher that is gone and comes back counting from nought has lost its cache."""
    for number in range(3):
        await publisher.publish(stored(number))
    await room.heard(2)
    room.believe()
    await publisher.close()
    again = room.publisher()
    await again.joined()
    await again.publish(stored(7))
    await room.heard(0)
    assert (room.believed, room.ear.restarts, room.ear.account.blocks) == (0, 1, 1)
    await again.close()


async def test_a_restart_that_has_counted_past_us_is_found_out(room: Room, publisher: Publisher) -> None:
    """Where the old message is another one now, the cache was lost, and all of the new count is taken in."""
    await publisher.publish(stored(1, 2, 3))
    await publisher.publish(stored(4))
    await room.heard(1)
    room.believe()
    await publisher.close()
    again = room.publisher()
    for number in range(5):
        again.keep(stored(10 + number))
    await again.joined()
    await again.publish(stored(20))
    await room.heard(5)
    assert (room.believed, room.ear.restarts, room.ear.account.blocks) == (0, 1, 6)
    assert again.asked == [1, 0]
    await again.close()


async def test_a_publisher_that_comes_back_unchanged_has_lost_nothing(room: Room, publisher: Publisher) -> None:
    """A connection that broke costs no belief: the missing messages are played again."""
    await publisher.publish(stored(1))
    await room.heard(0)
    room.believe()
    kept, number = publisher.kept, publisher.number
    await publisher.close()
    again = room.publisher()
    again.kept, again.number = kept, number
    again.keep(stored(2))
    await again.joined()
    await again.publish(stored(3))
    await room.heard(2)
    assert (room.believed, room.ear.restarts, room.ear.account.blocks) == (10, 0, 3)
    await again.close()


async def test_garbage_is_counted_and_stops_nothing(room: Room, publisher: Publisher) -> None:
    """Frames too few, a number too short, bytes that are no message, an event nobody knows: the next one counts."""
    await publisher.raw(b"alone")
    await publisher.raw(b"", b"short", payload(stored(1)))
    await publisher.publish(data=b"\xc1garbage")
    await publisher.publish(["BlockMoved", 1, 2], stored(2))
    await publisher.publish(stored(3))
    await room.heard(2)
    assert (room.ear.garbled, room.ear.account.blocks) == (4, 2)


async def test_nothing_is_done_while_nothing_comes(room: Room, publisher: Publisher) -> None:
    """Without messages, and with the publisher gone, the listening takes no turn."""
    await publisher.publish(stored(1))
    await room.heard(0)
    turns = room.ear.turns
    await publisher.close()
    for _ in range(1000):
        await asyncio.sleep(0)
    assert (turns, room.ear.turns) == (1, 1)


async def test_listening_follows_the_upstreams_there_are(room: Room, publisher: Publisher) -> None:
    """An upstream that is taken out is listened to no longer."""
    await publisher.publish(stored(1))
    await room.heard(0)
    room.fleet.replace([])
    await eventually(lambda: not room.listening.ears)


async def test_an_address_that_nobody_can_use_is_left_alone(tmp_path: Path) -> None:
    """A path that is too long ends that listening with a line in the log, not the gateway."""
    upstream = Upstream(name="v", base_url="http://v/v1", models=("m",), kv_events=f"ipc://{tmp_path}/{'x' * 200}")
    listening = KvEvents(Fleet([upstream], clock=lambda: 0.0))
    async with listening.following():
        await eventually(lambda: "v" in listening.ears and listening._tasks["v"].done())
    assert listening.ears["v"].turns == 0


def test_both_spellings_of_events_are_read() -> None:
    """Arrays and objects say the same; fields that are missing or new are passed over."""
    rows = batch_of(payload(stored(1, 2), removed(b"x"), CLEARED, ["BlockRemoved", [3]]))
    objects = batch_of(
        msgspec.msgpack.encode(
            {
                "ts": 1.0,
                "events": [
                    {
                        "type": "BlockStored",
                        "block_hashes": [1, 2],
                        "parent_block_hash": None,
                        "token_ids": list(range(32)),
                        "block_size": 16,
                        "lora_id": None,
                        "medium": "GPU",
                        "lora_name": None,
                        "new": 1,
                    },
                    {"type": "BlockRemoved", "block_hashes": [b"x"], "medium": "GPU"},
                    {"type": "AllBlocksCleared"},
                    {"type": "BlockRemoved", "block_hashes": [3]},
                ],
            }
        )
    )
    for told in (rows, objects):
        first, second, third, fourth = told.events
        assert isinstance(first, Stored) and (first.block_hashes, first.tokens()) == ([1, 2], list(range(32)))
        assert isinstance(second, Removed) and second.block_hashes == [b"x"]
        assert isinstance(third, Cleared)
        assert isinstance(fourth, Removed) and fourth.medium is None
        assert told.whole


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93", b"\x91" * 5000, payload()[:-1], msgspec.msgpack.encode({})])
def test_bytes_that_are_no_batch_are_refused(data: bytes) -> None:
    """What cannot be read raises, whatever it is."""
    with pytest.raises(Garbled):
        batch_of(data)
    with pytest.raises(Garbled):
        message_of([data])


def test_an_account_is_bounded() -> None:
    """Of a cache that holds more than is counted no bound is learnt, and no more is kept."""
    account = Account(most_blocks=100)
    account.begun()
    for event in batch_of(payload(stored(*range(150)), removed(*range(50)))).events:
        account.take(event)
    assert (account.blocks, account.capacity) == (50, None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kv_events": "http://v:1"}, "kv_events: is not a ZeroMQ address"),
        ({"kv_events": "tcp://v:99999"}, "kv_events: is not a ZeroMQ address"),
        ({"kv_events": "tcp://v"}, "kv_events: is not a ZeroMQ address"),
        ({"kv_events": "tcp://v:1", "kv_events_replay": "v:2"}, "kv_events_replay: is not a ZeroMQ address"),
        ({"kv_events_replay": "tcp://v:2"}, "kv_events_replay: has no kv_events beside it"),
    ],
)
def test_an_address_that_is_none_is_refused(fields: dict[str, str], message: str) -> None:
    """The error begins with the field."""
    with pytest.raises(ValueError, match=message):
        msgspec.convert({"name": "v", "base_url": "http://v/v1", "models": ["m"], **fields}, Upstream)
