"""Paged attention in plain torch: gather a sequence's own tokens through its block table, then attend
densely.

Letters: S sequences, T query tokens of the whole batch, W block-table width, B blocks, P block size, H
query heads, G KV heads, D head size. `block_tables[s, i]` is the physical block of sequence s's tokens [i *
P, (i + 1) * P); entries from ceil(context_len / P) on are never looked at, whatever they hold.
"""

import torch
from torch import Tensor

from .dense import AttentionResult, dense_attention


def gather(cache_BPGD: Tensor, block_table: Tensor, start: int, stop: int) -> Tensor:
    """The tokens [start, stop) of one sequence as [stop - start, G, D], read through its block table.

    Raises ValueError if the table is too narrow or names a block outside the pool.
    """
    num_blocks, block_size = cache_BPGD.shape[:2]
    first, last = start // block_size, -(-stop // block_size)
    if last > block_table.numel():
        raise ValueError(
            f"a context of {stop} tokens needs {last} blocks of {block_size}, but the block table has "
            f"{block_table.numel()} entries"
        )
    # Cut the table before indexing and the tail after: neither padding ids nor unwritten slots are ever read.
    block_ids = block_table[first:last].long()
    if block_ids.numel() and (int(block_ids.min()) < 0 or int(block_ids.max()) >= num_blocks):
        raise ValueError(f"block table {block_ids.tolist()} names a block outside the pool of {num_blocks}")
    tokens = cache_BPGD[block_ids].flatten(0, 1)
    return tokens[start - first * block_size : stop - first * block_size]


def paged_decode(
    q_SHD: Tensor,
    key_cache_BPGD: Tensor,
    value_cache_BPGD: Tensor,
    block_tables_SW: Tensor,
    context_lens_S: Tensor,
    *,
    scale: float,
    window: int | None = None,
) -> AttentionResult:
    """One query per sequence over its context (the query's own token included, already stored).

    A sequence with context length 0 gives 0 and lse -inf. Returns float64 out [S, H, D] and lse [S, H].
    """
    cu_seqlens_q = torch.arange(q_SHD.shape[0] + 1)
    return paged_prefill(
        q_SHD,
        key_cache_BPGD,
        value_cache_BPGD,
        block_tables_SW,
        cu_seqlens_q=cu_seqlens_q,
        context_lens_S=context_lens_S,
        scale=scale,
        window=window,
    )


def paged_prefill(
    q_THD: Tensor,
    key_cache_BPGD: Tensor,
    value_cache_BPGD: Tensor,
    block_tables_SW: Tensor,
    *,
    cu_seqlens_q: Tensor,
    context_lens_S: Tensor,
    scale: float,
    window: int | None = None,
) -> AttentionResult:
    """Causal attention of a packed batch: sequence s owns the queries [cu_seqlens_q[s], cu_seqlens_q[s + 1]).

    They are the last tokens of its context of `context_lens_S[s]`, whose earlier part may be a cached
    prefix or earlier chunks. Returns float64 out [T, H, D] and lse [T, H].
    """
    results = []
    for s, context_len in enumerate(context_lens_S.tolist()):
        begin, end = int(cu_seqlens_q[s]), int(cu_seqlens_q[s + 1])
        # With a window, blocks before the first query's window may be freed and reused: they are not
        # gathered.
        start = 0 if window is None else max(0, context_len - (end - begin) + 1 - window)
        k = gather(key_cache_BPGD, block_tables_SW[s], start, context_len)
        v = gather(value_cache_BPGD, block_tables_SW[s], start, context_len)
        results.append(dense_attention(q_THD[begin:end], k, v, scale=scale, window=window))
    outs, lses = zip(*results, strict=True) if results else ((), ())
    num_heads, head_size = q_THD.shape[1:]
    return AttentionResult(
        torch.cat([torch.empty(0, num_heads, head_size, dtype=torch.float64), *outs]),
        torch.cat([torch.empty(0, num_heads, dtype=torch.float64), *lses]),
    )
