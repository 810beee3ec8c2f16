"""What `keepwarm eval needle` does: one engine process after another, each with another KV dtype, all asked the same.

Owns the progress bar. Rule: what a device cannot store, or an engine that dies, is a row that says so; only what no
dtype could be measured with ends the command.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from engine.client import EngineClient
from engine.config import AUTO, EngineConfig
from engine.errors import EngineError
from engine.messages import ModelCard
from gateway.evaluation import haystack, scoring
from gateway.evaluation.asking import Asker, running
from gateway.evaluation.errors import Unmeasurable
from gateway.evaluation.prompts import CANDIDATES, Prompts, Question
from gateway.evaluation.reading import MOST_TOKENS, stretches
from gateway.evaluation.scoring import Json, Measured
from gateway.evaluation.wanted import Wanted
from prefix_store.chain import TOKEN_BYTES

Step = Callable[[str, int], None]  # what is being done, and how many of its parts are done by now

PATIENCE_S: Final = 86_400.0  # candidates wait while the haystack of one of them is computed
VERSION: Final = 1  # of what `--json` prints


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What every engine is asked: made once the first one has said how long a prompt may be."""

    lengths: tuple[int, ...]
    questions: tuple[Question, ...]
    lead: bytes  # before each stretch of the text
    text: bytes
    width: int  # of a stretch, in tokens

    @property
    def stretches(self) -> list[tuple[int, int, int]]:
        """The text's stretches: from, to, told from."""
        return list(stretches(len(self.text) // TOKEN_BYTES, self.width))

    @property
    def parts(self) -> int:
        """How much there is to do for one dtype."""
        return len(self.questions) + len(self.stretches)


def planned(wanted: Wanted, prompts: Prompts, text: str, card: ModelCard) -> Plan:
    """Make the prompts for an engine's window and pool. Raises Unmeasurable."""
    lengths = wanted.lengths_within(card.max_model_len)
    prose = haystack.pieces(text) or (text,)
    questions = [
        question
        for length in lengths
        for question in prompts.questions(length, prose, depths=wanted.depths, each=wanted.facts, seed=wanted.seed)
    ]
    lead, tokens = prompts.long_text(text, MOST_TOKENS)
    width = max(lengths) - len(lead) // TOKEN_BYTES
    return Plan(lengths=lengths, questions=tuple(questions), lead=lead, text=tokens, width=width)


async def measured(config: EngineConfig, wanted: Wanted, prompts: Prompts, text: tuple[str, str], step: Step) -> Json:
    """Measure every dtype. Raises Unmeasurable."""
    rows: list[Measured] = []
    plan: Plan | None = None
    for number, dtype in enumerate(wanted.dtypes):
        step(f"{dtype}: starting the engine", number * plan.parts if plan else 0)
        try:
            async with running(replace(config, kv_cache_dtype=dtype, queue_timeout_s=PATIENCE_S)) as (client, card):
                if plan is None:
                    plan = planned(wanted, prompts, text[1], card)
                    step(f"{dtype}: {len(plan.questions)} questions", -plan.parts * len(wanted.dtypes))
                later = partial(_later, step, number * plan.parts)
                rows.append(await _one(client, card, plan, prompts, later, dtype))
        except EngineError as error:
            if dtype == AUTO:  # what the model computes in can always be stored
                raise Unmeasurable(f"--model {config.model}: {error}") from error
            rows.append(Measured(dtype=dtype, refused=str(error)))
    if plan is None:
        raise Unmeasurable(f"--kv-cache-dtype {wanted.dtypes[0]}: {rows[0].refused}")
    return told(rows, plan, wanted, model=config.model, text=text[0], templated=prompts.templated)


def _later(step: Step, before: int, what: str, done: int) -> None:
    step(what, before + done)


async def _one(client: EngineClient, card: ModelCard, plan: Plan, prompts: Prompts, step: Step, dtype: str) -> Measured:
    began = time.perf_counter()
    asker = Asker(client, prompts.rendering)
    answers, reads = [], []
    for done, question in enumerate(plan.questions):
        step(f"{dtype}: {question.length:,} tokens, {question.fact.depth:.0%} deep", done)
        answers.append(await asker.answered(question))
    for done, (start, end, untold) in enumerate(plan.stretches, len(plan.questions)):
        step(f"{dtype}: the text from token {untold:,}", done)
        stretch = plan.text[start * TOKEN_BYTES : end * TOKEN_BYTES]
        reads.append(await asker.read(plan.lead, stretch, untold - start))
    return Measured(
        dtype=dtype,
        stored=card.kv_dtype,
        kv_bytes_per_token=card.kv_bytes_per_token,
        answers=tuple(answers),
        text=tuple(reads),
        prompt_tokens=asker.prompt_tokens,
        read_tokens=asker.read_tokens,
        seconds=time.perf_counter() - began,
    )


def told(rows: list[Measured], plan: Plan, wanted: Wanted, *, model: str, text: str, templated: bool) -> Json:
    """Put together what was found."""
    first = next((row for row in rows if row.refused is None), None)
    dtypes = [scoring.told(row, None if row is first else first, CANDIDATES) for row in rows]
    return {
        "version": VERSION,
        "model": model,
        "chat_template": templated,
        "lengths": list(plan.lengths),
        "depths": list(wanted.depths),
        "facts_at_each": wanted.facts,
        "seed": wanted.seed,
        "candidates": CANDIDATES,
        "text": {
            "name": text,
            "tokens": len(plan.text) // TOKEN_BYTES,
            "window": plan.width,
            "told": sum(len(read.likeliest) for read in first.text) if first else 0,
        },
        "dtypes": dtypes,
        "fail_under": wanted.fail_under,
        "failed": scoring.failed(dtypes, wanted.fail_under),
    }


@contextmanager
def progress(title: str) -> Iterator[Step]:
    """Show a bar on stderr where a person looks on. A number below zero says how many parts there are in all."""
    console = Console(stderr=True)
    columns: tuple[Any, ...] = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)

        def step(what: str, done: int) -> None:
            if done < 0:
                bar.update(task, description=what, total=-done)
            else:
                bar.update(task, description=what, completed=done)

        yield step
