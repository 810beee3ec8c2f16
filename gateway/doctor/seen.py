"""A body as the doctor sees it: its prompt, its fingerprint, and where in the client's text a token lies.

Knows one renderer, no server and no store. Rule: places are told as the diagnosis of a running gateway tells them.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.ask import Ask
from gateway.canonical import text as json_text
from gateway.doctor.bodies import Body
from gateway.doctor.errors import Unusable
from gateway.errors import BadRequest
from gateway.fingerprint import Hashes, fingerprint
from gateway.layout import Span
from gateway.prompt import Prompt, Renderer
from prefix_store.fingerprints import Fingerprint, Keyed, Part


@dataclass(frozen=True, slots=True)
class Seen:
    """One request, rendered."""

    body: Body
    prompt: Prompt
    made: Fingerprint
    hashes: Hashes

    @property
    def ask(self) -> Ask:
        """What the client wants."""
        return self.body.ask

    def span(self, part: Part) -> Span:
        """Return the span that a part was made of."""
        return next(span for span in self.prompt.spans if (span.kind, span.index) == (part.kind, part.index))

    def words(self, span: Span) -> tuple[str, str]:
        """Return the path of what a span was made of, and its text."""
        if span.kind == "opening":
            return "the opening of the answer", ""
        if span.kind == "tool":
            tool = self.ask.tools[span.index]
            return tool.path or f"tools[{span.index}]", json_text([tool.name, tool.description, dict(tool.parameters)])
        turn = self.ask.turns[span.index]
        return turn.path or f"messages[{span.index}]", turn.text

    def character(self, span: Span, token: int) -> int:
        """Return the character of a span's text at which a token begins, near the text where it begins outside."""
        assert self.prompt.encoded is not None, "a conversation's prompt is made of text"
        return min(max(0, self.prompt.encoded.place(token) - span.text), len(self.words(span)[1]))

    def token(self, span: Span, character: int) -> int:
        """Return the token that holds a character of a span's text."""
        assert self.prompt.encoded is not None, "a conversation's prompt is made of text"
        (border,) = self.prompt.encoded.borders([span.text + character])
        return min(max(span.begin, border), max(span.begin, span.end - 1))


def see(renderer: Renderer, body: Body, *, at: float = 0.0) -> Seen:
    """Render a body. Raises Unusable for one that the model's template refuses."""
    try:
        prompt = renderer.made(body.ask)
    except BadRequest as error:
        raise Unusable(f"{body.name} cannot be rendered: {error}") from error
    made, hashes = fingerprint(
        Keyed(b"doctor", body.ask.tenant),
        body.ask,
        prompt.spans,
        prompt.tokens,
        id=body.name,
        at=at,
        model=body.ask.model,
        weights="",
        rendering=renderer.identity,
    )
    return Seen(body, prompt, made, hashes)
