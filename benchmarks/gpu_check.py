"""`python -m benchmarks.gpu_check [MODEL]`: whether the path on a GPU is right, and how fast, in at most eight minutes.

Attention through block tables against the plain reference, in both half precisions; then a model, which the engine's
self-test compares with plain transformers: first tokens cold and warm, tokens a second and the share of the memory's
bandwidth that they use. The last line of standard output is one JSON object. Exit status: 0 all is right, 1 something
is not, 2 there is no GPU here that the engine could use.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.environment import take_card
from engine.attention import Scoring, reference
from engine.attention.dispatch import Attend, attention_for, usable
from engine.batch import Batch, Rows
from engine.block_pool import BlockId
from engine.block_table import BlockTable
from engine.cascade import share
from engine.config import EngineConfig, device_block_tokens
from engine.core import EngineCore
from engine.errors import ModelRefused
from engine.messages import Delta, Prefilled, Sampling, Submit
from engine.weights import resolve_in_subprocess
from engine.worker import build_core

BUDGET_S = 8 * 60
HEADS, KV_HEADS, HEAD_DIM, POOL = 8, 2, 128, 40  # of the check; blocks of its pool
LARGEST_GAP = 3e-2  # of attention over values of about one, in numbers of 8 bits
PROMPT_TOKENS, SUFFIX_TOKENS, CONTEXT_TOKENS, ANSWER_TOKENS = 6000, 20, 1024, 128
CONCURRENT = (1, 8, 32)
REPEATS = 5
BANDWIDTH_BYTES = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """One call of attention beside the reference."""

    dtype: str
    window: int | None
    sinks: bool
    gap: float

    @property
    def right(self) -> bool:
        """Whether it agrees as far as its numbers reach."""
        return self.gap <= LARGEST_GAP


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """Answers of so many requests at once."""

    requests: int
    recorded: bool = False  # by CUDA graphs, and replayed
    tokens_per_s: float
    bytes_per_step: float  # weights, and keys and values of every context
    bandwidth_share: float | None  # of what one long sum reads; None where that was not measured


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, measure, print."""
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="a known name, a folder, a file or a hub id")
    parser.add_argument("--device", default="cuda", help="cuda, or cuda:1", type=_gpu)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/keepwarm", help="of converted models")
    options = parser.parse_args(arguments)
    ends = time.monotonic() + BUDGET_S
    if not torch.cuda.is_available():
        print(f"gpu_check: torch {torch.__version__} finds no GPU here. Nothing was checked.", file=sys.stderr)
        return 2
    try:
        device = usable(options.device)
        attend = attention_for(device, device_block_tokens(options.device))
    except ModelRefused as refusal:
        print(f"gpu_check: {refusal} Nothing was checked.", file=sys.stderr)
        return 2
    found = agreements(attend, device, device_block_tokens(options.device))
    for one in found:
        print(f"attention {one.dtype:9} window {one.window} sinks {one.sinks}: gap {one.gap:.2g}")
    told: dict[str, Any] = {"attention": [asdict(one) for one in found]}
    if all(one.right for one in found):
        told |= _model(options.model, options.device, options.cache, ends)
    right = all(one.right for one in found)
    print(json.dumps({"right": right, "gpu": torch.cuda.get_device_name(device), "card": asdict(take_card()), **told}))
    return 0 if right else 1


def _gpu(text: str) -> str:
    if text.partition(":")[0] != "cuda":
        raise argparse.ArgumentTypeError(f"expected a GPU such as cuda or cuda:1, not {text!r}")
    return text


def agreements(
    attend: Attend,
    device: torch.device,
    page: int,
    dtypes: Sequence[torch.dtype] = (torch.float16, torch.bfloat16),
) -> list[Agreement]:
    """Compare decodes, cold and warm prefills that share beginnings, under windows and with sinks."""
    batch = mixed_batch(page, device)
    wanted = [
        (dtype, window, sinking) for dtype in dtypes for window in (None, 100, page + 7) for sinking in (False, True)
    ]
    generator = torch.Generator().manual_seed(3)
    found = []
    for dtype, window, sinking in wanted:
        query = torch.randn(len(batch.tokens), HEADS, HEAD_DIM, generator=generator).to(device, dtype)
        keys, values = (
            torch.randn(POOL * page, KV_HEADS, HEAD_DIM, generator=generator).to(device, dtype) for _ in "kv"
        )
        key, value = keys[batch.slots], values[batch.slots]
        sinks = torch.linspace(-2.0, 3.0, HEADS, device=device) if sinking else None
        scoring = Scoring(HEAD_DIM**-0.5, window, None, sinks)
        got, expected = (
            one(query, key, value, keys, values, batch, scoring).float() for one in (attend, reference.attend)
        )
        gap = float((got - expected).abs().max())
        found.append(Agreement(dtype=str(dtype).removeprefix("torch."), window=window, sinks=sinking, gap=gap))
    return found


def mixed_batch(page: int, device: torch.device) -> Batch:
    """Return five sequences in scattered blocks, some with a beginning in common."""
    trunk, branch = [7, 3, 12], [7, 3, 12, 20, 5]
    half = page // 2
    wanted = [  # blocks, tokens in all, new ones of them
        ([*trunk, 0], 3 * page + 1, 1),
        ([*trunk, 9, 1], 4 * page + half, page),
        ([*branch, 4], 5 * page + half, 1),
        ([*branch, 6, 2], 6 * page + 1, page + 1),
        ([30, 31], page + half, page + half),
    ]
    rows: list[Rows] = []
    slots: list[Tensor] = []
    first = 0
    for blocks, tokens, new in wanted:
        table = BlockTable(page, [BlockId(block) for block in blocks])
        whole = tuple(table.extents(tokens))
        past = whole if new == 1 else tuple(table.extents(tokens - new))
        rows.append(Rows(first, first + new, past, causal=new > 1, own=past, whole=whole))
        slots += [torch.arange(slot, slot + count) for slot, count in table.slots(tokens - new, new)]
        first += new
    shared, _ = share([one.past for one in rows], least=1)
    nothing = torch.zeros(first, dtype=torch.int64, device=device)
    return Batch(nothing, nothing, torch.cat(slots).to(device), tuple(rows), nothing[:0], (), shared)


def _model(model: str, device: str, cache: Path, ends: float) -> dict[str, Any]:
    """Load a model and measure it. The engine's own self-test compares it with plain transformers first."""
    folder = resolve_in_subprocess(model, cache, lambda *_: None)
    block = device_block_tokens(device)
    core = build_core(
        EngineConfig(
            model=folder.name,
            model_path=folder.path,
            device=device,
            block_tokens=block,
            kv_bytes=8 << 30,
            max_num_seqs=32,
            cuda_graphs=True,
        )
    )
    graphs = core.runner.graphs  # type: ignore[attr-defined]
    weights = sum(each.nbytes for each in core.runner.model.module.parameters())  # type: ignore[attr-defined]
    prompt = min(PROMPT_TOKENS, core.card.max_model_len - 2 * SUFFIX_TOKENS)
    told: dict[str, Any] = {"model": folder.name, "weight_bytes": weights, "prompt_tokens": prompt}
    told["first_token_ms"] = first_tokens(core, prompt, REPEATS)
    bandwidth = read_bandwidth(torch.ones(BANDWIDTH_BYTES // 4, device=device))
    decoding = []
    for requests in CONCURRENT:
        if time.monotonic() > ends:
            print(f"gpu_check: {BUDGET_S} s are over; {requests} answers at once were not measured.", file=sys.stderr)
            break
        for core.runner.graphs in (None, graphs) if graphs is not None else (None,):  # type: ignore[attr-defined]
            one = decode(core, requests, CONTEXT_TOKENS, ANSWER_TOKENS, weights, bandwidth)
            one = replace(one, recorded=core.runner.graphs is not None)  # type: ignore[attr-defined]
            decoding.append(one)
            print(f"{requests} answers at once, recorded {one.recorded}: {one.tokens_per_s:.0f} tokens/s")
    return told | {"bandwidth_bytes_per_s": bandwidth, "decoding": [asdict(one) for one in decoding]}


def first_tokens(core: EngineCore, tokens: int, repeats: int) -> dict[str, float]:
    """Return medians in milliseconds: cold, and warm over all but the suffix; one round to warm up is thrown away."""
    times: dict[str, list[float]] = {"cold": [], "warm": []}
    dice = random.Random(5)
    for round_ in range(repeats + 1):
        prefix = [dice.randrange(core.card.vocab_size) for _ in range(tokens)]
        for name in ("cold", "warm"):
            suffix = [dice.randrange(core.card.vocab_size) for _ in range(SUFFIX_TOKENS)]
            started = time.perf_counter()
            facts = _run(core, [[*prefix, *suffix]], 1)[1]
            took_ms = 1000 * (time.perf_counter() - started)
            if (facts[0].read >= tokens // core.card.block_tokens * core.card.block_tokens) != (name == "warm"):
                raise RuntimeError(f"meant to measure a {name} prompt, but {facts[0].read} tokens were reused")
            if round_:
                times[name].append(took_ms)
    return {name: sorted(values)[len(values) // 2] for name, values in times.items()}


def decode(
    core: EngineCore, requests: int, context: int, answer: int, weights: int, bandwidth: float | None
) -> Decoding:
    """Time the steps in which every request is answered, and nothing is read."""
    dice = random.Random(requests)
    prompts = [[dice.randrange(core.card.vocab_size) for _ in range(context)] for _ in range(requests)]
    steps, _ = _run(core, prompts, answer)
    whole = [took_s for took_s, tokens in steps if tokens == requests][1:]
    step_s = sum(whole) / len(whole)
    read = weights + requests * (context + answer / 2) * core.card.kv_bytes_per_token
    share_ = None if bandwidth is None else read / step_s / bandwidth
    return Decoding(requests=requests, tokens_per_s=requests / step_s, bytes_per_step=read, bandwidth_share=share_)


def _run(
    core: EngineCore, prompts: Sequence[Sequence[int]], answer: int
) -> tuple[list[tuple[float, int]], list[Prefilled]]:
    """Answer prompts side by side; return each step's time and tokens, and what was known of the prompts."""
    for place, prompt in enumerate(prompts):
        packed = b"".join(token.to_bytes(4, "little") for token in prompt)
        sampling = Sampling(temperature=0.0, min_tokens=answer)
        refused = core.handle(Submit(id=str(place), tokens=packed, max_tokens=answer, sampling=sampling))
        if refused is not None:
            raise RuntimeError(f"the engine refused: {refused}")
    steps, facts = [], []
    while core.busy:
        started = time.perf_counter()
        events = core.step()
        deltas = [event for event in events if isinstance(event, Delta)]
        if len(deltas) < len(events):
            raise RuntimeError(f"the engine failed: {events}")
        steps.append((time.perf_counter() - started, sum(len(delta.tokens) for delta in deltas)))
        facts += [delta.prefilled for delta in deltas if delta.prefilled is not None]
    return steps, facts


def read_bandwidth(tensor: Tensor) -> float:
    """Return bytes per second of summing a tensor far larger than any cache, the best of five."""
    times = []
    for _ in range(5):
        torch.cuda.synchronize(tensor.device)
        started = time.perf_counter()
        tensor.sum()
        torch.cuda.synchronize(tensor.device)
        times.append(time.perf_counter() - started)
    return float(tensor.nbytes / min(times))


if __name__ == "__main__":
    raise SystemExit(main())
