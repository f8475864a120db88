"""How many bytes the pools take: what `PagedKVCache` allocates, and what a memory budget buys."""

from __future__ import annotations


def block_bytes(block_size: int, num_layers: int, num_kv_heads: int, head_dim: int, itemsize: int) -> int:
    """Bytes of one block over all layers, K and V; `itemsize` is bytes per element."""
    elements = block_size * num_kv_heads * head_dim
    return elements * itemsize * num_layers * 2


def num_blocks_within(budget_bytes: int, bytes_per_block: int) -> int:
    """Whole blocks that fit into a budget. Raises ValueError where not even one does."""
    num_blocks = budget_bytes // bytes_per_block
    if num_blocks < 1:
        raise ValueError(
            f"a budget of {budget_bytes} bytes holds no block of {bytes_per_block} bytes: raise it, or use smaller blocks"
        )
    return num_blocks
