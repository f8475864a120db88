"""Partitions: the context cut into ranges that are attended apart and merged (paged attention v2,
FlashDecoding).

Each partition i gives an output o_i and a log-sum-exp L_i. With L = log sum_i exp(L_i) the whole is
sum_i exp(L_i - L) o_i. The merge is commutative and associative, and (0, -inf) is its neutral element: an
empty partition weighs nothing, and a merge of empty partitions is empty (FlashInfer #4051: -inf - -inf is
NaN).
"""

import torch
from torch import Tensor

from .dense import AttentionResult, dense_attention


def partition_ranges(context_len: int, partition_size: int) -> list[tuple[int, int]]:
    """Half-open token ranges of `partition_size` tokens that cover the context; the last one may be
    shorter.
    """
    if partition_size < 1:
        raise ValueError(f"partition_size={partition_size}: a partition holds at least one token")
    starts = range(0, context_len, partition_size)
    return [(start, min(start + partition_size, context_len)) for start in starts]


def merge(outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    """Merges partial results along the first axis: outs [N, ..., D], lses [N, ...] -> (out [..., D], lse
    [...]).
    """
    maximum = lses.amax(0)
    finite_maximum = maximum.masked_fill(maximum == -torch.inf, 0.0)  # so that an empty one weighs exp(-inf) = 0
    weights = torch.exp(lses - finite_maximum)
    total = weights.sum(0)
    out = (weights[..., None] * outs).sum(0) / total.clamp_min(torch.finfo(total.dtype).tiny)[..., None]
    return out, finite_maximum + torch.log(total)


def partitioned_attention(
    q_THD: Tensor, k_NGD: Tensor, v_NGD: Tensor, *, scale: float, partition_size: int
) -> AttentionResult:
    """Equal to `dense_attention` without mask (decode): every range attended apart, then merged, in
    float64.
    """
    parts = [
        dense_attention(q_THD, k_NGD[start:stop], v_NGD[start:stop], scale=scale, causal=False)
        for start, stop in partition_ranges(k_NGD.shape[0], partition_size)
    ]
    if not parts:
        return dense_attention(q_THD, k_NGD, v_NGD, scale=scale, causal=False)
    out, lse = merge(torch.stack([p.out_THD for p in parts]), torch.stack([p.lse_TH for p in parts]))
    return AttentionResult(out, lse)
