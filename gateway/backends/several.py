"""Several bundled engines of one model, one a device, as one backend.

Owns the engines and one router over them: a request goes where most of its prompt lies, or where least work waits, by
the rules of `gateway.routing.router`, with the prompt's own tokens. Rules: an engine that dies is believed to hold
nothing and the others go on; one that comes again is told the policies in force before it gets a request; what is
counted is the sum over all of them, and over the lives of each, so that it never falls.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace as replace_settings
from typing import Any

from msgspec.structs import replace

from engine.config import EngineConfig
from engine.errors import EngineError, EngineUnavailable
from engine.messages import Delta, ModelCard, Submit
from engine.operator_messages import Changed, EngineStats, Entries, PolicyTerms, RetentionView, Tree
from gateway.backends.bundled import Bundled
from gateway.backends.sums import ended, summed
from gateway.routing.router import Choice, Router
from gateway.routing.wanted import Wanted, path_of
from prefix_store.chain import TOKEN_BYTES


def engines_on(devices: Sequence[str], config: EngineConfig) -> Bundled | Several:
    """Return one engine on the one device, or one on each of several; engines on a CPU share its cores."""
    if len(devices) == 1:
        return Bundled(replace_settings(config, device=devices[0]))
    threads = max(1, (os.cpu_count() or 1) // len(devices)) if devices[0] == "cpu" else config.threads
    names = devices if len(set(devices)) == len(devices) else [f"{one}#{place}" for place, one in enumerate(devices)]
    return Several(
        {
            name: Bundled(replace_settings(config, device=device, threads=threads))
            for name, device in zip(names, devices, strict=True)
        },
        clock=time.monotonic,
    )


def wanted_of(submit: Submit) -> Wanted:
    """Say what a request wants of a cache: its tokens as a chain that commits to tenant, partition and rendering."""
    keep, tokens = submit.keep, len(submit.tokens) // TOKEN_BYTES
    if not keep.cache or tokens < keep.min_tokens:
        return Wanted(path=b"", ends=(), tokens=tokens, ttl_s=0.0)
    root = f"{submit.tenant}\0{submit.partition}\0{submit.rendering}".encode()
    path, ends = path_of(root, [submit.tokens])
    ttl_s = max([keep.held_ttl_s or 0.0, *(mark.ttl_s for mark in keep.marks)])
    return Wanted(path=path, ends=[end // TOKEN_BYTES for end in ends], tokens=tokens, ttl_s=ttl_s)


class _Heard:
    """A request's deltas on their way, and what they tell the router."""

    def __init__(self, deltas: AsyncIterator[Delta], computed: Callable[[], None]) -> None:
        self.read: int | None = None
        self.computed = False
        self._deltas, self._tell = deltas, computed

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        delta = await anext(self._deltas)
        if delta.prefilled is not None:
            self.read, self.computed = delta.prefilled.read, True
            self._tell()
        return delta


class Several:
    """Engines by the device that each is on."""

    def __init__(self, engines: Mapping[str, Bundled], *, clock: Callable[[], float]) -> None:
        """Prepare; `start` starts the processes. All serve one model."""
        self.name = "bundled"
        self.engines = dict(engines)
        self.model = next(iter(self.engines.values())).model
        self._clock = clock
        self._router = Router()
        self._lives = dict.fromkeys(self.engines, 0)
        self._untold: set[str] = set()  # engines that came again and do not know the policies yet
        self._counted: dict[str, tuple[int, EngineStats]] = {}  # the last snapshot of each, and of which life
        self._past = EngineStats()  # what lives that are over had counted
        self._terms: tuple[PolicyTerms, ...] | None = None
        self._keepers: list[asyncio.Task[None]] = []
        self._turned = asyncio.Event()
        self._losses = 0

    @property
    def up(self) -> dict[str, Bundled]:
        """The engines that serve now."""
        return {name: one for name, one in self.engines.items() if one.card is not None and name not in self._untold}

    @property
    def life(self) -> int:
        """Counters go on over restarts: they are always of one life."""
        return 0

    @property
    def card(self) -> ModelCard | None:
        """What is served, with the memory of all that serve; None while none does."""
        cards = [one.card for one in self.engines.values() if one.card is not None]
        if not cards:
            return None
        return replace(
            cards[0],
            blocks=sum(card.blocks for card in cards),
            kv_bytes=sum(card.kv_bytes for card in cards),
            device=",".join(card.device for card in cards),
        )

    @property
    def restarts(self) -> int:
        """How often engines were started again."""
        return sum(one.restarts for one in self.engines.values())

    @property
    def detail(self) -> str:
        """Say how many engines serve, and of the others what is the matter."""
        waits = [f"{name}: {one.detail}" for name, one in self.engines.items() if one.card is None]
        return " ".join([f"{len(self.engines) - len(waits)} of {len(self.engines)} engines are ready.", *waits])

    @contextmanager
    def open(self, submit: Submit) -> Iterator[AsyncIterator[Delta]]:
        """Submit a request to the engine that routing chooses, or to another one that takes it."""
        wanted = wanted_of(submit)
        with ExitStack() as stack:
            choice, deltas = self._opened(submit, wanted, stack)
            heard = _Heard(deltas, lambda: self._router.answering(choice))
            life = self.engines[choice.replica].restarts
            try:
                yield heard
            finally:
                there = self.engines[choice.replica].restarts == life  # else what was computed went with its engine
                self._router.over(
                    choice, wanted, self._clock(), read=heard.read if there else None, computed=heard.computed and there
                )

    def _opened(self, submit: Submit, wanted: Wanted, stack: ExitStack) -> tuple[Choice, AsyncIterator[Delta]]:
        """Open the request at the first engine that takes it. Raises what the last one refused it with."""
        left = self.up
        for name, one in self.engines.items():
            if one.restarts != self._lives[name]:
                self._lives[name] = one.restarts
                self._router.gone(name)
        refusal: EngineError = EngineUnavailable(self.detail)
        while left:
            choice = self._router.choose(wanted, list(left), self._clock())
            try:
                return choice, stack.enter_context(left.pop(choice.replica).open(submit))
            except EngineError as error:
                self._router.over(choice, wanted, self._clock(), read=None, computed=False)
                refusal = error
        raise refusal

    async def start(self) -> None:
        """Start all processes and return at once."""
        for name, one in self.engines.items():
            await one.start()
            self._keepers.append(asyncio.create_task(self._keep(name, one), name="engine-policies"))

    async def _keep(self, name: str, one: Bundled) -> None:
        """Tell an engine the policies in force whenever it comes, and who waits that it came or went."""
        while True:
            await one.ready()
            if self._terms is not None:
                with contextlib.suppress(EngineUnavailable):
                    await one.set_policies(self._terms)
            self._untold.discard(name)
            self._turned.set()
            await one.lost()
            self._untold.add(name)
            self._losses += 1
            self._turned.set()

    async def refused(self) -> str:
        """Wait until one of the engines turns out not to be able to serve the model, and say why."""
        tasks = [asyncio.create_task(one.refused()) for one in self.engines.values()]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def ready(self) -> None:
        """Wait until an engine serves."""
        while not self.up:
            await self._turn()

    async def lost(self) -> None:
        """Wait until an engine that serves is gone."""
        losses = self._losses
        while self._losses == losses:
            await self._turn()

    async def _turn(self) -> None:
        """Wait until an engine has come or gone. Nothing can happen between a caller's look and this wait."""
        self._turned.clear()
        await self._turned.wait()

    async def stats(self) -> EngineStats:
        """Return the sum of all snapshots, with what engines that are gone had counted."""
        lives = {name: one.restarts for name, one in self.up.items()}
        parts: list[EngineStats] = await self._all("stats")
        for (name, life), stats in zip(lives.items(), parts, strict=True):
            before = self._counted.get(name)
            if before is not None and before[0] != life:
                self._past = summed([self._past, ended(before[1])])
            self._counted[name] = life, stats
        gone = [ended(stats) for name, (_, stats) in self._counted.items() if name not in lives]
        return summed([*parts, *gone, self._past])

    async def set_policies(self, policies: tuple[PolicyTerms, ...], *, preview: bool = False) -> Changed:
        """Put policies in force everywhere, or say what that would do."""
        if not preview:
            self._terms = policies
        parts: list[Changed] = await self._all("set_policies", policies, preview=preview)
        return summed(parts)

    async def purge(self, **fields: Any) -> Changed:
        """Forget entries that match, everywhere."""
        parts: list[Changed] = await self._all("purge", **fields)
        return summed(parts)

    async def entries(self, *, offset: int = 0, limit: int = 100, tenant: str | None = None) -> Entries:
        """Return one page of the entries, engine by engine. The same prefix may lie in several."""
        found = Entries(seq=0, total=0)
        for place, one in enumerate(self._serving()):
            left = limit - len(found.entries)
            page = await one.entries(offset=max(0, offset - found.total), limit=max(1, left), tenant=tenant)
            named = tuple(replace(entry, id=f"{place}-{entry.id}") for entry in page.entries[: max(0, left)])
            found = Entries(seq=0, total=found.total + page.total, entries=found.entries + named)
        return found

    async def tree(self, *, limit: int = 2000, tenant: str | None = None) -> Tree:
        """Return the largest nodes of all trees."""
        nodes, total = [], 0
        for place, tree in enumerate(await self._all("tree", limit=limit, tenant=tenant)):
            total += tree.total
            for node in tree.nodes:
                parent = None if node.parent is None else f"{place}-{node.parent}"
                nodes.append(replace(node, id=f"{place}-{node.id}", parent=parent))
        nodes.sort(key=lambda node: -node.subtree_tokens)  # stable: a parent stays before its children
        return Tree(seq=0, total=total, nodes=tuple(nodes[:limit]))

    async def retention(self) -> RetentionView:
        """Return how old live tokens are and how long they have, over all engines."""
        parts: list[RetentionView] = await self._all("retention")
        return summed(parts)

    async def stop(self) -> None:
        """End all processes."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._keepers.clear()
        await asyncio.gather(*(one.stop() for one in self.engines.values()))

    def _serving(self) -> list[Bundled]:
        if not self.up:
            raise EngineUnavailable(self.detail)
        return list(self.up.values())

    async def _all(self, question: str, *arguments: Any, **fields: Any) -> list[Any]:
        """Ask every engine that serves."""
        return await asyncio.gather(*(getattr(one, question)(*arguments, **fields) for one in self._serving()))
