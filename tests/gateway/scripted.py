"""A backend that plays a script: the seam where tests of the gateway stand in for the engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.errors import EngineUnavailable
from engine.messages import Delta, Fate, Finished, KeptMark, Missed, ModelCard, Prefilled, Submit
from engine.operator_messages import Changed, EngineStats, Entries, PolicyTerms, RetentionView, Tree

MODEL = "tiny"

CARD = ModelCard(
    name=MODEL,
    weights="0" * 16,
    max_model_len=2048,
    vocab_size=267,
    eos_ids=(2,),
    block_tokens=16,
    blocks=1024,
    kv_bytes=1 << 20,
    kv_bytes_per_token=64,
    dtype="float32",
    kv_dtype="float32",
    device="cpu",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One answer. `then` says what comes after the deltas: its end, an error, or nothing for ever."""

    deltas: Sequence[tuple[int, ...]]
    reason: Literal["stop", "length"] = "stop"
    read: int = 0
    fate: Fate = "never_written"  # of all that is not read
    ago_s: float | None = None
    then: Exception | Literal["finish", "hang"] = "finish"
    until: Mapping[int, asyncio.Event] = field(default_factory=dict)  # by a delta's place: silence before it


class ScriptedBackend:
    """Plays `script` for every request and keeps what was submitted."""

    name = "scripted"
    model = MODEL

    def __init__(self, script: Script) -> None:
        """Be ready at once."""
        self.script = script
        self.queue: list[Script] = []  # for the next requests, one each, before `script`
        self.card: ModelCard | None = CARD
        self.restarts = 0
        self.life = 0
        self.submitted: list[Submit] = []
        self.entered = asyncio.Semaphore(0)  # one release per ticket that was opened
        self.left = asyncio.Semaphore(0)  # one release per ticket that was left
        self.running = 0
        self.stopped = False
        self.told: list[tuple[PolicyTerms, ...]] = []  # policies put in force, newest last
        self.changed = Changed(seq=0)  # what the next operator's message is answered with
        self.purged: list[dict[str, Any]] = []
        self.page = Entries(seq=0, total=0)
        self.pages: list[dict[str, Any]] = []  # what was asked to be shown
        self.death = asyncio.Event()  # of the engine that is there now
        self.tree_shown = Tree(seq=0, total=0)
        self.trees: list[dict[str, Any]] = []  # which tree was asked for
        self.view = RetentionView(seq=0)
        self.silent = False  # whether operators' questions go unanswered for ever
        self.reading: EngineStats | None = EngineStats(waiting=1, blocks_free=7, steps_total=3)

    @property
    def detail(self) -> str:
        """Say whether requests are played."""
        return "The engine is ready." if self.card else "The engine is starting."

    @contextlib.contextmanager
    def open(self, submit: Submit) -> Iterator[AsyncIterator[Delta]]:
        """Play the script; note when the ticket is left."""
        if self.card is None:
            raise EngineUnavailable(self.detail)
        self.submitted.append(submit)
        self.running += 1
        self.entered.release()
        try:
            yield self._play(submit, self.queue.pop(0) if self.queue else self.script)
        finally:
            self.running -= 1
            self.left.release()

    async def _play(self, submit: Submit, script: Script) -> AsyncIterator[Delta]:
        prompt = len(submit.tokens) // 4
        prefilled: Prefilled | None = Prefilled(
            prompt=prompt,
            read=script.read,
            write=0,
            queue_s=0.001,
            prefill_s=0.002,
            marks=tuple(KeptMark(tokens=o.tokens, kept="promised", left_s=o.ttl_s) for o in submit.keep.marks),
            missed=(Missed(fate=script.fate, tokens=prompt - script.read, ago_s=script.ago_s),),
        )
        for place, tokens in enumerate(script.deltas):
            if place in script.until:
                await script.until[place].wait()
            yield Delta(id=submit.id, tokens=tokens, prefilled=prefilled)
            prefilled = None
            await asyncio.sleep(0)
        if len(script.deltas) in script.until:
            await script.until[len(script.deltas)].wait()
        if isinstance(script.then, Exception):
            raise script.then
        if script.then == "hang":
            await asyncio.Event().wait()
        generated = sum(map(len, script.deltas)) + (script.reason == "stop")
        finished = Finished(
            reason=script.reason,
            generated=generated,
            projected=prompt - script.read + generated - 1,
            decode_s=0.003,
        )
        yield Delta(id=submit.id, prefilled=prefilled, finished=finished)

    async def stats(self) -> EngineStats:
        """Return `reading`."""
        if self.reading is None:
            raise EngineUnavailable(self.detail)
        if self.silent:
            await asyncio.Event().wait()
        return self.reading

    async def start(self) -> None:
        """Nothing to start."""
        self.stopped = False

    async def refused(self) -> str:
        """Never refuse."""
        return await asyncio.Future()

    async def stop(self) -> None:
        """Note that the engine was stopped."""
        self.stopped = True

    async def ready(self) -> None:
        """Be there at once."""

    async def lost(self) -> None:
        """Go when `die` is called."""
        await self.death.wait()

    def die(self) -> None:
        """Lose the engine and have another at once."""
        self.restarts += 1
        self.death.set()
        self.death = asyncio.Event()

    async def set_policies(self, policies: tuple[PolicyTerms, ...], *, preview: bool = False) -> Changed:
        """Remember policies that are put in force."""
        await self._need_engine()
        if not preview:
            self.told.append(policies)
        return self.changed

    async def purge(self, **fields: Any) -> Changed:
        """Remember what was to be forgotten."""
        await self._need_engine()
        self.purged.append(fields)
        return self.changed

    async def entries(self, *, offset: int = 0, limit: int = 100, tenant: str | None = None) -> Entries:
        """Give the page that was prepared."""
        await self._need_engine()
        self.pages.append({"offset": offset, "limit": limit, "tenant": tenant})
        return self.page

    async def tree(self, *, limit: int = 2000, tenant: str | None = None) -> Tree:
        """Give the tree that was prepared."""
        await self._need_engine()
        self.trees.append({"limit": limit, "tenant": tenant})
        return self.tree_shown

    async def retention(self) -> RetentionView:
        """Give the view that was prepared."""
        await self._need_engine()
        return self.view

    async def _need_engine(self) -> None:
        if self.card is None:
            raise EngineUnavailable(self.detail)
        if self.silent:
            await asyncio.Event().wait()
