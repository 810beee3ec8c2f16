"""Records of exchanges for tests: a plain one, of which a test states only what it is about."""

from __future__ import annotations

from typing import Any

from gateway.miss import MissReport
from gateway.record import Record
from gateway.usage import PromptFacts

AT = 1_790_000_000.0


def facts(prompt: int = 10, read: int = 4, write: int = 6, **changes: Any) -> PromptFacts:
    """What a prompt cost; what was not read was never written."""
    misses = () if prompt == read else (missed("never_written", prompt - read),)
    known: dict[str, Any] = {"queue_s": 0.001, "prefill_s": 0.01, "misses": misses}
    return PromptFacts(prompt=prompt, read=read, write=write, **(known | changes))


def missed(reason: str, tokens: int, fate: str = "never_written") -> MissReport:
    """Why so many tokens were not read."""
    return MissReport(reason=reason, fate=fate, tokens=tokens, at=None)


def record(**changes: Any) -> Record:
    """An exchange that finished."""
    known: dict[str, Any] = {
        "id": "chatcmpl-1",
        "at": AT,
        "tenant": "default",
        "key": None,
        "api": "chat",
        "model": "tiny",
        "upstream": "bundled",
        "streamed": False,
        "prewarm": False,
        "outcome": "finished",
        "status": 200,
        "seconds": 0.05,
        "prompt": facts(),
        "generated": 3,
        "projected": 8,
        "first_token_s": 0.02,
        "decode_s": 0.03,
    }
    return Record(**(known | changes))
