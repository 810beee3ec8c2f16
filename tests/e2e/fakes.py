"""A server that answers chats as an upstream would, on a thread of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

TOKENS, OUTPUT = 400, 5
MODEL = "relayed"


class Fake(ThreadingHTTPServer):
    """Answers every chat alike: 400 prompt tokens of which `cached` were read, None where it does not say."""

    daemon_threads = True

    def __init__(self, cached: int | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.cached, self.answered = cached, 0
        self.status = 200

    @property
    def usage(self) -> dict[str, Any]:
        """What an answer says that it cost."""
        told: dict[str, Any] = {"prompt_tokens": TOKENS, "completion_tokens": OUTPUT, "total_tokens": TOKENS + OUTPUT}
        return told if self.cached is None else told | {"prompt_tokens_details": {"cached_tokens": self.cached}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Fake

    def do_GET(self) -> None:
        """Be well."""
        self._answer(200, {"data": []})

    def do_POST(self) -> None:
        """Answer."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.answered += 1
        message = {"role": "assistant", "content": "Well."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"id": "c", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [choice]}
        self._answer(self.server.status, answer | {"usage": self.server.usage})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def fakes(folder: Path, **cached: int | None) -> Iterator[tuple[Path, dict[str, Fake]]]:
    """Run a fake for each name; give a configuration that names them, and the fakes."""
    running = {name: Fake(count) for name, count in cached.items()}
    rows = [
        f'[[upstreams]]\nname = "{name}"\nkind = "openai"\nbase_url = "http://127.0.0.1:{fake.server_port}/v1"\n'
        f'models = ["{MODEL}"]\n'
        for name, fake in running.items()
    ]
    file = folder / "keepwarm.toml"
    file.write_text("\n".join(rows))
    for fake in running.values():
        Thread(target=fake.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield file, running
    finally:
        for fake in running.values():
            fake.shutdown()
            fake.server_close()
