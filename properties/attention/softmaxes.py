"""What a row's output is where its tokens are the right ones and the softmax over them is mistaken.

Letters: T query tokens, N context tokens, H query heads, D head size, S partitions.
"""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from paged_ref.dense import exact_attention, softmax, visible, weighted_values
from properties.attention.cases import Row
from properties.attention.scene import Scene

TILES = (16, 32, 64, 128)
"""Tokens that kernels take at a time, beside a block."""
CAPS = (30.0, 50.0)
"""Soft caps of scores that models have (Gemma 2: 50; Grok: 30)."""


def mistaken(scene: Scene, row: Row) -> Iterator[tuple[str, Tensor]]:
    """Each mistake by name, and the output [T, H, D] that it gives, in float64."""
    case, content = scene.case, scene.contents[row.key]
    if not row.context_len or not row.query_len:
        return
    seen_TN = visible(row.query_len, row.context_len, window=case.window)
    exact = exact_attention(content.q, content.k, content.v, scale=case.effective_scale, seen_TN=seen_TN)
    scores_HTN = exact.scores_HTN.masked_fill(~seen_TN, -torch.inf)
    for cap in CAPS:
        weights_HTN, _ = softmax(capped(scores_HTN, cap))
        yield f"a soft cap of {cap:g} on the scores", weighted_values(weights_HTN, exact.v).transpose(0, 1)
    for tile in sorted({case.block_size, *TILES}):
        if tile < row.context_len:
            yield from _not_rescaled(scores_HTN, exact.v, tile)
    yield from _zeros_counted(exact.result.out_THD, exact.result.lse_TH, row.context_len, case.block_size)
    yield from _mean_of_partitions(scores_HTN, exact.v, case.num_splits or 1, case.block_size)


def capped(scores_HTN: Tensor, cap: float) -> Tensor:
    """Scores that approach -cap and cap; what is masked with -inf stays so."""
    return (cap * torch.tanh(scores_HTN / cap)).masked_fill(scores_HTN == -torch.inf, -torch.inf)


def _not_rescaled(scores_HTN: Tensor, v_NGD: Tensor, tile: int) -> Iterator[tuple[str, Tensor]]:
    """Online softmax that forgets what its running sums are worth when the running maximum grows."""
    starts = range(0, scores_HTN.shape[2], tile)
    highest_HTS = torch.stack([scores_HTN[:, :, s : s + tile].amax(2) for s in starts], 2).cummax(2).values
    running_HTN = highest_HTS.repeat_interleave(tile, 2)[:, :, : scores_HTN.shape[2]]
    last_HT1 = highest_HTS[:, :, -1:]
    right_HTN = torch.exp(scores_HTN - last_HT1).nan_to_num(nan=0.0)
    stale_HTN = torch.exp(scores_HTN - running_HTN).nan_to_num(nan=0.0)
    right_HT1, stale_HT1 = (weights.sum(2, keepdim=True) for weights in (right_HTN, stale_HTN))
    which = f"is not rescaled when the running maximum grows (tiles of {tile} tokens)"
    for name, weights_HTN, sum_HT1 in (
        (f"an online softmax whose output {which}", stale_HTN, right_HT1),
        (f"an online softmax whose sum of weights {which}", right_HTN, stale_HT1),
        (f"an online softmax that {which}", stale_HTN, stale_HT1),
    ):
        yield name, (weighted_values(weights_HTN, v_NGD) / sum_HT1).transpose(0, 1)


def _zeros_counted(out_THD: Tensor, lse_TH: Tensor, context_len: int, block_size: int) -> Iterator[tuple[str, Tensor]]:
    """Keys that are loaded as zeros have a score of 0, and a weight of exp(0), unless the scores are masked too."""
    for tile in sorted({block_size, *TILES}):
        if extra := -context_len % tile:
            share_TH1 = torch.sigmoid(lse_TH - torch.tensor(float(extra)).log())[..., None]
            words = f"the sum of the weights counts {extra} keys of zeros behind the context (to a multiple of {tile})"
            yield f"{words}: mask the scores too", out_THD * share_TH1


def _mean_of_partitions(
    scores_HTN: Tensor, v_NGD: Tensor, num_splits: int, block_size: int
) -> Iterator[tuple[str, Tensor]]:
    """Partitions of equal length, cut at any token or between blocks, that are combined without their LSE."""
    num_keys, lengths = scores_HTN.shape[2], set()
    for unit in (1, block_size):
        lengths.add(-(-num_keys // (unit * num_splits)) * unit)
    for length in sorted(lengths):
        edges = [*range(0, num_keys, length), num_keys]
        if len(edges) > 2:
            parts = [
                weighted_values(softmax(scores_HTN[:, :, a:b])[0], v_NGD[a:b]).transpose(0, 1)
                for a, b in pairwise(edges)
            ]
            yield f"the mean of {len(parts)} partitions, combined without their LSE", torch.stack(parts).mean(0)
