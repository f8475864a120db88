"""A small decode with a cache layout of its own and one bug, and the adapter that puts it under test."""

import torch
from torch import Tensor

from properties.attention.capabilities import AttentionCapabilities
from properties.attention.target import Batch, Output, Pool


def attend(kv: Tensor, query: Tensor, blocks: Tensor, length: int, scale: float) -> Tensor:
    """One query [H, D] over `length` tokens of a cache [B, G, P, 2 * D] that holds K and V side by side."""
    ratio, size = query.shape[0] // kv.shape[1], kv.shape[3] // 2
    tokens = kv[blocks].transpose(1, 2).flatten(0, 1).repeat_interleave(ratio, 1)
    keys, values = tokens.split(size, -1)
    scores = scale * torch.einsum("hd,nhd->hn", query, keys)
    scores[:, length:] = -torch.inf  # the bug: a weight of 0 times a value that is NaN is NaN
    return torch.einsum("hn,nhd->hd", scores.softmax(-1), values)


class Tiny:
    level = "attention"
    name = "tiny"
    attend = staticmethod(attend)
    capabilities = AttentionCapabilities(dtypes=("float32",), devices=("cpu",))

    def decode(self, pool: Pool, batch: Batch) -> Output:
        kv = self.own_layout(pool)
        out, pages = torch.zeros_like(batch.q), batch.pages_csr()
        for s, length in enumerate(batch.context_lens):
            blocks = pages.indices[pages.indptr[s] : pages.indptr[s + 1]]
            if length:
                out[s] = self.attend(kv, batch.q[s], blocks, length, batch.scale)
        return Output(out)

    def store(self, pool: Pool, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        kv = self.own_layout(pool)
        written = slot_mapping >= 0
        slots, size = slot_mapping[written], kv.shape[2]
        kv[slots // size, :, slots % size] = torch.cat([keys, values], -1)[written]
        for cache, mine in zip(pool.flash_views(), kv.transpose(1, 2).chunk(2, -1), strict=True):
            cache.copy_(mine)

    def own_layout(self, pool: Pool) -> Tensor:
        """The pool as [B, G, P, 2 * D]: a copy, made again for each call."""
        return torch.cat(pool.flash_views(), -1).transpose(1, 2).contiguous()


class Mended(Tiny):
    """With the values behind the context left out, too."""

    @staticmethod
    def attend(kv: Tensor, query: Tensor, blocks: Tensor, length: int, scale: float) -> Tensor:
        behind = torch.arange(len(blocks) * kv.shape[2]) >= length
        kv = kv.clone()
        kv[blocks[-1:], :, kv.shape[2] - int(behind.sum()) :] = 0.0
        return attend(kv, query, blocks, length, scale)
