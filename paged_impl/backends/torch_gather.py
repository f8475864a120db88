"""Plain torch: gather each context through its block table, then attend. Any device, any shape, no Triton.

    out[t, h] = softmax(scale * q[t, h] . k[p]) v[p],  p in [max(0, e - window), e),  e = context - queries + t + 1

A gather of whole blocks brings along slots behind the context, which may hold anything. Keys there are masked by the scores;
values must be masked as well, since 0 x NaN is NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paged_impl.backends.interface import Backend, PoolShape, store_by_index


class TorchGather(Backend):
    """The backend for devices without Triton. Products and sums in float32, whatever the dtype of the pools."""

    name = "torch-gather"

    def check(self, shape: PoolShape) -> None:
        """Serves every shape."""

    def store(self, key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
        self.check_store(key, value, k_cache, v_cache, slot_mapping)
        store_by_index(key, value, k_cache, v_cache, slot_mapping)

    def decode(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Tensor,
        context_lens: Tensor,
        *,
        scale: float,
        max_context_len: int,
        window: int | None = None,
    ) -> Tensor:
        self.check_decode(
            q, k_cache, v_cache, block_table, context_lens, scale=scale, max_context_len=max_context_len, window=window
        )
        if max_context_len == 0:  # nothing but padding rows
            return torch.zeros_like(q)
        keys, values = gather(k_cache, v_cache, block_table, max_context_len)
        position = torch.arange(keys.shape[1], device=q.device)
        seen = position < context_lens[:, None]
        if window is not None:
            seen &= position >= (context_lens - window)[:, None]
        return attend(q[:, None], keys, values, seen[:, None], scale)[:, 0]

    def prefill(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Tensor,
        cu_seqlens_q: Tensor,
        context_lens: Tensor,
        *,
        scale: float,
        max_query_len: int,
        max_context_len: int,
        window: int | None = None,
    ) -> Tensor:
        self.check_prefill(
            q, k_cache, v_cache, block_table, cu_seqlens_q, context_lens,
            scale=scale, max_query_len=max_query_len, max_context_len=max_context_len, window=window,
        )  # fmt: skip
        out = torch.zeros_like(q)
        bounds, lengths = cu_seqlens_q.tolist(), context_lens.tolist()
        for s, length in enumerate(lengths):
            rows = slice(bounds[s], bounds[s + 1])
            if rows.start == rows.stop or not length:
                continue
            keys, values = gather(k_cache, v_cache, block_table[s : s + 1], length)
            position = torch.arange(keys.shape[1], device=q.device)
            own = torch.arange(length - (rows.stop - rows.start), length, device=q.device)[:, None]
            seen = position <= own
            if window is not None:
                seen &= position > own - window
            out[rows] = attend(q[None, rows], keys, values, seen[None], scale)[0]
        return out


def gather(k_cache: Tensor, v_cache: Tensor, block_table: Tensor, max_context_len: int) -> tuple[Tensor, Tensor]:
    """Keys and values `[S, N, G, D]` of whole blocks, N the longest context rounded up; ids behind a context are free."""
    num_blocks, block_size = k_cache.shape[:2]
    width = -(-max_context_len // block_size)
    blocks = block_table[:, :width].long().clamp(0, num_blocks - 1)
    return k_cache[blocks].flatten(1, 2), v_cache[blocks].flatten(1, 2)


def attend(q: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scale: float) -> Tensor:
    """q `[S, T, H, D]` over keys, values `[S, N, G, D]` where `seen` `[S, T, N]`: `[S, T, H, D]`; a blind query gives 0."""
    group = q.shape[2] // keys.shape[2]
    unseen = ~seen.any(1)[:, :, None, None]
    k, v = (tensor.float().masked_fill(unseen, 0.0) for tensor in (keys, values))
    grouped = q.float().reshape(*q.shape[:2], -1, group, q.shape[3])
    scores = torch.einsum("stgrd,sngd->sgrtn", grouped, k) * scale
    scores = scores.masked_fill(~seen[:, None, None], -torch.inf)
    peak = scores.amax(-1, keepdim=True).clamp_min(
        torch.finfo(torch.float32).min
    )  # a row that sees nothing: 0, not NaN
    weights = torch.exp(scores - peak)
    total = weights.sum(-1, keepdim=True)
    weights = weights / total.masked_fill(total == 0, 1.0)
    return torch.einsum("sgrtn,sngd->stgrd", weights, v).flatten(2, 3).to(q.dtype)
