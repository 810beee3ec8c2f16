"""Grammars that confine answers, compiled by llguidance in one thread beside the steps.

Owns the thread, the model's tokenizer as llguidance sees it, and the most recent compiled grammars. Knows no queue and
no logits. Rules: nothing of it is loaded before the first request that brings a grammar; a compiled grammar is copied
for each answer, so two answers never share a place in it; a bad grammar is the caller's error, told in its own words.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from engine.errors import EngineError, RequestRefused
from engine.sequence import Matcher

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

REMEMBERED = 64  # compiled grammars
REASON_CHARS = 300
LEXER_FUEL = 5_000_000  # to build a lexer: about 0.1 s
LEXER_STATES = 50_000  # about 100 MB at the worst

log = structlog.get_logger("engine")


class Confined:
    """One answer's place in its grammar: an `engine.sequence.Matcher`."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    @property
    def failure(self) -> str:
        """Why the grammar cannot be followed any further; empty while it can."""
        return readable(self._matcher.get_error()) if self._matcher.is_error() else ""

    def allowed(self) -> bytes:
        """Return one bit for each token; once the grammar is complete only the tokens that end an answer are left."""
        return self._matcher.compute_bitmask()

    def advance(self, token: int) -> None:
        """Go on by an allowed token."""
        self._matcher.consume_token(token)


class Compiler:
    """Compiles grammars in the order in which they come. An `engine.core.Grammars`."""

    def __init__(
        self, folder: Path, *, vocab_size: int, eos_ids: tuple[int, ...], executor: Executor | None = None
    ) -> None:
        self._folder = folder
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._executor = executor or ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")
        self._compiled = lru_cache(REMEMBERED)(self._fresh)
        self._begun: dict[str, Future[Matcher | EngineError]] = {}

    @property
    def pending(self) -> bool:
        """Whether any grammar was begun and not taken yet."""
        return bool(self._begun)

    @property
    def ready(self) -> bool:
        """Whether `take` would return something."""
        return any(future.done() for future in self._begun.values())

    def begin(self, request_id: str, grammar: str) -> None:
        """Compile a request's grammar, or find it compiled."""
        self._begun[request_id] = self._executor.submit(self._compile, grammar)

    def forget(self, request_id: str) -> None:
        """Drop a request's grammar: nobody waits for it any more."""
        if (future := self._begun.pop(request_id, None)) is not None:
            future.cancel()

    def take(self) -> list[tuple[str, Matcher | EngineError]]:
        """Hand over what is compiled, or why it is not, by request."""
        done = [(request_id, future) for request_id, future in self._begun.items() if future.done()]
        for request_id, _ in done:
            del self._begun[request_id]
        return [(request_id, future.result()) for request_id, future in done]

    def close(self) -> None:
        """Begin nothing more; what is being compiled ends by its limits."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _compile(self, grammar: str) -> Matcher | EngineError:
        try:
            return Confined(self._compiled(grammar).deep_copy())
        except EngineError as error:
            return error
        except Exception as error:
            log.exception("grammar_failed")
            return EngineError(f"The engine failed while compiling this request's grammar ({type(error).__name__}).")

    def _fresh(self, grammar: str) -> LLMatcher:
        """Compile; a refusal is raised and so not remembered."""
        from llguidance import LLMatcher, LLParserLimits  # noqa: PLC0415  not before somebody asks for it

        limits = LLParserLimits(
            initial_lexer_fuel=LEXER_FUEL, max_lexer_states=LEXER_STATES, verbose_errors=False
        )  # a hostile grammar ends in a refusal, not in a stall
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise RequestRefused(
                f"The answer cannot be confined as asked: {readable(matcher.get_error())}", field="response_format"
            )
        matcher.compute_bitmask()  # the first mask is the slowest, and the copies share what it found
        return matcher

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        from llguidance.hf import from_tokenizer  # noqa: PLC0415
        from transformers import AutoTokenizer  # noqa: PLC0415

        tokenizer = AutoTokenizer.from_pretrained(self._folder, trust_remote_code=False)
        if not tokenizer.is_fast:
            raise RequestRefused(
                "This model's tokenizer is of a kind that no grammar can be compiled for.", field="response_format"
            )
        most = max(self._vocab_size, len(tokenizer))
        return from_tokenizer(tokenizer, n_vocab=most, eos_token=list(self._eos_ids))


def readable(reason: str) -> str:
    """Put llguidance's words on one line, without its drawings of where the error is."""
    lines = (line.strip() for line in reason.splitlines())
    told = " ".join(line for line in lines if line.strip("^~ ") and not line.split("|")[0].strip().isdigit())
    return told if len(told) <= REASON_CHARS else f"{told[:REASON_CHARS]}…"
