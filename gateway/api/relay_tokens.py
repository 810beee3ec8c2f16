"""A relayed body into the very tokens that its upstream will see, for routing: where a tokenizer is named.

Owns the renderers of models that upstreams serve. Rule: routing gets better by it and nothing depends on it; a body
that cannot be read or rendered here is told apart by its bytes, and the upstream says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import structlog

from gateway.api import anthropic_messages, openai_chat, openai_completions, responses_request
from gateway.ask import Ask
from gateway.errors import BadRequest, ConfigError
from gateway.prompt import Renderer
from gateway.relay.call import Call
from gateway.relay.prefix import root_of
from gateway.relay.upstream import Endpoint, Upstream
from gateway.routing.wanted import path_of
from prefix_store.chain import TOKEN_BYTES

BLOCK_TOKENS: Final = 16
log = structlog.get_logger("gateway.relay")


def _completion(body: bytes) -> Ask:
    return openai_completions.asks_of(openai_completions.parse(body), "routing")[0]


_ASKS: Final[Mapping[Endpoint, Callable[[bytes], Ask]]] = {
    "chat": lambda body: openai_chat.ask_of(openai_chat.parse(body), "routing"),
    "completions": _completion,
    "responses": lambda body: responses_request.ask_of(responses_request.parse(body), "routing", earlier=None),
    "messages": lambda body: anthropic_messages.ask_of(anthropic_messages.parse(body), "routing"),
}


class Tokenised:
    """Prompts of relayed requests as token ids, by model."""

    def __init__(self, renderers: Mapping[str, Renderer]) -> None:
        self._renderers = dict(renderers)

    @classmethod
    def load(cls, upstreams: Iterable[Upstream]) -> Tokenised:
        """Read the tokenizers that upstreams name. Raises ConfigError for one that is none."""
        renderers: dict[str, Renderer] = {}
        for upstream in upstreams:
            if upstream.tokenizer is None:
                continue
            try:
                renderer = Renderer.load(Path(upstream.tokenizer).expanduser())
            except ConfigError as error:
                raise ConfigError(f"[[upstreams]] {upstream.name} tokenizer: {error}") from error
            renderers |= dict.fromkeys(upstream.models, renderer)
        return cls(renderers)

    async def prefix(self, call: Call, secret: bytes) -> tuple[bytes, list[int]] | None:
        """Return the chain over the prompt's tokens and the tokens up to each piece's end; None: bytes must do."""
        renderer, read = self._renderers.get(call.model), _ASKS.get(call.endpoint)
        if renderer is None or read is None:
            return None
        try:
            prompt = await renderer.prompt(read(call.body))
        except BadRequest as error:
            log.info("not_tokenised", param=error.param)
            return None
        path, ends = path_of(root_of(secret, call.tenant, call.model), [prompt.tokens], BLOCK_TOKENS * TOKEN_BYTES)
        return path, [end // TOKEN_BYTES for end in ends]

    def close(self) -> None:
        """Let go of what renders."""
        for renderer in set(self._renderers.values()):
            renderer.close()
