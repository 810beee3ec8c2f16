"""Requests as they are remembered, made by the real renderer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.ask import Ask, Tool, Turn
from gateway.fingerprint import answered, fingerprint
from gateway.prompt import Prompt, Renderer
from prefix_store.fingerprints import Fingerprint, Keyed

KEYED = Keyed(b"secret", "default")


@dataclass(frozen=True, slots=True)
class Remembered:
    """One request, with its parts' token hashes and the prompt that they are of."""

    made: Fingerprint
    hashes: Mapping[bytes, bytes]
    prompt: Prompt

    @property
    def ids(self) -> list[int]:
        """The prompt's tokens."""
        return memoryview(self.prompt.tokens).cast("I").tolist()


def remember(renderer: Renderer, turns: Sequence[Turn], tools: Sequence[Tool] = (), **card: Any) -> Remembered:
    """Remember a request; `card` are fields of the fingerprint, `keyed` another tenant's digests."""
    prompt = renderer.render(turns, tools, arguments=card.pop("arguments", {}))
    ask = Ask(id="r", model="m", turns=tuple(turns), tools=tuple(tools), partition=card.pop("partition", ""))
    known = {"id": "r", "at": 0.0, "model": "m", "weights": "w", "rendering": renderer.identity, **card}
    made, hashes = fingerprint(known.pop("keyed", KEYED), ask, prompt.spans, prompt.tokens, **known)
    return Remembered(made, hashes, prompt)


def with_answer(renderer: Renderer, request: Remembered, turn: Turn, generated: Sequence[int]) -> Remembered:
    """Remember the answer too: these tokens, which the client saw as this turn."""
    opening = request.made.parts[-1]
    before = request.prompt.tokens[opening.begin * 4 : opening.end * 4]
    tokens = b"".join(token.to_bytes(4, "little") for token in generated)
    answer, hashes = answered(KEYED, turn, before, tokens)
    made = msgspec.structs.replace(request.made, answer=answer)
    return Remembered(made, {**request.hashes, **hashes}, request.prompt)


def first_difference(one: Remembered, other: Remembered) -> int:
    """The slow truth: the first place at which two prompts' tokens differ."""
    places = (at for at, (a, b) in enumerate(zip(one.ids, other.ids, strict=False)) if a != b)
    return next(places, min(len(one.ids), len(other.ids)))
