"""An engine in this process, and beside it the floor: the model's linear layers alone, with as many rows.

Both share one thread pool and take turns, so that a busy moment hits both. Rule: what was meant to be read from the
cache was read; a run in which it was otherwise is an error, not a number.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.cost import SUFFIX_TOKENS
from engine.core import EngineCore
from engine.messages import Abort, Delta, Keep, Prefilled, Refused, Sampling, Submit
from engine.runner import Runner

HELD = Keep(held_ttl_s=24 * 3600.0)  # longer than any run
UNCACHED = Keep(cache=False)
WARM_UP = 2  # decode steps that are thrown away


class Floor:
    """Every linear layer of a model once, each on input of its own width."""

    def __init__(self, module: nn.Module) -> None:
        """Take a transformers causal LM; its output layer sees only the rows whose logits are wanted."""
        self._head = module.get_output_embeddings()  # type: ignore[operator]  # transformers' own
        self._layers = [each for each in module.modules() if isinstance(each, nn.Linear) and each is not self._head]
        self._inputs: dict[tuple[int, int], Tensor] = {}

    @torch.inference_mode()
    def ms(self, rows: int, *, wanted: int) -> float:
        """Time one pass."""
        work = [(layer, self._input(rows, layer.in_features)) for layer in self._layers]
        if wanted:
            work.append((self._head, self._input(wanted, self._head.in_features)))
        started = time.perf_counter()
        for layer, given in work:
            layer(given)
        return 1000 * (time.perf_counter() - started)

    def _input(self, rows: int, width: int) -> Tensor:
        if (rows, width) not in self._inputs:
            self._inputs[rows, width] = torch.randn(rows, width)
        return self._inputs[rows, width]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: `text` is cached before, `suffix` is new."""

    text: list[int]
    suffix: list[int]
    partition: str
    keep: Keep = HELD


class Timed:
    """Requests to one core, timed."""

    def __init__(self, core: EngineCore) -> None:
        assert isinstance(core.runner, Runner)
        self.core = core
        self.model = core.runner.model
        self.floor = Floor(self.model.module)
        self._suffixes = _suffixes(core.card.vocab_size)

    def suffix(self) -> list[int]:
        """Return new tokens that begin as no other suffix does, so that none finds another's last block."""
        return next(self._suffixes)

    def first_token_ms(self, ask: Ask) -> float:
        """Time one request from submission to its only token."""
        started = time.perf_counter()
        self._submit("one", ask, max_tokens=1)
        (prefilled,) = self._until_answered({"one"})
        took_ms = 1000 * (time.perf_counter() - started)
        self._insist(ask, prefilled)
        return took_ms

    def cache(self, text: list[int], partition: str) -> None:
        """Compute and keep a prefix."""
        self._submit("one", Ask(text, self.suffix(), partition), max_tokens=1)
        self._until_answered({"one"})

    def between_tokens_ms(self, asks: Sequence[Ask], steps: int) -> tuple[list[float], list[float]]:
        """Time steps in which all requests get one token each, and after every step the floor."""
        for at, ask in enumerate(asks):
            self._submit(f"{at}", ask, max_tokens=steps + WARM_UP + len(asks) + 2)
        names = {f"{at}" for at in range(len(asks))}
        for ask, prefilled in zip(asks, self._until_answered(names), strict=True):
            self._insist(ask, prefilled)
        engine, floor = [], []
        for _ in range(WARM_UP + steps):
            started = time.perf_counter()
            events = self.core.step()
            engine.append(1000 * (time.perf_counter() - started))
            if {event.id for event in events} != names:
                raise RuntimeError(f"a step answered {len(events)} of {len(names)} sequences")
            floor.append(self.floor.ms(len(names), wanted=len(names)))
        for name in names:
            self.core.handle(Abort(id=name))
        return engine[WARM_UP:], floor[WARM_UP:]

    def _submit(self, name: str, ask: Ask, *, max_tokens: int) -> None:
        packed = np.asarray([*ask.text, *ask.suffix], dtype="<u4").tobytes()
        refused = self.core.handle(
            Submit(
                id=name,
                tokens=packed,
                max_tokens=max_tokens,
                sampling=Sampling(temperature=0.0),
                partition=ask.partition,
                keep=ask.keep,
            )
        )
        if refused is not None:
            raise RuntimeError(f"the engine refused: {refused}")

    def _until_answered(self, names: set[str]) -> list[Prefilled]:
        """Step until each has its first token; return what they read, in the order of their names as numbers."""
        told: dict[str, Prefilled] = {}
        while names - told.keys():
            for event in self.core.step():
                told |= _prefilled(event)
        return [told[name] for name in sorted(told, key=lambda name: (len(name), name))]

    @staticmethod
    def _insist(ask: Ask, prefilled: Prefilled) -> None:
        cached = len(ask.text) if ask.keep.cache else 0
        if prefilled.read != cached:
            raise RuntimeError(f"meant to reuse {cached} tokens, reused {prefilled.read}")


def _prefilled(event: Delta | Refused) -> dict[str, Prefilled]:
    if not isinstance(event, Delta):
        raise TypeError(f"the engine failed: {event}")
    return {} if event.prefilled is None else {event.id: event.prefilled}


def _suffixes(vocab: int) -> Iterator[list[int]]:
    dice = random.Random(11)
    while True:
        for first in range(vocab):
            yield [first, *(dice.randrange(vocab) for _ in range(SUFFIX_TOKENS - 1))]
