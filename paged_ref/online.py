"""Online softmax: attention as a fold over blocks, which is how every fast kernel computes it.

For one query and scores s_1, s_2, ... the fold keeps three numbers: the maximum m so far, the sum
l = sum exp(s_i - m), and a = sum exp(s_i - m) v_i. A new block with maximum m' changes the reference point to
max(m, m'): what was kept is multiplied by exp(m - max(m, m')), and the block's own terms are added. At the
end the output is a / l and the log-sum-exp is m + log l. Order and size of the blocks do not matter.

Letters: H query heads, G KV heads, P tokens of one block, D head size. Everything here is float64.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .dense import AttentionResult, expand_heads
from .paged import gather


class SoftmaxState(NamedTuple):
    """What is known after some blocks: per head the maximum, the sum, and the weighted values."""

    maximum_H: Tensor
    total_H: Tensor
    weighted_HD: Tensor


def empty_state(num_heads: int, head_size: int) -> SoftmaxState:
    """The state before any token."""
    return SoftmaxState(
        torch.full((num_heads,), -torch.inf, dtype=torch.float64),
        torch.zeros(num_heads, dtype=torch.float64),
        torch.zeros(num_heads, head_size, dtype=torch.float64),
    )


def fold(state: SoftmaxState, q_HD: Tensor, k_PGD: Tensor, v_PGD: Tensor, *, scale: float) -> SoftmaxState:
    """The state after one more block of tokens (none is allowed)."""
    if k_PGD.shape[0] == 0:
        return state
    k, v = (expand_heads(tensor.double(), q_HD.shape[0]) for tensor in (k_PGD, v_PGD))
    scores_PH = scale * torch.einsum("hd,phd->ph", q_HD.double(), k)
    maximum_H = torch.maximum(state.maximum_H, scores_PH.amax(0))
    kept_H = torch.exp(state.maximum_H - maximum_H)  # exp(-inf) = 0 for the first block
    weights_PH = torch.exp(scores_PH - maximum_H)
    return SoftmaxState(
        maximum_H,
        state.total_H * kept_H + weights_PH.sum(0),
        state.weighted_HD * kept_H[:, None] + torch.einsum("ph,phd->hd", weights_PH, v),
    )


def finish(state: SoftmaxState) -> tuple[Tensor, Tensor]:
    """(out [H, D], lse [H]); the empty state gives 0 and -inf."""
    total_H = state.total_H.clamp_min(torch.finfo(torch.float64).tiny)  # 0 / tiny = 0 where nothing was folded
    return state.weighted_HD / total_H[:, None], state.maximum_H + torch.log(state.total_H)


def online_decode(
    q_SHD: Tensor,
    key_cache_BPGD: Tensor,
    value_cache_BPGD: Tensor,
    block_tables_SW: Tensor,
    context_lens_S: Tensor,
    *,
    scale: float,
    window: int | None = None,
) -> AttentionResult:
    """Same contract and result as `paged.paged_decode`, one block of the table at a time."""
    block_size = key_cache_BPGD.shape[1]
    outs, lses = [], []
    for q_HD, block_table, context_len in zip(q_SHD, block_tables_SW, context_lens_S.tolist(), strict=True):
        state = empty_state(*q_HD.shape)
        first_visible = 0 if window is None else max(0, context_len - window)
        for begin in range(0, context_len, block_size):
            start, stop = max(begin, first_visible), min(begin + block_size, context_len)
            if start >= stop:  # a block wholly before the window: it may be freed, so it is not read
                continue
            k = gather(key_cache_BPGD, block_table, start, stop)
            v = gather(value_cache_BPGD, block_table, start, stop)
            state = fold(state, q_HD, k, v, scale=scale)
        out_HD, lse_H = finish(state)
        outs.append(out_HD)
        lses.append(lse_H)
    return AttentionResult(torch.stack(outs), torch.stack(lses))
