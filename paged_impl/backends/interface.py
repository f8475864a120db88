"""What the cache asks of a backend: four operations over tensors. Everything else (blocks, tables, copies due) is bookkeeping.

Letters: S sequences, T query tokens of the batch, W block-table width, B blocks, P block size, H query heads, G KV heads,
D head dim, L layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from paged_impl import checks
from paged_impl.arguments import require_between


@dataclass(frozen=True)
class PoolShape:
    """Shape, type and place of the pools: what a backend is asked about before anything is allocated."""

    num_layers: int
    num_blocks: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device


class Backend(ABC):
    """Stores, reads and copies KV in pools `[B, P, G, D]` of each layer, K and V apart.

    Every operation raises ValueError, before anything is written, for arguments that do not fit: the name, the value and the
    limit. Slots, block ids, lengths and bounds of queries, which must be read for it (on a GPU that waits for the device), are
    checked where `check_values` is set. A cache clears it on its own backend: it knows that they are right.
    """

    name: str
    check_values: bool = True

    @abstractmethod
    def check(self, shape: PoolShape) -> None:
        """Raise ValueError, with value, limit and remedy, where this backend cannot serve such pools."""

    @abstractmethod
    def store(self, key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
        """Write key, value `[T, G, D]` into the slots `slot_mapping` int64 `[T]`; -1 skips a token. Modifies the caches."""

    @abstractmethod
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
        """One query per sequence, q `[S, H, D]`: `[S, H, D]`. block_table int32 `[S, W]`, context_lens int32 `[S]`.

        max_context_len: no context is longer. A sequence of length 0 gives zeros. Modifies nothing.
        """

    @abstractmethod
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
        """Causal attention of the last `cu_seqlens_q[s + 1] - cu_seqlens_q[s]` tokens of each context: `[T, H, D]`."""

    def check_store(self, key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
        """Raise ValueError for arguments that `store` does not take."""
        checks.check_store(key, value, k_cache, v_cache, slot_mapping)
        checks.require(k_cache.dim() == 4, f"k_cache.shape={tuple(k_cache.shape)}; expected [B, P, G, D]")
        if checks.should_check_values(self._asked, key.device):
            checks.check_slot_values(slot_mapping, k_cache.shape[0] * k_cache.shape[1])

    def check_decode(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, context_lens: Tensor, *,
        scale: float, max_context_len: int, window: int | None,
    ) -> None:  # fmt: skip
        """Raise ValueError for arguments that `decode` does not take."""
        checks.check_decode(q, k_cache, v_cache, block_table, context_lens, scale=scale, window=window)
        require_between("max_context_len", max_context_len, 0)
        if checks.should_check_values(self._asked, q.device):
            checks.check_context_values(block_table, context_lens, *k_cache.shape[:2], window=window)
            checks.check_longest(context_lens, max_context_len)

    def check_prefill(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, cu_seqlens_q: Tensor, context_lens: Tensor, *,
        scale: float, max_query_len: int, max_context_len: int, window: int | None,
    ) -> None:  # fmt: skip
        """Raise ValueError for arguments that `prefill` does not take."""
        checks.check_prefill(
            q, k_cache, v_cache, block_table, cu_seqlens_q, context_lens,
            scale=scale, window=window, max_query_len=max_query_len,
        )  # fmt: skip
        require_between("max_context_len", max_context_len, 0)
        if checks.should_check_values(self._asked, q.device):
            checks.check_prefill_values(
                block_table, context_lens, cu_seqlens_q, k_cache, window=window, max_query_len=max_query_len,
                num_tokens=q.shape[0],
            )  # fmt: skip
            checks.check_longest(context_lens, max_context_len)

    @property
    def _asked(self) -> bool | None:
        """As the kernels take it: None reads values except while a CUDA graph is captured."""
        return None if self.check_values else False

    def copy_blocks(self, source: Tensor, destination: Tensor, src_blocks: Tensor, dst_blocks: Tensor) -> None:
        """Copy whole blocks between stacked pools `[2, L, B, P, G, D]` (K and V of every layer), which may be one pool.

        All are read before any is written; ids are int64 on the device of their pool. Modifies `destination`.
        """
        checks.check_copy(source, destination, src_blocks, dst_blocks, values=self.check_values)
        blocks = source.index_select(2, src_blocks)
        destination.index_copy_(2, dst_blocks, blocks.to(destination.device))


def store_by_index(key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """`Backend.store` in plain torch. On a GPU it waits for the device, which has to say how many slots are not -1."""
    tokens = (slot_mapping >= 0).nonzero().flatten()  # -1 is dropped here: as an index it would mean the last slot
    slots = slot_mapping[tokens]
    blocks, offsets = slots // k_cache.shape[1], slots % k_cache.shape[1]
    k_cache[blocks, offsets] = key[tokens]
    v_cache[blocks, offsets] = value[tokens]
