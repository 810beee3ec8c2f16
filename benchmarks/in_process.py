"""The engine alone, in this process: a cold prefill beside a plain transformers forward, and the price of a prefix.

Both sides share one process, one thread pool and one prompt, and take turns, so that a busy moment hits both.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Advance, Series, slope
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import Delta, Prefilled, Sampling, Submit
from gateway.demo.handbook import HANDBOOK, QUESTIONS, copy_of_handbook

PAIRS = 4
REPEATS = 7
CACHED_TOKENS = tuple(range(1024, 7168 + 1, 1024))
SUFFIX_TOKENS = 20
BANDWIDTH_BYTES = 1 << 28
KV_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class InProcess:
    """What the engine costs without a gateway around it."""

    engine_s: Series
    plain_s: Series
    prompt_tokens: int
    first_token_ms: tuple[tuple[int, Series], ...]  # by cached tokens; 0 is the suffix alone, no prefix at all
    weight_bytes: int
    kv_bytes_per_token: int
    read_bytes_per_s: float  # of main memory, by one long sum

    @property
    def ratio(self) -> float:
        """Engine over plain, the median of the pairs."""
        pairs = zip(self.engine_s.values, self.plain_s.values, strict=True)
        return Series(name="", unit="", values=tuple(engine / plain for engine, plain in pairs)).median

    @property
    def ms_per_1000_cached(self) -> float:
        """How much each further 1,000 cached tokens add to a first token."""
        return 1000 * slope([(cached, series.median) for cached, series in self.first_token_ms if cached])

    @property
    def floor_ms_per_1000_cached(self) -> float:
        """How long it takes to read the keys and values of 1,000 tokens once."""
        return 1000 * 1000 * self.kv_bytes_per_token / self.read_bytes_per_s


def steps() -> int:
    """Return how often `measure` advances."""
    return 2 + PAIRS + 1 + REPEATS


def measure(folder: Path, advance: Advance) -> InProcess:
    """Load engine and plain model from `folder` and time them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from engine.worker import build_core

    logging.disable_progress_bar()  # ours is enough
    core = build_core(EngineConfig(model="bench", model_path=str(folder), kv_bytes=KV_BYTES))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    advance("both models are loaded")
    messages = [
        {"role": "system", "content": copy_of_handbook("1")},
        {"role": "user", "content": QUESTIONS[0]},
    ]
    prompt: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    engine_s, plain_s = _alternate(
        lambda turn: _first_token(core, prompt, partition=f"cold {turn}")[0],
        lambda _: _plain_forward(plain, torch.tensor([prompt])),
        advance,
    )
    weight_bytes = sum(each.nbytes for each in plain.parameters())
    text: list[int] = tokenizer.encode(HANDBOOK * 3)
    first_token_ms = _by_cached_tokens(core, text, advance)
    return InProcess(
        engine_s=engine_s,
        plain_s=plain_s,
        prompt_tokens=len(prompt),
        first_token_ms=first_token_ms,
        weight_bytes=weight_bytes,
        kv_bytes_per_token=core.card.kv_bytes_per_token,
        read_bytes_per_s=_read_bandwidth(torch.ones(BANDWIDTH_BYTES // 4)),
    )


def _alternate(
    engine: Callable[[int], float], plain: Callable[[int], float], advance: Advance
) -> tuple[Series, Series]:
    """Time both sides in turns, each going first in every other pair; one pair to warm up is thrown away."""
    times: dict[str, list[float]] = {"engine": [], "plain": []}
    sides = {"engine": engine, "plain": plain}
    for pair in range(PAIRS + 1):
        order = ("engine", "plain") if pair % 2 else ("plain", "engine")
        for side in order:
            times[side].append(sides[side](pair))
        advance(f"cold prefill, pair {pair} of {PAIRS}")
    return (
        Series(name="cold prefill, engine", unit="s", values=tuple(times["engine"][1:])),
        Series(name="cold prefill, plain transformers", unit="s", values=tuple(times["plain"][1:])),
    )


def _by_cached_tokens(core: EngineCore, text: list[int], advance: Advance) -> tuple[tuple[int, Series], ...]:
    """Cache one long prefix, then time first tokens on shorter and longer parts of it, each round in another order."""
    suffixes = _suffixes(core.card.vocab_size)
    longest = text[: CACHED_TOKENS[-1]]
    _first_token(core, [*longest, *next(suffixes)], partition="prefix")
    advance("the longest prefix is cached")
    dice = random.Random(7)
    times: dict[int, list[float]] = {cached: [] for cached in (0, *CACHED_TOKENS)}
    for repeat in range(REPEATS):
        for cached in dice.sample(list(times), len(times)):
            partition = "prefix" if cached else f"alone {repeat}"
            took_s, prefilled = _first_token(core, [*longest[:cached], *next(suffixes)], partition=partition)
            if prefilled.read != cached:
                raise RuntimeError(f"meant to reuse {cached} tokens, reused {prefilled.read}")
            times[cached].append(1000 * took_s)
        advance(f"warm first tokens, round {repeat + 1} of {REPEATS}")
    return tuple(
        (cached, Series(name=f"first token on {cached:,} cached", unit="ms", values=tuple(values)))
        for cached, values in times.items()
    )


def _suffixes(vocab: int) -> Iterator[list[int]]:
    """Yield endless suffixes, no two with the same first token: none finds another's last block."""
    dice = random.Random(11)
    for first in itertools.count(1000):
        yield [first, *(dice.randrange(vocab) for _ in range(SUFFIX_TOKENS - 1))]


def _first_token(core: EngineCore, tokens: list[int], *, partition: str) -> tuple[float, Prefilled]:
    """Time one request from submission to its only token."""
    packed = np.asarray(tokens, dtype="<u4").tobytes()
    submit = Submit(id="bench", tokens=packed, max_tokens=1, sampling=Sampling(temperature=0.0), partition=partition)
    started = time.perf_counter()
    refused = core.handle(submit)
    if refused is not None:
        raise RuntimeError(f"the engine refused: {refused}")
    prefilled: Prefilled | None = None
    while core.busy:
        for event in core.step():
            if not isinstance(event, Delta):
                raise TypeError(f"the engine failed: {event}")
            prefilled = event.prefilled or prefilled
    took_s = time.perf_counter() - started
    if prefilled is None:
        raise RuntimeError("the engine ended without a first token")
    return took_s, prefilled


def _plain_forward(model: Any, tokens: Any) -> float:
    """Time what a prefill needs of plain transformers: keys and values of the prompt, logits of its last token."""
    import torch

    with torch.inference_mode():
        started = time.perf_counter()
        model(input_ids=tokens, use_cache=True, logits_to_keep=1)
        return time.perf_counter() - started


def _read_bandwidth(tensor: Any) -> float:
    """Return bytes per second of summing a tensor far larger than any cache, the best of five."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        tensor.sum()
        times.append(time.perf_counter() - started)
    return float(tensor.nbytes / min(times))
