"""An upstream that does what a test tells it, down to the bytes on its sockets.

Each request it gets is handed to a behaviour: the next one of `plans`, or `behave` where none is left. It keeps what it
received, and notices when whoever asked has left.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

SSE = ("Content-Type", "text/event-stream; charset=utf-8")
JSON = ("Content-Type", "application/json")
DONE = b"data: [DONE]\n\n"


class Left(Exception):
    """Whoever asked has closed the connection."""


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it came."""

    method: str
    path: str
    headers: list[tuple[str, str]]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        """The body, read."""
        return json.loads(self.body)

    def header(self, name: str) -> list[str]:
        """Every value of a header."""
        return [value for given, value in self.headers if given == name]


class Wire:
    """The connection that a request came by, as a behaviour uses it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, received: Received) -> None:
        self.reader, self.writer, self.received = reader, writer, received

    async def raw(self, data: bytes) -> None:
        """Send bytes, whatever they are. Raises Left."""
        self.writer.write(data)
        try:
            await self.writer.drain()
        except ConnectionError:
            raise Left from None

    async def head(self, status: int = 200, *headers: tuple[str, str], chunked: bool = True) -> None:
        """Send a status line and headers; a chunked body may follow."""
        lines = [f"HTTP/1.1 {status} Some Words", *(f"{name}: {value}" for name, value in headers)]
        if chunked:
            lines.append("Transfer-Encoding: chunked")
        await self.raw("\r\n".join([*lines, "", ""]).encode())

    async def chunk(self, data: bytes) -> None:
        """Send a chunk of a chunked body."""
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        """End a chunked body."""
        await self.raw(b"0\r\n\r\n")

    async def reset(self) -> None:
        """Break the connection in a way that the other side sees as an error."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def hang(self) -> None:
        """Say nothing until whoever asked has left. Raises Left."""
        try:
            while await self.reader.read(1 << 16):
                pass
        except ConnectionError:
            pass
        raise Left


Behaviour = Callable[[Wire], Awaitable[None]]


class Fake:
    """One upstream."""

    def __init__(self, name: str = "fake", behave: Behaviour | None = None) -> None:
        self.name = name
        self.behave: Behaviour = behave or well
        self.plans: list[Behaviour] = []  # for the next requests, one each
        self.received: list[Received] = []
        self.arrived = asyncio.Semaphore(0)  # one release per request
        self.left = asyncio.Semaphore(0)  # one release per request whose connection was closed before its answer ended
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> Self:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        assert self._server is not None, "it was started"
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        self._tasks.add(task)
        self.connections += 1
        try:
            while (received := await receive(reader)) is not None:
                self.received.append(received)
                self.arrived.release()
                behaviour = self.plans.pop(0) if self.plans else self.behave
                try:
                    await behaviour(Wire(reader, writer, received))
                except Left:
                    self.left.release()
                    return
                if writer.transport.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()


async def receive(reader: asyncio.StreamReader) -> Received | None:
    """Read a request; None: there is no other."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, path, _ = first.split(" ")
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    length = int(dict(headers).get("content-length", "0"))
    return Received(method, path, headers, await reader.readexactly(length))


def event(data: Any, name: str = "") -> bytes:
    """A server-sent event."""
    head = f"event: {name}\n" if name else ""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return f"{head}data: {text}\n\n".encode()


def delta(text: str | None, *, finish: str | None = None, index: int = 0, **fields: Any) -> bytes:
    """A chunk of a chat completion."""
    said = {} if text is None else {"content": text}
    choice = {"index": index, "delta": said, "finish_reason": finish}
    return event({"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **fields})


def costs(prompt: Any = 100, cached: Any = 80, output: Any = 2) -> dict[str, Any]:
    """OpenAI's usage."""
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": 0}
    return usage if cached is None else {**usage, "prompt_tokens_details": {"cached_tokens": cached}}


def usage_chunk(usage: Any) -> bytes:
    """The chunk that comes last where usage was asked for."""
    return event({"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [], "usage": usage})


TOLD = [delta("one "), delta("two"), delta(None, finish="stop")]
STREAM = [*TOLD, usage_chunk(costs()), DONE]
WHOLE = {
    "id": "c1",
    "object": "chat.completion",
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "one two"}, "finish_reason": "stop"}],
    "usage": costs(),
}


def typed(kind: str, **fields: Any) -> bytes:
    """An event that names its type, as Anthropic's and the Responses API have them."""
    return event({"type": kind, **fields}, kind)


def message_stream(start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    """Anthropic's stream, with the usage that stands in its first and in its last event but one."""
    return [
        typed("message_start", message={"id": "msg_1", "role": "assistant", "content": [], "usage": start}),
        typed("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        typed("content_block_delta", index=0, delta={"type": "text_delta", "text": "one two"}),
        typed("content_block_stop", index=0),
        typed("message_delta", delta={"stop_reason": "end_turn"}, usage=end),
        typed("message_stop"),
    ]


def response_stream(last: str = "response.completed", **fields: Any) -> list[bytes]:
    """The Responses API's stream."""
    usage = {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 80}, "output_tokens": 2}
    ended = {"id": "resp_1", "object": "response", "status": last.rpartition(".")[2], "usage": usage, **fields}
    return [
        typed("response.created", sequence_number=0, response={"id": "resp_1", "status": "in_progress", "usage": None}),
        typed("response.output_text.delta", sequence_number=1, delta="one two"),
        typed(last, sequence_number=2, response=ended),
    ]


# ---- behaviours ----


async def well(wire: Wire) -> None:
    """Answer as asked, whole or streamed, in the API that was called."""
    streamed = wire.received.json.get("stream") is True
    body: dict[str, Any]
    match wire.received.path:
        case "/v1/messages":
            usage = {"input_tokens": 20, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 0}
            body = {"type": "message", "content": [], "usage": {**usage, "output_tokens": 2}}
            parts = message_stream({**usage, "output_tokens": 1}, {"output_tokens": 2})
        case "/v1/responses":
            parts = response_stream()
            body = json.loads(parts[-1].partition(b"data: ")[2])["response"]
        case _:
            body, parts = dict[str, Any](WHOLE), STREAM
    await (streaming(parts) if streamed else answering(200, body))(wire)


def answering(status: int, body: Any, *headers: tuple[str, str]) -> Behaviour:
    """Answer whole; a body that is no bytes is written as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = () if any(name == "Content-Type" for name, _ in headers) else (JSON,)

    async def behave(wire: Wire) -> None:
        await wire.head(status, *kind, *headers, ("Content-Length", str(len(data))), chunked=False)
        await wire.raw(data)

    return behave


def streaming(parts: Iterable[bytes], then: Behaviour | None = None, *headers: tuple[str, str]) -> Behaviour:
    """Send parts of a stream, then do something else than end it."""
    kept = list(parts)

    async def behave(wire: Wire) -> None:
        await wire.head(200, SSE, *headers)
        for part in kept:
            await wire.chunk(part)
        await (then or Wire.end)(wire)

    return behave


def sending(data: bytes, then: Behaviour | None = None) -> Behaviour:
    """Send bytes that may be no HTTP at all, then close."""

    async def behave(wire: Wire) -> None:
        await wire.raw(data)
        if then is not None:
            await then(wire)
        wire.writer.close()

    return behave


def in_turn(behaviours: Sequence[Behaviour]) -> list[Behaviour]:
    """Plans for the next requests."""
    return list(behaviours)
