"""What a gateway tells of misses, asked over HTTP: each answer's reports, checked against its usage."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.prompt import Renderer
from prefix_store.sqlite_store import SqliteStore
from tests.gateway.conftest import Gateway, StartGateway, events_of
from tests.gateway.wire import CHAT, COMPLETIONS
from tests.tiny_model import save_tiny_tokenizer

SECRET = b"what all gateways share"
RULES = "You are the clerk of a small library. Be brief, and name the shelf. "


def talk(question: str, *, system: str = RULES) -> list[dict[str, str]]:
    """A system text and a question."""
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


def misses(answer: Any) -> list[dict[str, Any]]:
    """The reports of a whole answer; their tokens are exactly what was not read."""
    told: list[dict[str, Any]] = answer["keepwarm"]["miss"]
    usage = answer["usage"]
    unread = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
    assert sum(miss["tokens"] for miss in told) == answer["keepwarm"]["computed_tokens"] == unread
    return told


def words(told: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Reason and fate of each report."""
    return [(miss["reason"], miss["fate"]) for miss in told]


async def chat(gateway: Gateway, messages: list[dict[str, str]], **fields: Any) -> list[dict[str, Any]]:
    """Ask and return the reports."""
    body = {"model": gateway.backend.model, "messages": messages, **fields}
    return misses(await answer_of(gateway, CHAT, body))


async def complete(gateway: Gateway, prompt: Any, **fields: Any) -> list[dict[str, Any]]:
    """Ask for a completion of a raw prompt and return the reports."""
    return misses(await answer_of(gateway, COMPLETIONS, {"model": gateway.backend.model, "prompt": prompt, **fields}))


async def streamed(gateway: Gateway, messages: list[dict[str, str]], **fields: Any) -> list[dict[str, Any]]:
    """Ask for a stream and return the reports of its last word."""
    body = {"model": gateway.backend.model, "messages": messages, "stream": True, **fields}
    response = await gateway.serving.post(CHAT, json=body | {"stream_options": {"include_usage": True}})
    events = [json.loads(event) for event in events_of(await response.text()) if event != "[DONE]"]
    (last,) = [event for event in events if event.get("usage")]
    return misses(last)


async def answer_of(gateway: Gateway, path: str, body: dict[str, Any], *, key: str | None = None) -> Any:
    """POST and read the whole answer."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    response = await gateway.serving.post(path, json=body, headers=headers)
    answer = await response.json()
    assert response.status == 200, answer
    return answer


@dataclass(frozen=True, slots=True)
class Restarts:
    """Gateways one after another on one state file: what was remembered outlives each of them."""

    start_gateway: StartGateway
    folder: Path

    async def start(self, template: str | None = None) -> Gateway:
        """Start the next one; `template` renders its prompts otherwise."""
        state = await SqliteStore.open(self.folder / "state.db")
        if template is None:
            return await self.start_gateway(state=state, secret=SECRET)
        folder = save_tiny_tokenizer(self.folder / "speaking", template)
        return await self.start_gateway(state=state, secret=SECRET, speaking=Renderer.load(folder))
