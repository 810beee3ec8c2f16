"""Decode steps recorded once and replayed: on a GPU, launching a model's small kernels costs more than running them.

Owns one recording for each of a few batch sizes, with the buffers that it reads and writes. A batch in between is
filled up with rows that write into a block nobody holds and are never looked at. Rules: what is replayed is one new
token a sequence, each over its own pages, with nothing to copy and nothing to score; everything else is computed as
ever; a recording is used only after it has said what the plain forward says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import structlog
import torch
from torch import Tensor

from engine.attention.tables import Call, Tables, plan
from engine.attention.varlen import Varlen
from engine.batch import Batch, Rows
from engine.chunk import Chunk
from engine.errors import first_line
from engine.kv_tensors import KVTensors
from engine.model import PagedModel
from engine.self_test import gap, tolerance

CHECK_TOKENS = 2  # a short past, so that a recorded row reads more than itself; a block has room for two more


log = structlog.get_logger("engine")


class Recorder(Protocol):
    """What records: CUDA's graphs; tests may compute again instead."""

    def record(self, compute: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Return what replays `compute`, and the tensor that each replay fills."""


class CudaRecorder:
    """CUDA graphs that share one pool of memory (torch.cuda.graph)."""

    def __init__(self) -> None:
        self._pool: Any = None  # torch's handle of it, which has no public type

    def record(self, compute: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Warm up beside the main stream, as torch asks for, then record."""
        beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            compute()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = compute()
        self._pool = self._pool or graph.pool()
        return graph.replay, output


@dataclass(frozen=True, slots=True)
class Recording:
    """One size: its inputs, how to replay it, and where the logits [size, vocab] come."""

    batch: Batch
    call: Call
    replay: Callable[[], None]
    logits: Tensor


class DecodeGraphs:
    """Recordings of one model over one pool, of which block `spare` is set aside for rows that only fill up."""

    def __init__(self, model: PagedModel, kv: KVTensors, attend: Varlen, recorder: Recorder, *, spare: int) -> None:
        self._model, self._kv, self._attend, self._recorder = model, kv, attend, recorder
        self._spare = spare
        self._nowhere = (spare + 1) * attend.page - 1  # the slot that such rows write
        self._recordings: dict[int, Recording] = {}

    @classmethod
    def record(
        cls,
        model: PagedModel,
        kv: KVTensors,
        attend: Varlen,
        *,
        spare: int,
        most_sequences: int,
        most_tokens: int,
        recorder: Recorder | None = None,
    ) -> DecodeGraphs | None:
        """Record every size; None, and the log says why, where that cannot be or a recording says something else."""
        graphs = cls(model, kv, attend, recorder or CudaRecorder(), spare=spare)
        before = attend.fallbacks
        try:
            for size in sizes(most_sequences):
                graphs._record(size, -(-most_tokens // attend.page))
        except RuntimeError as error:  # such as a model that asks the device what to do next
            log.warning("decodes_not_recorded", reason=first_line(error))
            return None
        if attend.fallbacks != before:
            log.warning("decodes_not_recorded", reason="the kernel lacks something that this model needs")
            return None
        if not graphs._is_right():
            log.warning("decodes_not_recorded", reason="a recording says something else than the plain forward")
            return None
        return graphs

    def takes(self, chunks: Sequence[Chunk]) -> bool:
        """Whether such a step may be replayed, as far as its chunks say."""
        return len(chunks) <= max(self._recordings) and all(
            chunk.count == 1 and chunk.samples and not chunk.copies and not chunk.scored for chunk in chunks
        )

    def replay(self, batch: Batch) -> Tensor | None:
        """Return float32 logits [rows, vocab], valid until the next replay; None where sequences share a beginning."""
        if batch.shared:
            return None
        return self._play(self._recordings[min(size for size in self._recordings if size >= len(batch.rows))], batch)

    @torch.inference_mode()
    def _play(self, recording: Recording, batch: Batch) -> Tensor:
        rows = len(batch.rows)
        call = plan(batch, self._attend.page, sharing=False).own
        _fill(recording.batch.tokens, batch.tokens, 0)
        _fill(recording.batch.positions, batch.positions, 0)
        _fill(recording.batch.slots, batch.slots, self._nowhere)
        _fill(recording.call.used, call.used, 1)
        recording.call.starts_k[1:] = recording.call.used.cumsum(0)
        recording.call.pages[rows:, 0] = self._spare
        recording.call.pages[:rows, : call.pages.shape[1]] = call.pages
        recording.replay()
        return recording.logits[:rows]

    @torch.inference_mode()
    def _record(self, size: int, pages: int) -> None:
        device = self._model.device
        new = partial(torch.full, dtype=torch.int32, device=device)
        call = Call(
            starts_q=torch.arange(size + 1, dtype=torch.int32, device=device),
            starts_k=torch.arange(size + 1, dtype=torch.int32, device=device),
            used=new((size,), 1),
            pages=new((size, pages), self._spare),
            most_q=1,
            most_k=pages * self._attend.page,
        )
        batch = Batch(
            tokens=new((size,), 0).long(),
            positions=new((size,), 0).long(),
            slots=new((size,), self._nowhere).long(),
            rows=(),
            wanted=torch.arange(size, device=device),
            copies=(),
        )
        nothing = torch.empty(0, dtype=torch.int64, device=device)
        self._attend.keep(batch, Tables(own=call, shared=None, gathered=nothing, levels=(), longest=call.most_k))
        replay, logits = self._recorder.record(lambda: self._model.forward(batch, self._kv))
        self._recordings[size] = Recording(batch, call, replay, logits)

    def _is_right(self) -> bool:
        """Compute one token after a few others plainly and by each recording, in the block that is set aside."""
        first = self._spare * self._attend.page
        whole = ((first, CHECK_TOKENS + 1),)
        places = torch.arange(CHECK_TOKENS + 1, device=self._model.device)
        past = Rows(0, CHECK_TOKENS, (), causal=True, own=(), whole=((first, CHECK_TOKENS),))
        self._model.forward(_batch(places[:-1], first, past), self._kv)
        step = _batch(places[-1:], first, Rows(0, 1, whole, causal=False, own=whole, whole=whole))
        expected, most = self._model.forward(step, self._kv), tolerance(self._model.dtype)
        return all(gap(self._play(recording, step), expected) <= most for recording in self._recordings.values())


def sizes(most: int) -> Iterator[int]:
    """Yield the batch sizes that are recorded: powers of two, and the largest there can be."""
    size = 1
    while size < most:
        yield size
        size *= 2
    yield most


def _batch(places: Tensor, first: int, rows: Rows) -> Batch:
    """Return a batch of one sequence that lies in one block, whose tokens are numbered by their places."""
    last = torch.tensor([len(places) - 1], device=places.device)
    return Batch(places, places, first + places, (rows,), last, ())


def _fill(target: Tensor, values: Tensor, rest: int) -> None:
    target[: len(values)] = values
    target[len(values) :] = rest
