"""Dense attention, the right answer: softmax(scale * q k^T) v in float64, never through a block table.

Letters: T query tokens, N context tokens, H query heads, G KV heads, D head size.
Query head h reads KV head h // (H // G). The queries are the *last* T tokens of the context ("bottom-right"
causal): query i stands at position N - T + i, sees positions up to its own, and with a sliding window of w
only the last w of them (itself included).
"""

from typing import NamedTuple

import torch
from torch import Tensor


class AttentionResult(NamedTuple):
    """`out_THD`: weighted values; `lse_TH`: natural logarithm of the sum of exp(scores).

    A query that sees nothing has out 0 and lse -inf: the empty sum, and the neutral element of merging.
    """

    out_THD: Tensor
    lse_TH: Tensor


def visible(num_queries: int, context_len: int, *, causal: bool = True, window: int | None = None) -> Tensor:
    """Boolean [T, N]: may query i read position j?"""
    query_position = torch.arange(num_queries)[:, None] + (context_len - num_queries)
    key_position = torch.arange(context_len)[None, :]
    seen = torch.ones(num_queries, context_len, dtype=torch.bool)
    if causal:
        seen &= key_position <= query_position
    if window is not None:
        seen &= key_position > query_position - window
    return seen


def expand_heads(tensor_NGD: Tensor, num_query_heads: int) -> Tensor:
    """KV heads repeated so that index h is the KV head of query head h: [N, H, D]."""
    num_kv_heads = tensor_NGD.shape[1]
    if num_query_heads % num_kv_heads:
        raise ValueError(
            f"{num_query_heads} query heads cannot share {num_kv_heads} KV heads: "
            "the first must be a multiple of the second"
        )
    return tensor_NGD.repeat_interleave(num_query_heads // num_kv_heads, dim=1)


def dense_attention(
    q_THD: Tensor,
    k_NGD: Tensor,
    v_NGD: Tensor,
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
) -> AttentionResult:
    """Attention of T queries over a context of N tokens, computed and returned in float64 on a CPU.

    The inputs are taken as stored (rounded to their dtype) and must be finite; T may exceed N only for N = 0.
    """
    q, k, v = (tensor.detach().to("cpu", torch.float64) for tensor in (q_THD, k_NGD, v_NGD))
    scores_HTN = scale * torch.einsum("thd,nhd->htn", q, expand_heads(k, q.shape[1]))
    scores_HTN.masked_fill_(~visible(q.shape[0], k.shape[0], causal=causal, window=window), -torch.inf)
    out_HTD, lse_HT = softmax_times_values(scores_HTN, expand_heads(v, q.shape[1]))
    return AttentionResult(out_HTD.transpose(0, 1), lse_HT.transpose(0, 1))


def softmax_times_values(scores_HTN: Tensor, v_NHD: Tensor) -> tuple[Tensor, Tensor]:
    """(softmax(scores) v [H, T, D], lse [H, T]); rows that are all -inf give 0 and -inf, not NaN."""
    lse_HT = torch.logsumexp(scores_HTN, dim=2)
    # An empty row has lse -inf, and -inf - -inf is NaN: any finite stand-in makes its weights exp(-inf) = 0.
    finite_lse_HT = lse_HT.masked_fill(lse_HT == -torch.inf, 0.0)
    weights_HTN = torch.exp(scores_HTN - finite_lse_HT[:, :, None])
    return torch.einsum("htn,nhd->htd", weights_HTN, v_NHD), lse_HT
