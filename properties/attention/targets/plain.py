"""Plain torch attention over a block table: the shortest complete example of an attention target."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from properties.attention.capabilities import AttentionCapabilities
from properties.attention.target import Batch, Output, Pool


class PlainTorch:
    """Gathers each sequence through its table, then attends in float32. Any device, every shape."""

    level: Literal["attention"] = "attention"
    name = "plain-torch"
    capabilities = AttentionCapabilities(
        layouts=("flash", "hnd"),
        real_shapes=True,
        num_splits=True,
        window=True,
        lse_base="e",
        promises=frozenset({"READ-3P", "READ-5P"}),
    )

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        """Writes the listed slots."""
        written = slot_mapping >= 0
        slots = slot_mapping[written]
        for cache, tokens in zip(pool.flash_views(), (keys, values), strict=True):
            block_size = cache.shape[1]
            cache[slots // block_size, slots % block_size] = tokens[written]

    def decode(self, pool: Pool, batch: Batch) -> Output:
        """One query per sequence."""
        return self._read(pool, batch)

    def prefill(self, pool: Pool, batch: Batch) -> Output:
        """Causal attention of all queries."""
        return self._read(pool, batch)

    def copy_blocks(self, pools: Sequence[Pool], pairs: Sequence[tuple[int, int]]) -> None:
        """Copies K and V of every layer, in order."""
        for pool in pools:
            for source, destination in pairs:
                for cache in (pool.key_cache, pool.value_cache):
                    cache[destination] = cache[source]

    def _read(self, pool: Pool, batch: Batch) -> Output:
        out = torch.zeros_like(batch.q)
        lse = torch.full(batch.q.shape[:2], -torch.inf, device=batch.q.device)
        tables, begin = batch.padded_block_tables().long(), 0
        for s, (query_len, context_len) in enumerate(zip(batch.query_lens, batch.context_lens, strict=True)):
            rows = slice(begin, begin := begin + query_len)
            if query_len and context_len:
                out[rows], lse[rows] = self._attend(pool, batch, tables[s], rows, context_len)
        return Output(out, lse if batch.want_lse else None)

    def _attend(self, pool: Pool, batch: Batch, table: Tensor, rows: slice, context_len: int) -> tuple[Tensor, Tensor]:
        """(out, lse) of one sequence, its partitions attended apart and merged."""
        q = batch.q[rows].float()
        keys, values = self._gather(pool, batch, table, context_len)
        keys, values = self._per_query_head(keys, q.shape[1]), self._per_query_head(values, q.shape[1])
        scores = batch.scale * torch.einsum("thd,nhd->htn", q, keys)
        own = torch.arange(q.shape[0], device=q.device)[:, None] + context_len - q.shape[0]
        position = torch.arange(context_len, device=q.device)
        hidden = position > own
        if batch.window is not None:
            hidden |= position <= own - batch.window
            # Slots before the window may hold anything, and 0 x NaN is NaN.
            values = values.masked_fill((position < int(own[0]) - batch.window + 1)[:, None, None], 0.0)
        scores = scores.masked_fill(hidden, -torch.inf)
        size = -(-context_len // (batch.num_splits or 1))
        parts = [
            self._softmax(s, v) for s, v in zip(torch.split(scores, size, 2), torch.split(values, size), strict=True)
        ]
        out, lse = self._merge(torch.stack([p[0] for p in parts]), torch.stack([p[1] for p in parts]))
        return out.transpose(0, 1).to(batch.q.dtype), lse.transpose(0, 1)

    def _gather(self, pool: Pool, batch: Batch, table: Tensor, context_len: int) -> tuple[Tensor, Tensor]:
        blocks = table[: -(-context_len // batch.block_size)]
        keys, values = (cache[blocks].flatten(0, 1)[:context_len].float() for cache in pool.flash_views())
        return keys, values

    def _per_query_head(self, tokens: Tensor, num_heads: int) -> Tensor:
        """Query head h reads KV head h // ratio."""
        return tokens.repeat_interleave(num_heads // tokens.shape[1], 1)

    def _softmax(self, scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        lse = torch.logsumexp(scores, 2)
        weights = torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0.0)[..., None])
        return torch.einsum("htn,nhd->htd", weights, values), lse

    def _merge(self, outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
        lse = torch.logsumexp(lses, 0)
        weights = torch.exp(lses - lse.masked_fill(lse == -torch.inf, 0.0))
        return (weights[..., None] * outs).sum(0), lse
