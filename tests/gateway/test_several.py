"""Several engines behind one router: where requests go, what is counted, and what becomes of them when one dies."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import numpy as np
import pytest

from engine.errors import EngineUnavailable, Overloaded
from engine.messages import Keep, Submit
from engine.operator_messages import (
    Changed,
    EngineStats,
    Entries,
    EntryView,
    Histo,
    PolicyTerms,
    RetentionView,
    Tally,
    Tree,
    TreeNode,
)
from gateway.backends.bundled import Bundled
from gateway.backends.several import Several, wanted_of
from gateway.backends.sums import summed
from gateway.config_values import parse_devices
from tests.gateway.scripted import CARD, Script, ScriptedBackend

LONG = list(range(1024))


class Engine(ScriptedBackend):
    """A scripted backend that can come and go."""

    def __init__(self) -> None:
        """Be ready at once."""
        super().__init__(Script(deltas=((5,), (6,)), read=1000))
        self.turned = asyncio.Event()
        self.hears = asyncio.Event()

    def turn(self, *, up: bool) -> None:
        """Come or go."""
        self.restarts += self.card is not None and not up
        self.card = CARD if up else None
        self.turned.set()

    async def turn_comes(self) -> None:
        """Wait until something has changed."""
        self.turned.clear()
        await self.turned.wait()

    async def set_policies(self, policies: tuple[PolicyTerms, ...], *, preview: bool = False) -> Changed:
        """Note them."""
        self.hears.set()
        return await super().set_policies(policies, preview=preview)

    async def ready(self) -> None:
        """Wait until it is there."""
        while self.card is None:
            await self.turn_comes()

    async def lost(self) -> None:
        """Wait until it is gone."""
        while self.card is not None:
            await self.turn_comes()


def several(count: int = 2) -> tuple[Several, list[Engine]]:
    """Return engines behind one router, under a clock that stands."""
    engines = [Engine() for _ in range(count)]
    named = {f"cuda:{place}": cast(Bundled, engine) for place, engine in enumerate(engines)}
    return Several(named, clock=lambda: 0.0), engines


def submit(request_id: str, tokens: list[int], **fields: Any) -> Submit:
    """Make a request."""
    return Submit(id=request_id, tokens=np.asarray(tokens, dtype="<u4").tobytes(), max_tokens=2, **fields)


async def answer(backend: Several, request: Submit) -> list[int]:
    """Return an answer's tokens."""
    with backend.open(request) as deltas:
        return [token async for delta in deltas for token in delta.tokens]


def homes(engines: list[Engine]) -> list[list[str]]:
    """Return which requests each engine got."""
    return [[one.id for one in engine.submitted] for engine in engines]


async def test_a_prefix_stays_where_it_lies() -> None:
    """Requests over one long beginning go to one engine, and those over another beginning stay together too."""
    backend, engines = several(3)
    for at in range(6):
        for name, first in (("a", 0), ("b", 7), ("c", 9)):
            assert await answer(backend, submit(f"{name}{at}", [first, *LONG, at])) == [5, 6]
    where = [{one.id[0]: place for one in engine.submitted} for place, engine in enumerate(engines)]
    assert sum(len(one) for one in where) == 3


async def test_what_is_counted_never_falls() -> None:
    """An engine that goes leaves what it counted, not what it held; one that comes again counts on from there."""
    backend, engines = several()
    for engine, evicted in zip(engines, (5, 7), strict=True):
        engine.reading = EngineStats(blocks_evicted_total=evicted, blocks_cached=2)
    found = [await backend.stats()]
    engines[0].turn(up=False)
    found.append(await backend.stats())
    engines[0].turn(up=True)
    engines[0].reading = EngineStats(blocks_evicted_total=1, blocks_cached=1)
    found.append(await backend.stats())
    assert [(one.blocks_evicted_total, one.blocks_cached) for one in found] == [(12, 4), (12, 2), (13, 3)]
    assert backend.life == 0


async def test_equal_prompts_at_one_moment_meet() -> None:
    """Four open requests over one new prompt are on one engine; one over another goes to the idle one."""
    backend, engines = several()
    with (
        backend.open(submit("a", LONG)),
        backend.open(submit("b", LONG)),
        backend.open(submit("c", LONG)),
        backend.open(submit("d", LONG)),
        backend.open(submit("e", [3, *LONG])),
    ):
        assert sorted(map(sorted, homes(engines))) == [["a", "b", "c", "d"], ["e"]]


async def test_who_is_gone_gets_nothing_and_is_believed_to_hold_nothing() -> None:
    """A request goes to the engine that is left, and the one that comes back begins without beliefs."""
    backend, engines = several()
    await answer(backend, submit("a", LONG))
    (home,) = (place for place, engine in enumerate(engines) if engine.submitted)
    engines[home].turn(up=False)
    await answer(backend, submit("b", LONG))
    engines[home].turn(up=True)
    await answer(backend, submit("c", LONG))
    assert homes(engines)[1 - home] == ["b", "c"]
    for engine in engines:
        engine.turn(up=False)
    assert backend.card is None
    with pytest.raises(EngineUnavailable, match="0 of 2 engines are ready"), backend.open(submit("d", LONG)):
        pass


async def test_an_engine_that_is_full_lets_another_answer() -> None:
    """Only when all refuse is a request refused."""
    backend, engines = several()

    def full(_: Submit) -> Any:
        raise Overloaded("No room.", retry_after_s=1.0)

    engines[0].open = full  # type: ignore[assignment,method-assign]
    for at in range(4):
        await answer(backend, submit(f"{at}", [at, *LONG]))
    assert [len(one) for one in homes(engines)] == [0, 4]
    engines[1].open = full  # type: ignore[assignment,method-assign]
    with pytest.raises(Overloaded), backend.open(submit("x", LONG)):
        pass


def test_what_keeps_prompts_apart_keeps_them_apart_here() -> None:
    """Tenant, partition and rendering are part of the chain; who asks for no caching has none."""
    paths = {
        wanted_of(submit("a", LONG, **fields)).path
        for fields in ({}, {"tenant": "t"}, {"partition": "t"}, {"rendering": "t"}, {"tenant": "default", "id": "b"})
        if fields.pop("id", None) is None or fields
    }
    assert len(paths) == 4
    wanted = wanted_of(submit("a", LONG))
    assert (wanted.tokens, wanted.ends[-1], wanted.tokens_at(2), wanted.ttl_s) == (1024, 1024, 256, 300.0)
    assert wanted_of(submit("a", LONG, keep=Keep(cache=False))).path == b""
    assert wanted_of(submit("a", LONG, keep=Keep(min_tokens=1025))).path == b""


async def test_an_engine_that_comes_is_told_the_policies() -> None:
    """What is in force reaches who is there at once, and who comes later as soon as it does."""
    backend, engines = several()
    engines[1].turn(up=False)
    await backend.start()
    await asyncio.sleep(0)  # whoever waits for engines begins to
    terms = (PolicyTerms(name="default"),)
    await backend.set_policies(terms)
    assert [engine.told for engine in engines] == [[terms], []]
    waiting = asyncio.create_task(backend.lost())
    engines[1].turn(up=True)
    await engines[1].hears.wait()
    assert engines[1].told == [terms]
    assert not waiting.done()
    engines[0].turn(up=False)
    await waiting
    await backend.ready()
    assert backend.restarts == 2
    await backend.stop()


def test_the_card_is_of_all_that_serve() -> None:
    """Blocks and bytes are added; the longest sequence is one engine's."""
    backend, engines = several()
    card = backend.card
    assert card is not None
    assert (card.blocks, card.kv_bytes, card.device) == (2 * CARD.blocks, 2 * CARD.kv_bytes, "cpu,cpu")
    assert card.max_model_len == CARD.max_model_len
    engines[0].turn(up=False)
    assert backend.card == CARD


async def test_counts_are_added_and_entries_told_apart() -> None:
    """Snapshots add up number by number; pages go from one engine to the next; ids have the engine's number."""
    backend, engines = several()
    engines[1].reading = EngineStats(
        waiting=2, blocks_free=1, tenant_blocks={"t": 3}, lifetime=Histo(counts=(1,) * len(Histo().counts), sum=2.5)
    )
    stats = await backend.stats()
    assert (stats.waiting, stats.blocks_free, stats.steps_total, stats.tenant_blocks) == (3, 8, 3, {"t": 3})
    assert (stats.lifetime.sum, stats.lifetime.counts[0]) == (2.5, 1)
    entry = EntryView(
        id="e",
        tenant="t",
        model="m",
        tokens=16,
        own_tokens=16,
        klass="5m",
        kept="held",
        left_s=1.0,
        age_s=1.0,
        idle_s=1.0,
        reads=0,
        leases=0,
    )
    for engine in engines:
        engine.page = Entries(seq=0, total=1, entries=(entry,))
    page = await backend.entries(limit=10)
    assert (page.total, [one.id for one in page.entries]) == (2, ["0-e", "1-e"])
    assert [one.id for one in (await backend.entries(limit=1)).entries] == ["0-e"]
    node = TreeNode(
        id="n",
        parent=None,
        start=0,
        tokens=16,
        subtree_tokens=16,
        tenant="t",
        model="m",
        klass="5m",
        kept="held",
        left_s=1.0,
        idle_s=1.0,
        age_s=1.0,
        reads=0,
        leases=0,
    )
    for size, engine in zip((16, 32), engines, strict=True):
        top, below = node, node
        engine.tree_shown = Tree(
            seq=0,
            total=2,
            nodes=(
                TreeNode(**_fields(top) | {"subtree_tokens": 2 * size}),
                TreeNode(**_fields(below) | {"id": "m", "parent": "n", "subtree_tokens": size}),
            ),
        )
    tree = await backend.tree(limit=3)
    assert tree.total == 4
    assert [(one.id, one.parent) for one in tree.nodes] == [("1-n", None), ("0-n", None), ("1-m", "1-n")]


def _fields(node: TreeNode) -> dict[str, Any]:
    return {name: getattr(node, name) for name in node.__struct_fields__}


def test_sums_go_as_deep_as_numbers_are() -> None:
    """Tallies by tenant and histograms by class are added, and the question's number stays."""
    one = Changed(seq=4, gone={"a": Tally(entries=1, tokens=2, bytes=3)}, leased_tokens=5)
    two = Changed(seq=9, gone={"a": Tally(entries=1), "b": Tally(tokens=7)}, leased_tokens=6)
    assert summed([one, two]) == Changed(
        seq=4, gone={"a": Tally(entries=2, tokens=2, bytes=3), "b": Tally(tokens=7)}, leased_tokens=11
    )
    view = RetentionView(seq=1, ages={"5m": (1, 2)})
    assert summed([view, RetentionView(seq=2, ages={"5m": (3, 4), "1h": (1, 1)})]).ages == {"5m": (4, 6), "1h": (1, 1)}


@pytest.mark.parametrize(
    ("text", "devices"),
    [("", ()), ("cpu,cpu", ("cpu", "cpu")), ("cuda, cuda:1", ("cuda:0", "cuda:1")), ("cuda:3", ("cuda:3",))],
)
def test_devices_are_read(text: str, devices: tuple[str, ...]) -> None:
    """Names are separated by commas."""
    assert parse_devices(text) == devices


@pytest.mark.parametrize("text", ["cuda:0,cpu", "cuda:1,cuda:1", "cuda,cuda:0", "tpu", "cuda:x,cuda:1"])
def test_devices_that_cannot_be_are_refused(text: str) -> None:
    """Of two kinds, the same GPU twice, or no device."""
    with pytest.raises(ValueError, match=r"expected|twice"):
        parse_devices(text)
