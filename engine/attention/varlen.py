"""Attention on a GPU: torch's kernel for sequences of any length, reading the pool through block tables.

One call for all sequences, and one more where some share a beginning, merged by log-sum-exp; sinks are merged the same
way. A window is the kernel's own, and then nothing is shared: each row reads so little that there is little to save.
What the kernel lacks (`lacking`) goes to the plain reference, which is slow and right on any device.

Owns the tables of the latest batch, which all layers use, and those that it is told to keep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engine.attention import Scoring, reference
from engine.attention.packed import merge
from engine.attention.tables import Call, Tables, plan
from engine.batch import Batch
from engine.stored import Slots, Stored

HALF = frozenset({torch.float16, torch.bfloat16})  # what the kernel computes in
MOST_HEAD_DIM, HEAD_DIM_STEP = 256, 8
ALL, CAUSAL = (-1, -1), (-1, 0)  # tokens that a row sees (before, after) its own place


class Varlen:
    """`attend` of `engine.attention` over pages of one size, by a kernel with `varlen_attn`'s arguments."""

    def __init__(
        self, page: int, *, kernel: Callable[..., Any] | None = None, dtypes: frozenset[torch.dtype] = HALF
    ) -> None:
        from torch.nn.attention.varlen import AuxRequest, varlen_attn  # noqa: PLC0415 - a second that no CPU waits for

        self.page = page
        self._kernel = kernel or varlen_attn
        self._with_sums = AuxRequest(lse=True)
        self._dtypes = dtypes
        self._batch: Batch | None = None
        self._tables: dict[bool, Tables] = {}  # of that batch, by whether it shares
        self._kept: dict[int, tuple[Batch, Tables]] = {}  # by id, which is the batch's as long as it is kept here
        self.fallbacks = 0  # calls that the reference computed

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, keys: Slots, values: Slots, batch: Batch, scoring: Scoring
    ) -> Tensor:
        """See `engine.attention` for the shapes."""
        if isinstance(keys, Stored) or isinstance(values, Stored) or self.lacking(query, keys, scoring):
            self.fallbacks += 1
            return reference.attend(query, key, value, keys, values, batch, scoring)
        pool = (self._paged(keys), self._paged(values))
        tables = self._tables_of(batch, sharing=True)
        narrow = scoring.window is not None and scoring.window < tables.longest
        if narrow:
            tables = self._tables_of(batch, sharing=False)
        out, lse = self._own(query, pool, tables.own, scoring, narrow=narrow)
        parts = [(out, lse)]
        if tables.shared is not None:
            parts += self._shared(query, pool, tables, scoring)
        return merge(parts, scoring.sinks).to(query.dtype)

    def keep(self, batch: Batch, tables: Tables) -> None:
        """Take these tables for that very batch from now on, whatever it says of its rows."""
        self._kept[id(batch)] = (batch, tables)

    def lacking(self, query: Tensor, keys: Slots, scoring: Scoring) -> str | None:
        """Return what the kernel lacks for such a call, or None."""
        if scoring.softcap is not None:
            return "a soft-cap of scores"
        if query.dtype not in self._dtypes or keys.dtype != query.dtype:
            return f"queries in {query.dtype} over keys in {keys.dtype}"
        if query.shape[-1] > MOST_HEAD_DIM or query.shape[-1] % HEAD_DIM_STEP:
            return f"heads of {query.shape[-1]}"
        return None

    def _tables_of(self, batch: Batch, *, sharing: bool) -> Tables:
        """Return the batch's tables, worked out once for all layers."""
        if (kept := self._kept.get(id(batch))) is not None:
            return kept[1]
        if batch is not self._batch:
            self._batch, self._tables = batch, {}
        tables = self._tables.get(sharing)
        if tables is None:
            tables = self._tables[sharing] = plan(batch, self.page, sharing=sharing)
        return tables

    def _paged(self, slots: Tensor) -> Tensor:
        return slots.view(-1, self.page, *slots.shape[1:])  # [pages, page, kv_heads, head_dim]

    def _own(
        self, query: Tensor, pool: tuple[Tensor, Tensor], call: Call, scoring: Scoring, *, narrow: bool
    ) -> tuple[Tensor, Tensor]:
        if narrow:
            assert scoring.window is not None
            return self._run(query, pool, call, scoring, (scoring.window - 1, 0))
        # A single row sees all there is; unmasked, the kernel reads K and V once for all heads of a group.
        return self._run(query, pool, call, scoring, ALL if call.most_q == 1 else CAUSAL)

    def _shared(
        self, query: Tensor, pool: tuple[Tensor, Tensor], tables: Tables, scoring: Scoring
    ) -> list[tuple[Tensor, Tensor]]:
        """Return a part for each level, over all rows: those that share nothing there weigh nothing."""
        assert tables.shared is not None
        out, lse = self._run(query[tables.gathered], pool, tables.shared, scoring, ALL)
        parts = []
        for first, last in tables.levels:
            rows = tables.gathered[first:last]
            everywhere = out.new_zeros(query.shape).index_copy_(0, rows, out[first:last])
            weight = lse.new_full(query.shape[:2], float("-inf")).index_copy_(0, rows, lse[first:last])
            parts.append((everywhere, weight))
        return parts

    def _run(
        self, query: Tensor, pool: tuple[Tensor, Tensor], call: Call, scoring: Scoring, window: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """Return [rows, heads, head_dim] and the log-sum-exps [rows, heads].

        The kernel that torch brings wants `cu_seq_k` beside a block table, though it reads only `seqused_k`, and no
        `num_splits`, which is another kernel's.
        """
        out, lse = self._kernel(
            query,
            *pool,
            call.starts_q,
            call.starts_k,
            call.most_q,
            call.most_k,
            return_aux=self._with_sums,
            scale=scoring.scaling,
            window_size=window,
            enable_gqa=query.shape[1] != pool[0].shape[2],
            seqused_k=call.used,
            block_table=call.pages,
        )
        return out, lse.transpose(0, 1)  # it comes as [heads, rows], whatever its documentation says
