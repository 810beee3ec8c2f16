"""What penalties, bias, log-probabilities and cuts add to a step: sampling alone, beside the step that it belongs to.

Every round takes one greedy step of all sequences and then samples from that step's logits in each way, in turn, so
that a busy moment hits all of them. What is timed is all that the runner does with logits.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence as Items
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measure import Advance, Result, Series, Target
from engine.config import EngineConfig
from engine.messages import Delta, Keep, Sampling, Submit
from engine.weights import DEFAULT_MODEL, resolve_in_subprocess
from gateway.config import Settings, cache_dir

if TYPE_CHECKING:
    from engine.chunk import Chunk
    from engine.core import EngineCore
    from engine.runner import Runner

NAME = "sampling"
KV_BYTES = 3 << 29
LIMIT = 0.10  # of a step
WHILE_OTHERS_ARE_READ = 1000  # tokens that the first may say before the last prompt is read
OFF = "greedy"
WISHES = {
    OFF: Sampling(temperature=0.0),
    "penalties": Sampling(temperature=0.0, repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.5),
    "bias of 100 tokens": Sampling(temperature=0.0, logit_bias=dict.fromkeys(range(100), 1.5)),
    "log-probabilities": Sampling(temperature=0.0, logprobs=20),
    "all three": Sampling(
        temperature=0.0,
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        logit_bias=dict.fromkeys(range(100), 1.5),
        logprobs=20,
    ),
    "temperature": Sampling(temperature=0.8, seed=1),
    "top_p": Sampling(temperature=0.8, top_p=0.95, seed=1),
    "top_k": Sampling(temperature=0.8, top_k=40, seed=1),
    "min_p": Sampling(temperature=0.8, min_p=0.05, seed=1),
    "temperature 2, top_p": Sampling(temperature=2.0, top_p=0.95, seed=1),
}
PROMISED = ("penalties", "bias of 100 tokens", "log-probabilities", "all three")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    sequences: int = 8
    context: int = 3_000  # tokens of each prompt
    rounds: int = 40


def steps(plan: Plan | None = None) -> int:
    """Return how often `run` advances."""
    plan = plan or Plan()
    return 2 + plan.rounds


def run(advance: Advance) -> Result:
    """Measure on the default model."""
    folder = resolve_in_subprocess(DEFAULT_MODEL, cache_dir(Settings(), os.environ), lambda *_: None)
    return measure(Path(folder.path), folder.name, Plan(), advance)


def measure(folder: Path, model: str, plan: Plan, advance: Advance) -> Result:
    """Measure on the model in `folder`."""
    from engine.runner import Runner
    from engine.worker import build_core

    core = build_core(EngineConfig(model=model, model_path=str(folder), kv_bytes=KV_BYTES, inter_token_s=60.0))
    assert isinstance(core.runner, Runner)
    advance("the model is loaded")
    prompts = _prompts(plan, core.card.vocab_size)
    _begin(core, prompts, plan.rounds)
    advance("the prompts are read")
    step_ms, took_ms = _rounds(core, core.runner, prompts, plan, advance)
    core.grammars.close()
    return _result(model, plan, step_ms, took_ms)


def _rounds(
    core: EngineCore, runner: Runner, prompts: Items[bytes], plan: Plan, advance: Advance
) -> tuple[list[float], dict[str, list[float]]]:
    ways = {name: _chunks(prompts, wish, core.card.vocab_size) for name, wish in WISHES.items()}
    step_ms: list[float] = []
    took_ms: dict[str, list[float]] = {name: [] for name in WISHES}
    names = list(WISHES)
    for at in range(plan.rounds):
        began = time.perf_counter()
        decoding = core.scheduler.plan(now=core.clock())
        logits = runner.logits(decoding)
        outcomes = runner.outcomes(decoding, logits)
        core.scheduler.absorb(decoding, outcomes, now=core.clock())
        step_ms.append(1000 * (time.perf_counter() - began))
        for name in names[at % len(names) :] + names[: at % len(names)]:
            began = time.perf_counter()
            runner.outcomes(ways[name], logits)
            took_ms[name].append(1000 * (time.perf_counter() - began))
        advance(f"step {at + 1} of {plan.rounds}")
    return step_ms, took_ms


def _begin(core: EngineCore, prompts: Items[bytes], rounds: int) -> None:
    """Compute all prompts, so that only answers are left."""
    left = set()
    for at, tokens in enumerate(prompts):
        greedy = Submit(
            id=f"{at}",
            tokens=tokens,
            max_tokens=rounds + WHILE_OTHERS_ARE_READ,
            sampling=WISHES[OFF],
            keep=Keep(cache=False),
        )
        refused = core.handle(greedy)
        if refused is not None:
            raise RuntimeError(f"the engine refused: {refused}")
        left.add(f"{at}")
    while left:
        left -= {event.id for event in core.step() if isinstance(event, Delta) and event.prefilled}


def _chunks(prompts: Items[bytes], wish: Sampling, vocab: int) -> list[Chunk]:
    """Make the chunks of a step in which sequences with those prompts wish for that."""
    from engine.chunk import Chunk
    from engine.request import Request
    from engine.sequence import Sequence
    from prefix_store.chain import Namespace

    space = Namespace(tenant="", model="", weights="", rendering="", kv_dtype="", block_tokens=16, partition="")
    chunks, dice = [], random.Random(5)
    for at, tokens in enumerate(prompts):
        request = Request(
            id=f"{at}",
            tokens=tokens,
            namespace=space,
            max_tokens=1000,
            sampling=wish,
            stop_ids=frozenset(),
            keep=Keep(cache=False),
            seed=at,
        )
        sequence = Sequence(request, now=0.0)
        for _ in range(200):
            sequence.append(dice.randrange(vocab))
        chunks.append(Chunk(sequence, sequence.length - 1, 1))
    return chunks


def _prompts(plan: Plan, vocab: int) -> list[bytes]:
    dice = random.Random(3)
    return [
        b"".join(dice.randrange(vocab).to_bytes(4, "little") for _ in range(plan.context))
        for _ in range(plan.sequences)
    ]


def _result(model: str, plan: Plan, step_ms: list[float], took_ms: dict[str, list[float]]) -> Result:
    step = Series(name="step, greedy", unit="ms", values=tuple(step_ms))
    added = {
        name: Series(
            name=f"{name}: added",
            unit="ms",
            values=tuple(on - off for on, off in zip(took, took_ms[OFF], strict=True)),
        )
        for name, took in took_ms.items()
        if name != OFF
    }
    greedy = Series(name=f"{OFF}: all that is done with logits", unit="ms", values=tuple(took_ms[OFF]))
    ceiling = f"a greedy step of {plan.sequences} sequences of {plan.context:,} tokens, {step.median:.1f} ms"
    return Result(
        name=NAME,
        targets=tuple(
            Target(
                name=f"{name}, share of a step",
                value=added[name].median / step.median,
                limit=LIMIT,
                unit="",
                ceiling=ceiling,
            )
            for name in PROMISED
        ),
        series=(step, greedy, *added.values()),
        facts={
            "model": model,
            "sequences": plan.sequences,
            "context_tokens": plan.context,
            **{f"share: {name}": round(series.median / step.median, 4) for name, series in added.items()},
        },
    )
