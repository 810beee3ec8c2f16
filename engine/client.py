"""The asyncio face of the engine process: starts it, talks to it, starts it again when it dies.

Owns the process and the open tickets. Knows no torch and no HTTP. Rules: every ticket that was opened hears exactly one
last word (finished, refused, or unavailable because the process is gone); leaving a ticket's block makes the engine
stop working on it; a new process never hears of an old one's requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import structlog
import zmq
import zmq.asyncio

from engine import errors, messages
from engine.config import EngineConfig
from engine.errors import (
    EngineError,
    EngineUnavailable,
    ModelRefused,
    Overloaded,
    PromptTooLong,
    QueueTimeout,
    RequestRefused,
)
from engine.messages import Abort, Delta, EngineBound, ModelCard, Refused, StartFailed, Submit
from engine.operator_messages import (
    AskRetention,
    AskStats,
    AskTree,
    Changed,
    EngineStats,
    Entries,
    ListEntries,
    PolicyTerms,
    Purge,
    RetentionView,
    SetPolicies,
    Tree,
)

BACK_OFF_S = (0.5, 1.0, 2.0, 5.0, 10.0)  # before start 2, 3, …; the last one repeats
STEADY_S = 60.0  # an engine that lived this long starts again without waiting longer
STOP_GRACE_S = 5.0
SOCKET_FOLDER = "/tmp" if os.path.isdir("/tmp") else None  # noqa: S108, PTH112 - a socket's path may have 107 characters
RETRY_AFTER_S = 1.0
# What the engine's process starts with (docs/LOG.md has the numbers). An OpenMP thread that spins for longer before it
# sleeps wastes a core that another process needs. Memory of a step's intermediate tensors is kept for the next step:
# given back to the system, it comes as fresh pages each time, which costs more than a normalisation itself.
TUNING = {
    "GOMP_SPINCOUNT": "20000",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(1 << 26),
}

log = structlog.get_logger("engine.client")


class Ticket:
    """One open request: iterate over it for its deltas; the last one has `finished`."""

    def __init__(self, request_id: str) -> None:
        self.id = request_id
        self.ended = False
        self._events: asyncio.Queue[Delta | EngineError] = asyncio.Queue()

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        """Return the next delta; raise the refusal or EngineUnavailable that ended the request."""
        if self.ended:
            raise StopAsyncIteration
        event = await self._events.get()
        if isinstance(event, EngineError):
            self.ended = True
            raise event
        self.ended = event.finished is not None
        return event

    def deliver(self, event: Delta | EngineError) -> None:
        """Hand over the next event; only the client calls it."""
        self._events.put_nowait(event)


class EngineClient:
    """One engine process at a time, behind `open`."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.card: ModelCard | None = None  # None while the engine is not there
        self.restarts = 0
        self.refusal: str | None = None  # why the model cannot be served; final
        self._tickets: dict[str, Ticket] = {}
        self._asked: list[asyncio.Future[EngineStats]] = []  # answered in order
        self._orders: dict[int, asyncio.Future[Any]] = {}  # operators' messages by their number
        self._numbers = itertools.count(1)
        self._socket: zmq.asyncio.Socket | None = None
        self._changed = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._stopping = False
        self._served = False  # whether some engine of ours was ever ready

    async def start(self) -> None:
        """Start the engine process and keep one alive from here on. Returns at once."""
        self._keeper = asyncio.create_task(self._keep(), name="engine-keeper")

    async def ready(self) -> ModelCard:
        """Wait until the engine serves. Raises ModelRefused when it never will."""
        while True:
            if self.refusal is not None:
                raise ModelRefused(self.refusal)
            if self.card is not None:
                return self.card
            if self._keeper is None or self._keeper.done():
                raise EngineUnavailable("The engine is not running.")
            await self.changed()

    async def changed(self) -> None:
        """Wait until an engine has come, gone or been refused."""
        self._changed.clear()
        await self._changed.wait()

    @contextlib.contextmanager
    def open(self, submit: Submit) -> Iterator[Ticket]:
        """Submit a request; however the block is left, the engine stops working on it.

        Raises EngineUnavailable when there is no engine now.
        """
        if self.card is None or self._socket is None:
            raise EngineUnavailable(self.refusal or "The engine is starting; try again in a moment.")
        if len(self._tickets) >= self.config.max_num_seqs + self.config.max_waiting:
            raise Overloaded(f"{len(self._tickets)} requests are open already.", retry_after_s=RETRY_AFTER_S)
        ticket = Ticket(submit.id)
        self._tickets[submit.id] = ticket
        self._send(submit)
        try:
            yield ticket
        finally:
            if self._tickets.pop(submit.id, None) is not None and not ticket.ended:
                self._send(Abort(id=submit.id))

    async def stats(self) -> EngineStats:
        """Ask the engine for a snapshot. Raises EngineUnavailable when there is no engine now."""
        if self.card is None:
            raise EngineUnavailable("The engine is starting; try again in a moment.")
        future: asyncio.Future[EngineStats] = asyncio.get_running_loop().create_future()
        self._asked.append(future)
        self._send(AskStats())
        return await future

    async def set_policies(self, policies: tuple[PolicyTerms, ...], *, preview: bool = False) -> Changed:
        """Put policies in force; returns once every deadline obeys them. Raises EngineUnavailable."""
        changed: Changed = await self._order(SetPolicies(seq=next(self._numbers), policies=policies, preview=preview))
        return changed

    async def purge(self, **fields: Any) -> Changed:
        """Forget entries: the fields of `Purge` but its number. Raises EngineUnavailable."""
        changed: Changed = await self._order(Purge(seq=next(self._numbers), **fields))
        return changed

    async def entries(self, *, offset: int = 0, limit: int = 100, tenant: str | None = None) -> Entries:
        """Return one page of the entries. Raises EngineUnavailable."""
        page = ListEntries(seq=next(self._numbers), offset=offset, limit=limit, tenant=tenant)
        entries: Entries = await self._order(page)
        return entries

    async def tree(self, *, limit: int = 2000, tenant: str | None = None) -> Tree:
        """Return the largest nodes of the tree. Raises EngineUnavailable."""
        tree: Tree = await self._order(AskTree(seq=next(self._numbers), limit=limit, tenant=tenant))
        return tree

    async def retention(self) -> RetentionView:
        """Return how old live tokens are and how long they have. Raises EngineUnavailable."""
        view: RetentionView = await self._order(AskRetention(seq=next(self._numbers)))
        return view

    async def _order(self, message: SetPolicies | Purge | ListEntries | AskTree | AskRetention) -> Any:
        if self.card is None:
            raise EngineUnavailable("The engine is starting; try again in a moment.")
        future = self._orders[message.seq] = asyncio.get_running_loop().create_future()
        self._send(message)
        return await future

    async def stop(self) -> None:
        """End the process; open tickets hear EngineUnavailable."""
        self._stopping = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        self._changed.set()

    @property
    def pid(self) -> int | None:
        """Process id of the engine that runs now."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def _send(self, message: EngineBound) -> None:
        """Queue a message. ZeroMQ's own queue takes it at once; nothing is sent to an engine that is gone."""
        if self._socket is not None:
            asyncio.ensure_future(self._socket.send(messages.encode(message))).add_done_callback(_heed)

    async def _keep(self) -> None:
        """Start the engine again and again, with growing pauses, until stopped or refused."""
        loop = asyncio.get_running_loop()
        failures = 0
        while not self._stopping:
            started = loop.time()
            try:
                await self._one_life()
            except Exception:
                log.exception("engine_life_failed")
            finally:
                self._lose("The engine stopped while working on this request.")
            if self.refusal is not None:
                return
            failures = 0 if loop.time() - started > STEADY_S else failures + 1
            pause = BACK_OFF_S[min(failures, len(BACK_OFF_S)) - 1] if failures else 0.0
            self.restarts += 1
            log.error("engine_died", restart_in_s=pause, restarts=self.restarts)
            await asyncio.sleep(pause)

    async def _one_life(self) -> None:
        """Run one process from start to death, passing on what it says."""
        with (
            tempfile.TemporaryDirectory(prefix="keepwarm-", dir=SOCKET_FOLDER) as folder,
            zmq.asyncio.Context() as context,
        ):
            address = f"ipc://{Path(folder) / 'engine.sock'}"
            socket = context.socket(zmq.PAIR)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.bind(address)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "engine.worker", address),
                stdin=asyncio.subprocess.PIPE,
                start_new_session=True,
                env=TUNING | os.environ,  # an operator's own words stand
            )
            self._process = process
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(self.config) + b"\n")
            died = asyncio.create_task(process.wait())
            heard = asyncio.create_task(self._listen(socket))
            try:
                await asyncio.wait({died, heard}, return_when=asyncio.FIRST_COMPLETED)
                if not heard.done():  # a last word, such as why the model is refused, may still be in the socket
                    await asyncio.wait({heard}, timeout=0.2)
            finally:
                self._socket = None
                heard.cancel()
                (ended,) = await asyncio.gather(heard, return_exceptions=True)
                await self._end(process)
                error = ended if isinstance(ended, Exception) else None
                log.info("engine_ended", exit_code=process.returncode, error=repr(error) if error else None)
                died.cancel()
                socket.close(linger=0)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Ask the process to leave by closing its input; insist when it does not."""
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), STOP_GRACE_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _listen(self, socket: zmq.asyncio.Socket) -> None:
        """Pass on every message of this process until it dies or says that it cannot serve."""
        while True:
            message = messages.decode_gateway_bound(await socket.recv())
            match message:
                case ModelCard():
                    self.card, self._socket, self._served = message, socket, True
                    self._changed.set()
                case StartFailed(reason=reason):
                    log.error("engine_start_failed", reason=reason)
                    self.refusal = None if self._served else reason  # what could be served before may be again
                    self._changed.set()
                    return
                case Delta() | Refused():
                    if (ticket := self._tickets.get(message.id)) is not None:
                        ticket.deliver(message if isinstance(message, Delta) else error_of(message))
                case EngineStats():
                    _answer(self._asked.pop(0), message)
                case Changed() | Entries() | Tree() | RetentionView():
                    _answer(self._orders.pop(message.seq), message)

    def _lose(self, reason: str) -> None:
        """Tell everyone who waits for the engine that it is gone."""
        self.card = None
        for ticket in self._tickets.values():
            ticket.deliver(EngineUnavailable(reason))
        self._tickets.clear()
        for future in (*self._asked, *self._orders.values()):
            if not future.done():
                future.set_exception(EngineUnavailable(reason))
        self._asked.clear()
        self._orders.clear()
        self._changed.set()


def error_of(message: Refused) -> EngineError:
    """Turn a refusal that crossed the border back into the error that it was."""
    match message.kind:
        case "PromptTooLong":
            return PromptTooLong(message.message, field=message.field)
        case "RequestRefused":
            return RequestRefused(message.message, field=message.field)
        case "Overloaded":
            return Overloaded(message.message, retry_after_s=message.retry_after_s)
        case "QueueTimeout":
            return QueueTimeout(message.message, retry_after_s=message.retry_after_s)
        case _:
            return errors.EngineError(message.message)


def _answer(future: asyncio.Future[Any], message: EngineStats | Changed | Entries | Tree | RetentionView) -> None:
    """Hand an answer to whoever asked, unless they have left."""
    if not future.done():
        future.set_result(message)


def _heed(future: asyncio.Future[Any]) -> None:
    """Log a message that did not reach a dying process; its ticket hears of the death."""
    if not future.cancelled() and (error := future.exception()) is not None:
        log.warning("engine_unreachable", error=str(error))
