"""A kernel with the arguments of torch's `varlen_attn`, written plainly: one sequence, one row, one head at a time."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.varlen import AuxRequest


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: AuxRequest | None = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend as flash attention does: masks are aligned at the end of what a sequence sees."""
    assert cu_seq_k is not None
    assert seqused_k is not None
    assert block_table is not None
    assert scale is not None
    assert num_splits is None, "the kernel that torch brings has no number of splits"
    assert enable_gqa == (query.shape[1] != key.shape[2])
    sequences = len(seqused_k)
    assert block_table.shape[0] == sequences
    assert len(cu_seq_q) == len(cu_seq_k) == sequences + 1
    assert {part.dtype for part in (cu_seq_q, cu_seq_k, seqused_k, block_table)} == {torch.int32}
    assert cu_seq_q.diff().max() == max_q
    assert int(cu_seq_q[-1]) == len(query)
    assert seqused_k.max() <= max_k
    assert cu_seq_k.diff().tolist() == seqused_k.tolist()
    group = query.shape[1] // key.shape[2]
    output = torch.empty_like(query)
    sums = torch.empty(query.shape[1], len(query))
    for place in range(sequences):
        first, last, seen = int(cu_seq_q[place]), int(cu_seq_q[place + 1]), int(seqused_k[place])
        keys, values = (pages[block_table[place].long()].flatten(0, 1)[:seen].float() for pages in (key, value))
        assert len(keys) == seen, "a sequence sees more tokens than its pages hold"
        for row in range(first, last):
            own = seen - (last - row)
            low = 0 if window_size[0] < 0 else max(0, own - window_size[0])
            high = seen if window_size[1] < 0 else min(seen, own + window_size[1] + 1)
            for head in range(query.shape[1]):
                scores = keys[low:high, head // group] @ query[row, head].float() * scale
                sums[head, row] = scores.logsumexp(0)
                output[row, head] = (scores.softmax(0) @ values[low:high, head // group]).to(output.dtype)
    return (output, sums) if return_aux is not None and return_aux.lse else output
