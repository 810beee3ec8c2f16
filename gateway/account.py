"""What one request cost, put together as its deltas come. Pure: time is an argument.

Owns the progress of each choice. Rule: the prompt counts once however many choices are asked for, with the facts of the
choice that was submitted first; the tokens of all choices count.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from engine.errors import EngineUnavailable
from engine.messages import Delta, Finished, FinishReason, Prefilled
from gateway.miss import Explained
from gateway.retention import Kept, report, written
from gateway.usage import Facts, PromptFacts


@dataclass(frozen=True, slots=True)
class Came:
    """New tokens of a choice: how many, how long after the request (if `first`) or after its last ones, in seconds."""

    count: int
    waited_s: float
    first: bool


@dataclass(frozen=True, slots=True)
class Sums:
    """What all choices have come to. Times are seconds; `first_token_s` is None before there is one."""

    generated: int = 0
    projected: int | None = None  # known when every choice has ended
    first_token_s: float | None = None
    decode_s: float = 0.0
    ends: tuple[FinishReason, ...] = ()  # of each choice; one that was left at a stop string has stopped


@dataclass(slots=True)
class _Progress:
    last: float
    generated: int = 0
    first_token_s: float = 0.0
    finished: Finished | None = None


class Account:
    """One request's progress."""

    def __init__(self, kept: Kept, *, normalised: tuple[str, ...], choices: int, began: float) -> None:
        """Begin at `began`, on the clock that the deltas are timed with."""
        self._kept = kept
        self._normalised = normalised
        self._began = began
        self._choices = [_Progress(last=began) for _ in range(choices)]
        self.prompt_facts: PromptFacts | None = None

    @property
    def min_tokens(self) -> int:
        """What the governing policy asks for at least, in tokens."""
        return self._kept.keep.min_tokens

    @property
    def begun(self) -> bool:
        """Whether the prompt's facts stand."""
        return self.prompt_facts is not None

    def prompt(self, prefilled: Prefilled, at: datetime, explained: Explained) -> PromptFacts:
        """Take the first choice's facts, and why what was not read was not; `at` is the wall clock's time."""
        self.prompt_facts = PromptFacts(
            prompt=prefilled.prompt,
            read=prefilled.read,
            write=prefilled.write,
            queue_s=prefilled.queue_s,
            prefill_s=prefilled.prefill_s,
            written=written(self._kept, prefilled),
            retention=report(self._kept, prefilled.marks, at),
            misses=explained.misses,
            comparison=explained.comparison,
            normalised=self._normalised,
        )
        return self.prompt_facts

    def take(self, choice: int, delta: Delta, now: float) -> Came | None:
        """Take a choice's tokens. Raises EngineUnavailable where the engine gave the answer up."""
        progress = self._choices[choice]
        came = len(delta.tokens)
        if delta.finished is not None:
            if delta.finished.reason == "cancelled":
                raise EngineUnavailable("The engine gave this answer up.")
            progress.finished = delta.finished
            came = max(came, delta.finished.generated - progress.generated)  # the unseen stop token counts
        if not came:
            return None
        told = Came(came, now - progress.last, first=progress.generated == 0)
        if told.first:
            progress.first_token_s = now - self._began
        progress.generated += came
        progress.last = now
        return told

    def sums(self) -> Sums:
        """Sum up what there is so far."""
        finished = [progress.finished for progress in self._choices if progress.finished is not None]
        whole = len(finished) == len(self._choices)
        return Sums(
            generated=sum(progress.generated for progress in self._choices),
            projected=sum(end.projected for end in finished) if whole else None,
            first_token_s=min((one.first_token_s for one in self._choices if one.generated), default=None),
            decode_s=max(map(self._decode_s, self._choices)),
            ends=tuple("stop" if one.finished is None else one.finished.reason for one in self._choices),
        )

    def facts(self) -> Facts:
        """Sum up when every choice is over."""
        prompt = self.prompt_facts
        if prompt is None:
            raise EngineUnavailable("The engine ended the answer without a first word.")
        sums = self.sums()
        return Facts(
            prompt=prompt.prompt,
            read=prompt.read,
            write=prompt.write,
            queue_s=prompt.queue_s,
            prefill_s=prompt.prefill_s,
            written=prompt.written,
            retention=prompt.retention,
            misses=prompt.misses,
            comparison=prompt.comparison,
            normalised=prompt.normalised,
            generated=sums.generated,
            projected=sums.projected,
            decode_s=sums.decode_s,
            first_token_s=sums.first_token_s or 0.0,
        )

    def _decode_s(self, progress: _Progress) -> float:
        if progress.finished is not None:
            return progress.finished.decode_s
        return progress.last - self._began - progress.first_token_s
