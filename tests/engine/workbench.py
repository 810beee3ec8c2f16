"""Tools of the engine's tests: a hand clock, a tiny random model, an in-thread engine, and slow truths."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Items
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from engine.block_pool import BlockId, BlockPool
from engine.cascade import share
from engine.chunk import Chunk, Outcome
from engine.config import AUTO, EngineConfig
from engine.core import EngineCore
from engine.grammar import Compiler
from engine.messages import Abort, Delta, Keep, ModelCard, Refused, Sampling, Submit, TokenLogprob
from engine.model import PAGED, PagedModel, register
from engine.runner import Runner
from prefix_store.retention import format_duration

VOCAB = 61
GREEDY = Sampling(temperature=0.0)


class HandClock:
    """Seconds that move only when told to."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now

    def tick(self, seconds: float) -> None:
        self.now += seconds


class ByHand(Executor):
    """Runs what it was given when told to, in this thread."""

    def __init__(self) -> None:
        self._given: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._given.append((future, lambda: fn(*args, **kwargs)))
        return future

    def work(self) -> None:
        while self._given:
            future, call = self._given.pop(0)
            if future.set_running_or_notify_cancel():
                future.set_result(call())


def tiny_module(seed: int = 0, vocab_size: int = VOCAB, hidden_size: int = 32) -> LlamaForCausalLM:
    """A random two-layer Llama with grouped heads, small enough for milliseconds."""
    torch.manual_seed(seed)
    register()
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.6,  # spreads the logits, so that a wrong key shows
        eos_token_id=None,
        bos_token_id=None,
    )
    module = LlamaForCausalLM(config).eval()
    module.set_attn_implementation(PAGED)
    return module


@torch.inference_mode()
def plain_logits(module: LlamaForCausalLM, tokens: Items[int]) -> Tensor:
    """The slow truth: the model's own eager forward over the whole prompt; logits [vocab] of the last token."""
    module.set_attn_implementation("eager")
    logits: Tensor = module(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0, -1].float()
    module.set_attn_implementation(PAGED)
    return logits


def plain_answer(module: LlamaForCausalLM, prompt: Items[int], count: int) -> list[int]:
    """The slow truth: greedy generation without any cache."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(plain_logits(module, tokens).argmax()))
    return tokens[len(prompt) :]


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread: a tiny model's matrices are smaller than the waiting for another one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@contextmanager
def share_from(least: int) -> Iterator[None]:
    """Attend together to shared stretches of so few tokens, which in service would not be worth it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.batch.share", partial(share, least=least))
        yield


class Truth:
    """The slow truth, remembered: the model's own eager forward over whole sequences, without any cache of ours."""

    def __init__(self, module: LlamaForCausalLM) -> None:
        self.module = module
        self._after: dict[tuple[int, ...], Tensor] = {}  # logits [vocab] by the tokens they come after

    @torch.inference_mode()
    def learn(self, tokens: Items[int]) -> None:
        """Make known what comes after every beginning of a sequence, by one forward over all of it."""
        if tuple(tokens) in self._after:
            return
        self.module.set_attn_implementation("eager")
        rows = self.module(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0].float()
        self.module.set_attn_implementation(PAGED)
        for end, row in enumerate(rows, 1):
            self._after.setdefault(tuple(tokens[:end]), row.clone())

    def after(self, tokens: Items[int]) -> Tensor:
        """Logits of the token after these."""
        self.learn(tokens)
        return self._after[tuple(tokens)]

    def answer(self, prompt: Items[int], count: int) -> list[int]:
        """Greedy generation."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.after(tokens).argmax()))
        return tokens[len(prompt) :]


class PoisonedPool(BlockPool):
    """The real pool; the content of every block is spoilt the moment it is free, so that no stale read goes unseen."""

    def __init__(self, size: int, spoil: Callable[[Items[BlockId]], None]) -> None:
        super().__init__(size)
        self._spoil = spoil
        self.spoilt = 0  # blocks
        spoil([BlockId(block) for block in range(size)])

    def give(self, blocks: Iterable[BlockId]) -> None:
        given = list(blocks)
        super().give(given)
        self._spoil(given)
        self.spoilt += len(given)


class RecordingRunner(Runner):
    """The real runner; it also keeps the logits of each request's sampled tokens and can be told to fail."""

    def __init__(self, model: PagedModel, *, blocks: int, block_tokens: int) -> None:
        super().__init__(model, blocks=blocks, block_tokens=block_tokens)
        self.block_tokens = block_tokens
        self.first_logits: dict[str, Tensor] = {}
        self.sampled_logits: dict[tuple[str, int], Tensor] = {}  # by request and place of the token in its sequence
        self.fail_at_step: int | None = None
        self.steps = 0
        self.most_rows = 0  # of logits in one step

    def spoil(self, blocks: Items[BlockId]) -> None:
        """Fill blocks with NaN: a slot that is read before it was written poisons the answer."""
        if blocks:
            where = torch.tensor(blocks)
            for stored in itertools.chain.from_iterable(self.kv.rows):
                spoilt = stored.data if stored.scales is None else stored.scales  # an int8 has no NaN, its scale has
                spoilt.view(-1, self.block_tokens, *spoilt.shape[1:])[where] = float("nan")

    def logits(self, chunks: Items[Chunk]) -> Tensor:
        self.steps += 1
        logits = super().logits(chunks)
        if self.steps == self.fail_at_step:  # with its keys and values written already
            raise RuntimeError("told to fail")
        self.most_rows = max(self.most_rows, len(logits))
        sampling = [chunk for chunk in chunks if chunk.samples]
        for row, chunk in zip(logits[len(logits) - len(sampling) :], sampling, strict=True):
            sequence = chunk.sequence
            self.first_logits.setdefault(sequence.request.id, row.clone())
            self.sampled_logits[sequence.request.id, sequence.length] = row.clone()
        return logits


class ScriptedRunner:
    """A model made of hashes. Every slot remembers which prefix wrote it, so reading a wrong block is an error."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.slots: dict[int, bytes] = {}

    def spoil(self, blocks: Items[BlockId]) -> None:
        """Forget what lay in blocks: reading it is an error."""
        for block in blocks:
            for at in range(self.block_tokens):
                self.slots.pop(block * self.block_tokens + at, None)

    def run(self, chunks: Items[Chunk]) -> list[Outcome]:
        for chunk in chunks:
            if chunk.copy is not None:
                for at in range(chunk.copy.tokens):
                    source, target = (
                        block * self.block_tokens + at for block in (chunk.copy.source, chunk.copy.target)
                    )
                    self.slots[target] = self.slots[source]
        outcomes = []
        for chunk in chunks:
            tokens = np.frombuffer(bytes(chunk.sequence.tokens), dtype="<u4").tolist()
            assert chunk.sequence.hold is not None
            table = chunk.sequence.hold.table
            where = [slot + at for slot, count in table.extents(chunk.start + chunk.count) for at in range(count)]
            marks = prefix_marks(tokens[: chunk.start + chunk.count])
            for position in range(chunk.start, chunk.start + chunk.count):
                self.slots[where[position]] = marks[position]
            for position, slot in enumerate(where):
                assert self.slots[slot] == marks[position], f"position {position} would read another prompt's K/V"
            outcomes.append(
                Outcome(
                    token=scripted_next(tokens) if chunk.samples else None,
                    scored=tuple(TokenLogprob(tokens[position + 1], 0.0) for position in chunk.scored),
                )
            )
        return outcomes


def prefix_marks(tokens: Items[int]) -> list[bytes]:
    """One digest per position, each over all tokens up to it."""
    running, marks = hashlib.blake2b(digest_size=8), []
    for token in tokens:
        running.update(token.to_bytes(4, "little"))
        marks.append(running.copy().digest())
    return marks


def scripted_next(tokens: Items[int]) -> int:
    """The scripted model's greedy token: depends on every token before it."""
    return prefix_marks(tokens)[-1][0] % VOCAB


def scripted_answer(prompt: Items[int], count: int) -> list[int]:
    """The slow truth of the scripted model."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(scripted_next(tokens))
    return tokens[len(prompt) :]


@dataclass
class Answer:
    """What a client would have seen."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prefilled: Any = None  # Prefilled once known; Any spares each test an assertion that it is
    finished: Any = None  # Finished once known
    refused: Refused | None = None

    @property
    def ended(self) -> bool:
        return self.finished is not None or self.refused is not None


class Bench:
    """An in-thread engine under a hand clock that collects answers."""

    def __init__(
        self,
        runner: Any = None,  # a Runner or a ScriptedRunner; made from `module` when that is given
        *,
        module: LlamaForCausalLM | None = None,
        blocks: int = 64,
        block_tokens: int = 4,
        step_tokens: int = 32,
        max_num_seqs: int = 8,
        max_model_len: int | None = None,
        ttl_s: float = 300.0,
        max_waiting: int = 1024,
        queue_timeout_s: float = 60.0,
        vocab_size: int = VOCAB,
        eos_ids: tuple[int, ...] = (),
        tokenizer: Path = Path("-"),  # a folder, where a test uses grammars
        executor: Executor | None = None,  # of grammars
        kv_cache_dtype: str = AUTO,
    ) -> None:
        self.clock = HandClock()
        self.module = module
        if module is not None:
            paged = PagedModel(module, weights="tiny", kv_cache_dtype=kv_cache_dtype)
            runner = RecordingRunner(paged, blocks=blocks, block_tokens=block_tokens)
        self.runner = runner
        config = EngineConfig(
            model="tiny",
            model_path="-",
            block_tokens=block_tokens,
            step_tokens=step_tokens,
            max_num_seqs=max_num_seqs,
            max_waiting=max_waiting,
            queue_timeout_s=queue_timeout_s,
        )
        self.keep = Keep(held_ttl_s=ttl_s, held_klass=format_duration(ttl_s))
        card = ModelCard(
            name="tiny",
            weights="tiny",
            max_model_len=max_model_len or blocks * block_tokens,
            vocab_size=vocab_size,
            eos_ids=eos_ids,
            block_tokens=block_tokens,
            blocks=blocks,
            kv_bytes=0,
            kv_bytes_per_token=0,
            dtype="float32",
            kv_dtype="float32" if kv_cache_dtype == AUTO else kv_cache_dtype,
            device="cpu",
        )
        self.executor: Any = executor or ByHand()
        grammars = Compiler(tokenizer, vocab_size=vocab_size, eos_ids=eos_ids, executor=self.executor)
        self.core = EngineCore(config, card, self.runner, self.clock, grammars=grammars)
        self.core.cache.pool = PoisonedPool(blocks, runner.spoil)
        self.answers: dict[str, Answer] = {}

    def submit(self, prompt: Iterable[int], *, max_tokens: int = 3, sampling: Sampling = GREEDY, **extra: Any) -> str:
        request_id = f"r{len(self.answers)}"
        self.answers[request_id] = Answer()
        packed = np.asarray(list(prompt), dtype="<u4").tobytes()
        answer = self.core.handle(
            Submit(
                id=request_id, tokens=packed, max_tokens=max_tokens, sampling=sampling, **{"keep": self.keep} | extra
            )
        )
        if isinstance(answer, Refused):
            self.answers[request_id].refused = answer
        return request_id

    def abort(self, request_id: str) -> None:
        self.core.handle(Abort(id=request_id))

    def step(self) -> None:
        for event in self.core.step():
            answer = self.answers[event.id]
            assert not answer.ended, "an event after the last one"
            if isinstance(event, Delta):
                answer.tokens += event.tokens
                answer.logprobs += event.logprobs
                answer.prefilled = event.prefilled or answer.prefilled
                answer.finished = event.finished
            else:
                answer.refused = event
        self.core.scheduler.check()

    def run(self, limit: int = 2_000) -> None:
        for _ in range(limit):
            if not self.core.busy:
                return
            self.step()
        raise AssertionError(f"not done after {limit} steps: a deadlock")

    def ask(self, prompt: Iterable[int], **extra: Any) -> Answer:
        request_id = self.submit(prompt, **extra)
        self.run()
        return self.answers[request_id]

    def first_logits(self, request_id: str) -> Tensor:
        logits: Tensor = self.runner.first_logits[request_id]
        return logits


def close(one: Tensor, other: Tensor, tolerance: float = 1e-4) -> bool:
    """Whether two rows of logits agree within `tolerance` × max(1, largest logit)."""
    return float((one - other).abs().max()) <= tolerance * max(1.0, float(other.abs().max()))
