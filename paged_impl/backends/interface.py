"""What the cache asks of a backend: four operations over tensors. Everything else (blocks, tables, copies due) is bookkeeping.

Letters: S sequences, T query tokens of the batch, W block-table width, B blocks, P block size, H query heads, G KV heads,
D head dim, L layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


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

    The caller knows that indices are right: slots in the pool or -1, block ids valid wherever a position below the context
    length lies (with a window also for the positions before it, which are not used), lengths that fit the tables.
    """

    name: str

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

        A sequence of length 0 gives zeros. Modifies nothing.
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

    def copy_blocks(self, source: Tensor, destination: Tensor, src_blocks: Tensor, dst_blocks: Tensor) -> None:
        """Copy whole blocks between stacked pools `[2, L, B, P, G, D]` (K and V of every layer), which may be one pool.

        All are read before any is written; ids are int64 on the device of their pool. Modifies `destination`.
        """
        blocks = source.index_select(2, src_blocks)
        destination.index_copy_(2, dst_blocks, blocks.to(destination.device))


def store_by_index(key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """`Backend.store` in plain torch. On a GPU it waits for the device, which has to say how many slots are not -1."""
    tokens = (slot_mapping >= 0).nonzero().flatten()  # -1 is dropped here: as an index it would mean the last slot
    slots = slot_mapping[tokens]
    blocks, offsets = slots // k_cache.shape[1], slots % k_cache.shape[1]
    k_cache[blocks, offsets] = key[tokens]
    v_cache[blocks, offsets] = value[tokens]
