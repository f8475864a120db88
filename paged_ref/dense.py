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
    _check_heads(num_query_heads, tensor_NGD.shape[1])
    return tensor_NGD.repeat_interleave(num_query_heads // tensor_NGD.shape[1], dim=1)


def _check_heads(num_query_heads: int, num_kv_heads: int) -> None:
    if num_query_heads % num_kv_heads:
        raise ValueError(
            f"{num_query_heads} query heads cannot share {num_kv_heads} KV heads: "
            "the first must be a multiple of the second"
        )


def score_sums(q_THD: Tensor, k_NGD: Tensor) -> Tensor:
    """[H, T, N]: sum over D of q[t, h] k[n, h // (H // G)], in the dtype of both; keys are not repeated for their heads."""
    T, H, D = q_THD.shape
    N, G, _ = k_NGD.shape
    _check_heads(H, G)
    grouped = q_THD.reshape(T, G, H // G, D).permute(1, 2, 0, 3).reshape(G, H // G * T, D)
    return (grouped @ k_NGD.permute(1, 2, 0)).reshape(H, T, N)


def weighted_values(weights_HTN: Tensor, v_NGD: Tensor) -> Tensor:
    """[H, T, D]: sum over N of the weights times the values of each head's KV head, in the dtype of both."""
    H, T, N = weights_HTN.shape
    G, D = v_NGD.shape[1:]
    _check_heads(H, G)
    return (weights_HTN.reshape(G, H // G * T, N) @ v_NGD.permute(1, 0, 2)).reshape(H, T, D)


def softmax(scores_HTN: Tensor) -> tuple[Tensor, Tensor]:
    """(weights [H, T, N], lse [H, T]); rows that are all -inf give weights of 0 and -inf, not NaN."""
    lse_HT = torch.logsumexp(scores_HTN, dim=2)
    # An empty row has lse -inf, and -inf - -inf is NaN: any finite stand-in makes its weights exp(-inf) = 0.
    finite_lse_HT = lse_HT.masked_fill(lse_HT == -torch.inf, 0.0)
    return torch.exp(scores_HTN - finite_lse_HT[:, :, None]), lse_HT


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
    seen_TN = visible(q_THD.shape[0], k_NGD.shape[0], causal=causal, window=window)
    return exact_attention(q_THD, k_NGD, v_NGD, scale=scale, seen_TN=seen_TN).result


class Exact(NamedTuple):
    """Dense attention with what led to it, all in float64 on a CPU: the inputs q [T, H, D], k and v [N, G, D], the scores
    before the mask and the weights behind it [H, T, N]."""

    q: Tensor
    k: Tensor
    v: Tensor
    scores_HTN: Tensor
    weights_HTN: Tensor
    result: AttentionResult


def exact_attention(q_THD: Tensor, k_NGD: Tensor, v_NGD: Tensor, *, scale: float, seen_TN: Tensor) -> Exact:
    """`dense_attention` over the positions that `seen_TN` marks, with what led to it."""
    q, k, v = (tensor.detach().to("cpu", torch.float64) for tensor in (q_THD, k_NGD, v_NGD))
    scores_HTN = score_sums(q, k).mul_(scale)
    weights_HTN, lse_HT = softmax(scores_HTN.masked_fill(~seen_TN, -torch.inf))
    out_THD = weighted_values(weights_HTN, v).transpose(0, 1)
    return Exact(q, k, v, scores_HTN, weights_HTN, AttentionResult(out_THD, lse_HT.T))
